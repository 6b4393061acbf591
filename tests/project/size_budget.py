"""The most lines of code and vague names that each package may have.

The numbers only go down: `python -m tools.size --lower` writes those of today where they are lower. A number may be
raised by changing it here, in the commit that needs it, with the reason as a comment on its line.
"""

from __future__ import annotations

BUDGET = {  # package: (lines of code, vague names)
    "treadle": (15, 0),  # +5: `python -m treadle` next to a queue.py
    "treadle/admin": (6_397, 13),  # +25: explain restarts and near limits
    "treadle/app": (1_127, 1),  # methods of objects; threads under gevent; mistyped options name app.enqueue
    "treadle/blobs": (772, 0),
    "treadle/cli": (5_665, 0),  # +100: `storage export` and `import`; --factory, output of any encoding
    "treadle/concurrency": (502, 0),  # +46: real threads under gevent and eventlet
    "treadle/contrib": (8_337, 1),  # --factory; +1: delayed jobs are due at an instant; +1: --factory of mcp
    "treadle/core": (2_830, 4),  # +2: restarts; instants of a job; URLs of files of any name; sentences for extras
    "treadle/durable": (1_083, 0),  # +35: restart, warnings, codecs once a run
    "treadle/execution": (1_031, 0),  # +11: restart; +22: the typed calls of a step and of its options
    "treadle/integrations": (3_610, 1),  # +42: sentences for missing extras, the admin in a TestCase
    "treadle/metrics": (567, 1),
    "treadle/outbox": (1_411, 0),
    "treadle/policy": (1_352, 6),  # +42: rounds of a restarted job
    "treadle/ports": (1_330, 1),
    "treadle/producer": (466, 0),  # +1: empty lists by annotation; list[int]() takes 0.5 us more than []
    "treadle/resources": (965, 0),
    "treadle/scheduling": (535, 0),  # +8: a paused queue keeps one tick of a schedule
    "treadle/serialization": (1_635, 0),  # +5: a coroutine that nothing awaits
    "treadle/server": (8_094, 9),  # +10: `at_most` and the key of an operation
    "treadle/storage": (25_342, 9),  # +109: checkpoints apart from the rows
    "treadle/tasks": (1_349, 2),  # +5: arguments of a restart
    "treadle/testing": (3_782, 3),  # +3: restarts in a replay; +1: URLs of files of any name
    "treadle/worker": (6_646, 4),  # +10: progress of suspects, restarts
    "treadle/workflow": (1_053, 1),  # +1: signals of a round; +12: types of chains that mix tasks and .late
    "treadle_testkit": (451, 0),
    "treadle_testkit/conformance": (8_694, 2),  # +97: laws of checkpoints; +133: the law of instants
    "treadle_testkit/ports": (373, 0),
}
SCRIPTS = 0  # vague names of `ui/src` and Lua
