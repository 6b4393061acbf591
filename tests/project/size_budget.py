"""The most lines of code and vague names that each package may have.

The numbers only go down: `python -m tools.size --lower` writes those of today where they are lower. A number may be
raised by changing it here, in the commit that needs it, with the reason as a comment on its line.
"""

from __future__ import annotations

BUDGET = {  # package: (lines of code, vague names)
    "treadle": (15, 0),  # +5: `python -m treadle` next to a queue.py
    "treadle/admin": (6_597, 13),  # +30: waits in histories, checks; +46: requests by key, imports, explain
    "treadle/app": (1_125, 1),  # methods of objects; threads under gevent; mistyped options name app.enqueue
    "treadle/blobs": (772, 0),
    "treadle/cli": (5_704, 0),  # +5: waits; +104: closed streams, `storage export` and `import`; --factory
    "treadle/concurrency": (507, 0),  # +51: real threads under gevent and eventlet, and a loop that greenlets wake
    "treadle/contrib": (8_345, 1),  # --factory; +1: delayed jobs are due at an instant; +1: --factory of mcp
    "treadle/core": (2_851, 4),  # URLs of files; results of Any | None; +2: restarts; instants of a job
    "treadle/durable": (2_279, 1),  # +35: restart, warnings; +1_120: children, races, time limits, waits in tasks
    "treadle/execution": (1_192, 0),  # the typed calls of a step; +22: restart; +109: the typed calls of waits
    "treadle/integrations": (3_610, 1),  # +42: sentences for missing extras, the admin in a TestCase
    "treadle/metrics": (567, 1),
    "treadle/outbox": (1_411, 0),
    "treadle/policy": (1_368, 6),  # an instant and its span, at most 100 years away; +42: rounds of a restarted job
    "treadle/ports": (1_444, 1),  # +115: the head of a journal, which finds cut and deleted files; reserved stores
    "treadle/producer": (466, 0),  # +1: empty lists by annotation; list[int]() takes 0.5 us more than []
    "treadle/resources": (965, 0),
    "treadle/scheduling": (541, 0),  # +6: whole rows; +8: a paused queue keeps one tick of a schedule
    "treadle/serialization": (2_245, 0),  # +407: hooks of classes, a comparison of values, cycles; +89: defaults
    "treadle/server": (8_459, 9),  # +10: `at_most` and the key of an operation; +249: steps of runners; +10: `at_most`
    "treadle/storage": (25_453, 9),  # +35: pages without steps; +31: ranges of imported lines; +2: too long names
    "treadle/tasks": (1_352, 2),  # +5: arguments of a restart
    "treadle/testing": (3_791, 3),  # +18: children in a replay; +38: calls that change their mind, restarts
    "treadle/worker": (6_676, 4),  # +31: children of durable code; +12: look-only storages, suspects, restarts
    "treadle/workflow": (1_201, 1),  # +32: cancels children of any job; +13: types of chains, signals of a round
    "treadle_testkit": (451, 0),
    "treadle_testkit/conformance": (8_734, 2),  # +9: ids of Treadle in another queue; +97: laws of checkpoints
    "treadle_testkit/ports": (378, 0),  # +5: optional methods
}
SCRIPTS = 0  # vague names of `ui/src` and Lua
