"""The most lines of code and vague names that each package may have.

The numbers only go down: `python -m tools.size --lower` writes those of today where they are lower. A number may be
raised by changing it here, in the commit that needs it, with the reason as a comment on its line.
"""

from __future__ import annotations

BUDGET = {  # package: (lines of code, vague names)
    "treadle": (15, 0),  # +5: `python -m treadle` next to a queue.py
    "treadle/admin": (7_099, 13),  # +16: children, values of cleanups; +6: rows that receive nothing
    "treadle/app": (1_138, 1),  # mistyped options name app.enqueue; +9: operators, versions; +4: joined transactions
    "treadle/blobs": (772, 0),
    "treadle/cli": (5_814, 0),  # --factory; +3: cancel --force; +95: operators, versions; +5: waits; +6: paused jobs
    "treadle/concurrency": (507, 0),  # +51: real threads under gevent and eventlet, and a loop that greenlets wake
    "treadle/contrib": (8_347, 1),  # +2: paused jobs; --factory; +1: delayed jobs are due at an instant
    "treadle/core": (2_869, 4),  # +2: restarts; instants of a job; +13: operators, versions; URLs of files
    "treadle/durable": (3_531, 0),  # clocks of claims; +92: short waits, replays; +52: forks, limits
    "treadle/execution": (1_279, 0),  # clocks of claims; +11: restart; +22: restart; +22: operators, restart
    "treadle/integrations": (3_655, 1),  # +43: jobs of the app follow `commit`, and tests of both kinds of tasks
    "treadle/metrics": (567, 1),
    "treadle/outbox": (1_411, 0),
    "treadle/policy": (1_598, 6),  # clocks of claims; +105: operators, versions; +12: cleanups for children only
    "treadle/ports": (1_444, 1),  # +115: the head of a journal, which finds cut and deleted files; reserved stores
    "treadle/producer": (509, 0),  # +1: empty lists by annotation; +41: messages that go together
    "treadle/resources": (965, 0),
    "treadle/scheduling": (541, 0),  # +6: whole rows; +8: a paused queue keeps one tick of a schedule
    "treadle/serialization": (2_245, 0),  # +407: hooks of classes, a comparison of values, cycles; +89: defaults
    "treadle/server": (8_630, 9),  # clocks of claims; +15: places of answers, scopes of a fork
    "treadle/storage": (25_465, 9),  # +35: pages without steps; +31: ranges of imported lines; +2: too long names
    "treadle/tasks": (1_425, 2),  # +5: arguments of a restart; +65: operators, versions; +2: undos of one
    "treadle/testing": (3_889, 3),  # clocks of claims; +18: children in a replay; +33: blocks of atomic in a TestCase
    "treadle/worker": (6_818, 4),  # clocks of claims; +12: look-only storages, suspects, restarts
    "treadle/workflow": (1_456, 1),  # +10: who ends with a parent; +32: messages that go together
    "treadle_testkit": (451, 0),
    "treadle_testkit/conformance": (8_754, 2),  # +20: operators, versions; +9: ids of Treadle in another queue
    "treadle_testkit/ports": (378, 0),  # +5: optional methods
}
SCRIPTS = 0  # vague names of `ui/src` and Lua
