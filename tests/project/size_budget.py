"""The most lines of code and vague names that each package may have.

The numbers only go down: `python -m tools.size --lower` writes those of today where they are lower. A number may be
raised by changing it here, in the commit that needs it, with the reason as a comment on its line.
"""

from __future__ import annotations

BUDGET = {  # package: (lines of code, vague names)
    "treadle": (15, 0),  # +5: `python -m treadle` next to a queue.py
    "treadle/admin": (6_368, 13),  # +175: jobs as JSON lines; +5: a step that failed; names of steps
    "treadle/app": (1_122, 1),  # methods of objects; threads under gevent; mistyped options name app.enqueue
    "treadle/blobs": (772, 0),
    "treadle/cli": (5_665, 0),  # +100: `storage export` and `import`; --factory, output of any encoding
    "treadle/concurrency": (502, 0),  # +46: real threads under gevent and eventlet
    "treadle/contrib": (8_348, 1),  # --factory; +1: delayed jobs are due at an instant
    "treadle/core": (2_830, 4),  # URLs of files of any name; sentences for extras; URLs of files; results of Any | None
    "treadle/durable": (1_045, 0),  # +389: failures are history, options of steps
    "treadle/execution": (1_020, 0),  # +22: the typed calls of a step and of its options
    "treadle/integrations": (3_610, 1),  # +42: sentences for missing extras, the admin in a TestCase
    "treadle/metrics": (567, 1),
    "treadle/outbox": (1_411, 0),
    "treadle/policy": (1_311, 6),  # a step such as */90 is refused; an instant and its span, at most 100 years away
    "treadle/ports": (1_444, 1),  # +115: the head of a journal, which finds cut and deleted files; reserved stores
    "treadle/producer": (466, 0),  # +1: empty lists by annotation; list[int]() takes 0.5 us more than []
    "treadle/resources": (965, 0),
    "treadle/scheduling": (535, 0),  # +8: a paused queue keeps one tick of a schedule
    "treadle/serialization": (2_156, 0),  # +407: hooks of classes, a comparison of values, cycles
    "treadle/server": (8_094, 9),  # +10: `at_most` and the key of an operation
    "treadle/storage": (25_259, 9),  # a path in place of a URL; +28: reserved stores, queues without dead letters
    "treadle/tasks": (1_344, 2),  # +32: functions that no job can run are refused at the declaration
    "treadle/testing": (3_779, 3),  # +1: URLs of files of any name; +35: calls that change their mind
    "treadle/worker": (6_637, 4),  # +2: a storage that can only be read
    "treadle/workflow": (1_052, 1),  # +12: types of chains that mix tasks and .late
    "treadle_testkit": (451, 0),
    "treadle_testkit/conformance": (8_597, 2),  # +133: the law of instants; +9: ids of Treadle in another queue
    "treadle_testkit/ports": (378, 0),  # +5: optional methods
}
SCRIPTS = 0  # vague names of `ui/src` and Lua
