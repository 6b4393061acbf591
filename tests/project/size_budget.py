"""The most lines of code and vague names that each package may have.

The numbers only go down: `python -m tools.size --lower` writes those of today where they are lower. A number may be
raised by changing it here, in the commit that needs it, with the reason as a comment on its line.
"""

from __future__ import annotations

BUDGET = {  # package: (lines of code, vague names)
    "treadle": (15, 0),  # +5: `python -m treadle` next to a queue.py
    "treadle/admin": (7_505, 13),  # +6: rows that receive nothing; +268: approvals and their links
    "treadle/app": (1_161, 1),  # +9: operators, versions; +17: streams; methods of objects; +6: approvals
    "treadle/blobs": (772, 0),
    "treadle/cli": (5_476, 0),  # +95: operators, versions; +5: waits; +6: paused jobs; +119: approvals
    "treadle/concurrency": (507, 0),  # +51: real threads under gevent and eventlet, and a loop that greenlets wake
    "treadle/contrib": (8_887, 1),  # +512: the demo, which was in cli; +2: paused jobs; --factory; +31: approvals
    "treadle/core": (2_917, 4),  # +13: operators, versions; URLs of files; streams; +14: errors of decisions
    "treadle/durable": (4_540, 0),  # +92: short waits, replays; +52: forks, limits; +455: streams; +163: approvals
    "treadle/execution": (1_361, 0),  # restart; operators; +6: current().sync in threads; streams; +18: approve
    "treadle/integrations": (3_723, 1),  # admin in a TestCase; +94: checks, test databases, help pages of Django
    "treadle/metrics": (567, 1),
    "treadle/outbox": (1_411, 0),
    "treadle/policy": (1_683, 5),  # +2: reasons of deferrals, tries; clocks of claims; +105: operators, versions
    "treadle/ports": (1_444, 1),  # +115: the head of a journal, which finds cut and deleted files; reserved stores
    "treadle/producer": (700, 1),  # +41: messages that go together; +140: readers of streams
    "treadle/resources": (962, 0),
    "treadle/scheduling": (529, 0),  # +6: whole rows; +8: a paused queue keeps one tick of a schedule
    "treadle/serialization": (2_221, 0),  # +407: hooks of classes, a comparison of values, cycles; +89: defaults
    "treadle/server": (9_077, 10),  # rows of streams; +292: approvals, links, groups
    "treadle/storage": (25_615, 9),  # +13: pages of a query, for all; +31: ranges of lines; +19: labels on Redis
    "treadle/tasks": (1_404, 2),  # +5: arguments of a restart; +65: operators, versions; +2: undos of one
    "treadle/testing": (3_915, 3),  # clocks of claims; +18: children in a replay
    "treadle/worker": (7_107, 5),  # clocks of claims; +12: look-only storages, suspects, restarts; +18: tries
    "treadle/workflow": (1_822, 5),  # +2: Django tasks; +115: rows of requests; `Approval.at`
    "treadle_testkit": (451, 0),
    "treadle_testkit/conformance": (9_125, 2),  # +11: reads at a close; +20: operators, versions; +9: ids of Treadle
    "treadle_testkit/ports": (378, 0),  # +5: optional methods
}
SCRIPTS = 0  # vague names of `ui/src` and Lua
