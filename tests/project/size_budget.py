"""The most lines of code and vague names that each package may have.

The numbers only go down: `python -m tools.size --lower` writes those of today where they are lower. A number may be
raised by changing it here, in the commit that needs it, with the reason as a comment on its line.
"""

from __future__ import annotations

BUDGET = {  # package: (lines of code, vague names)
    "treadle": (15, 0),  # +5: `python -m treadle` next to a queue.py
    "treadle/admin": (7_075, 13),  # suspects that wait; +16: children, values of cleanups
    "treadle/app": (1_144, 1),  # transactions of frameworks; mistyped options name app.enqueue; +9: operators, versions
    "treadle/blobs": (772, 0),
    "treadle/cli": (5_264, 0),  # steps of ended jobs; --factory; +3: cancel --force; +95: operators, versions
    "treadle/concurrency": (507, 0),  # +51: real threads under gevent and eventlet, and a loop that greenlets wake
    "treadle/contrib": (8_856, 1),  # +512: the demo, which was in cli; +2: paused jobs; --factory
    "treadle/core": (2_894, 4),  # commands of manage.py; +2: restarts; instants of a job; +13: operators, versions
    "treadle/durable": (3_908, 0),  # clocks of claims; +92: short waits, replays; +52: forks, limits
    "treadle/execution": (1_290, 0),  # clocks of claims; restart; operators; +6: current().sync in threads
    "treadle/integrations": (3_761, 1),  # keys at the commit; login pages; login pages; commands of manage.py
    "treadle/metrics": (567, 1),
    "treadle/outbox": (1_413, 0),  # commands of manage.py
    "treadle/policy": (1_644, 6),  # suspects that wait; +2: reasons of deferrals, tries; clocks of claims
    "treadle/ports": (1_444, 1),  # +115: the head of a journal, which finds cut and deleted files; reserved stores
    "treadle/producer": (538, 0),  # transactions of frameworks; +2: empty lists by annotation, storages let go
    "treadle/resources": (962, 0),
    "treadle/scheduling": (529, 0),  # +6: whole rows; +8: a paused queue keeps one tick of a schedule
    "treadle/serialization": (2_225, 0),  # calls in a chain; +407: hooks of classes, a comparison of values, cycles
    "treadle/server": (8_526, 9),  # login pages; commands of manage.py; clocks of claims
    "treadle/storage": (25_337, 9),  # stalled heartbeats; +48: pages, without steps
    "treadle/tasks": (1_437, 2),  # +41: parameters of options functions; +5: arguments of a restart
    "treadle/testing": (3_890, 3),  # clocks of claims; +18: children in a replay
    "treadle/worker": (6_901, 4),  # clocks of logs; clocks of claims, hand-offs; suspects that wait
    "treadle/workflow": (1_482, 1),  # errors of children; +10: who ends with a parent; +32: messages that go together
    "treadle_testkit": (451, 0),
    "treadle_testkit/conformance": (8_791, 2),  # +11: reads at a close; +20: operators, versions; +9: ids of Treadle
    "treadle_testkit/ports": (378, 0),  # +5: optional methods
}
SCRIPTS = 0  # vague names of `ui/src` and Lua
