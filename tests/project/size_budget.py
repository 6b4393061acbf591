"""The most lines of code and vague names that each package may have.

The numbers only go down: `python -m tools.size --lower` writes those of today where they are lower. A number may be
raised by changing it here, in the commit that needs it, with the reason as a comment on its line.
"""

from __future__ import annotations

BUDGET = {  # package: (lines of code, vague names)
    "treadle": (15, 0),  # +5: `python -m treadle` next to a queue.py
    "treadle/admin": (6_228, 13),  # +23: explain restarts and near limits
    "treadle/app": (1_127, 1),  # a loop that cannot be made; mistyped options; methods of objects; threads under gevent
    "treadle/blobs": (772, 0),
    "treadle/cli": (5_562, 0),  # --factory, output of any encoding, hints about files, words of manage.py
    "treadle/concurrency": (502, 0),  # +46: real threads under gevent and eventlet
    "treadle/contrib": (8_337, 1),  # a preview bounds an assistant; delayed jobs are due at an instant; --factory
    "treadle/core": (2_814, 4),  # +2: restarts; instants of a job; URLs of files of any name; sentences for extras
    "treadle/durable": (695, 0),  # +34: restart, warnings, codecs once a run
    "treadle/execution": (999, 0),  # +11: restart
    "treadle/integrations": (3_610, 1),  # +42: sentences for missing extras, the admin in a TestCase
    "treadle/metrics": (567, 1),
    "treadle/outbox": (1_411, 0),
    "treadle/policy": (1_329, 6),  # +42: rounds of a restarted job, progress of a suspect; an instant and its span
    "treadle/ports": (1_330, 1),
    "treadle/producer": (466, 0),  # +1: empty lists by annotation; list[int]() takes 0.5 us more than []
    "treadle/resources": (965, 0),
    "treadle/scheduling": (535, 0),  # +8: a paused queue keeps one tick of a schedule
    "treadle/serialization": (1_635, 0),  # +5: a coroutine that nothing awaits
    "treadle/server": (8_100, 9),  # +10: `at_most` and the key of an operation
    "treadle/storage": (25_267, 9),  # +110: checkpoints apart from the rows, restarts
    "treadle/tasks": (1_349, 2),  # +5: arguments of a restart are redacted
    "treadle/testing": (3_743, 3),  # +3: restarts in a replay; +1: URLs of files of any name
    "treadle/worker": (6_638, 4),  # +10: progress of suspects, restarts
    "treadle/workflow": (1_053, 1),  # +1: signals of a round; +12: types of chains that mix tasks and .late
    "treadle_testkit": (451, 0),
    "treadle_testkit/conformance": (8_685, 2),  # +97: laws of checkpoints; +133: the law of instants
    "treadle_testkit/ports": (373, 0),
}
SCRIPTS = 0  # vague names of `ui/src` and Lua
