"""The most lines of code and vague names that each package may have.

The numbers only go down: `python -m tools.size --lower` writes those of today where they are lower. A number may be
raised by changing it here, in the commit that needs it, with the reason as a comment on its line.
"""

from __future__ import annotations

BUDGET = {  # package: (lines of code, vague names)
    "treadle": (15, 0),  # +5: `python -m treadle` next to a queue.py
    "treadle/admin": (7_511, 13),  # +259: approvals and their links; +2: long pages; +3: suspects that wait
    "treadle/app": (1_167, 1),  # +17: streams; methods of objects; +6: approvals; +6: jobs stored at a commit
    "treadle/blobs": (772, 0),
    "treadle/cli": (5_480, 0),  # +4: steps of ended jobs; +95: operators, versions; +5: waits; +6: paused jobs
    "treadle/concurrency": (507, 0),  # +51: real threads under gevent and eventlet, and a loop that greenlets wake
    "treadle/contrib": (8_887, 1),  # +512: the demo, which was in cli; +2: paused jobs; --factory; +31: approvals
    "treadle/core": (2_930, 4),  # +13: commands of manage.py; +13: operators, versions; URLs of files; streams
    "treadle/durable": (4_560, 0),  # +92: short waits, replays; +52: forks, limits; +455: streams; +163: approvals
    "treadle/execution": (1_361, 0),  # restart; operators; +6: current().sync in threads; streams; +18: approve
    "treadle/integrations": (4_247, 6),  # +38: keys at the commit, login pages, commands; admin in a TestCase
    "treadle/metrics": (567, 1),
    "treadle/outbox": (1_413, 0),  # +2: commands of manage.py
    "treadle/policy": (1_696, 5),  # +13: suspects that wait; +2: reasons of deferrals, tries; clocks of claims
    "treadle/ports": (1_444, 1),  # +115: the head of a journal, which finds cut and deleted files; reserved stores
    "treadle/producer": (703, 1),  # +3: jobs stored at a commit; +41: messages that go together
    "treadle/resources": (962, 0),
    "treadle/scheduling": (529, 0),  # +6: whole rows; +8: a paused queue keeps one tick of a schedule
    "treadle/serialization": (2_224, 0),  # +89: defaults; +4: calls in a chain
    "treadle/server": (9_105, 10),  # +289: approvals, links, groups; +24: login pages, commands of manage.py
    "treadle/storage": (25_625, 9),  # +19: labels on Redis; +6: stalled heartbeats; +13: pages of a query, for all
    "treadle/tasks": (1_444, 2),  # +65: operators, versions; +2: undos of one; +41: parameters of options functions
    "treadle/testing": (3_915, 3),  # clocks of claims; +18: children in a replay
    "treadle/worker": (7_121, 5),  # +14: clocks of hand-offs, suspects that wait; clocks of claims
    "treadle/workflow": (1_823, 5),  # +1: errors of children; +2: Django tasks; +115: rows of requests; `Approval.at`
    "treadle_testkit": (451, 0),
    "treadle_testkit/conformance": (9_145, 2),  # +11: reads at a close; +20: races of costs; +9: ids of Treadle
    "treadle_testkit/ports": (378, 0),  # +5: optional methods
}
SCRIPTS = 0  # vague names of `ui/src` and Lua
