"""The most lines of code and vague names that each package may have.

The numbers only go down: `python -m tools.size --lower` writes those of today where they are lower. A number may be
raised by changing it here, in the commit that needs it, with the reason as a comment on its line.
"""

from __future__ import annotations

BUDGET = {  # package: (lines of code, vague names)
    "treadle": (15, 0),  # +5: `python -m treadle` next to a queue.py
    "treadle/admin": (6_672, 13),  # +21: versions, pdb; +53: patches; pause, rerun and fork of a job (+169)
    "treadle/app": (1_137, 1),  # +10: versions, pdb; the same in app.sync (+4)
    "treadle/blobs": (772, 0),
    "treadle/cli": (5_764, 0),  # +32: versions, pdb; +8: patches; jobs rerun, fork, pause, resume (+55)
    "treadle/concurrency": (502, 0),  # +46: real threads under gevent and eventlet
    "treadle/contrib": (8_348, 1),  # --factory; +1: delayed jobs are due at an instant; +1: --factory of mcp
    "treadle/core": (2_846, 4),  # +11: versions, pdb; a paused job (+2)
    "treadle/durable": (1_314, 0),  # +1: versions, pdb; +37: patches; a rewound history (+99)
    "treadle/execution": (1_062, 0),  # +6: versions, pdb; +4: patches; the typed calls of a step; +23: restart
    "treadle/integrations": (3_610, 1),  # +42: sentences for missing extras, the admin in a TestCase
    "treadle/metrics": (567, 1),
    "treadle/outbox": (1_411, 0),
    "treadle/policy": (1_458, 6),  # +3: versions, pdb; a paused job (+102)
    "treadle/ports": (1_444, 1),  # +115: the head of a journal, which finds cut and deleted files; reserved stores
    "treadle/producer": (466, 0),  # +1: empty lists by annotation; list[int]() takes 0.5 us more than []
    "treadle/resources": (965, 0),
    "treadle/scheduling": (541, 0),  # +6: whole rows; +8: a paused queue keeps one tick of a schedule
    "treadle/serialization": (2_245, 0),  # +407: hooks of classes, a comparison of values, cycles; +89: defaults
    "treadle/server": (8_166, 9),  # pause, resume, rerun, fork (+60)
    "treadle/storage": (25_443, 9),  # +35: pages without steps; a round at a reopening (+9)
    "treadle/tasks": (1_414, 2),  # +7: versions; +54: versions, pdb; Retry.then (+4)
    "treadle/testing": (3_805, 3),  # +23: versions, pdb; +38: calls that change their mind, restarts
    "treadle/worker": (6_667, 4),  # +15: versions, pdb; the event paused (+3)
    "treadle/workflow": (1_053, 1),  # +12: types of chains that mix tasks and .late; +1: signals of a round
    "treadle_testkit": (451, 0),
    "treadle_testkit/conformance": (8_737, 2),  # +42: laws of rounds, pauses, pages
    "treadle_testkit/ports": (378, 0),  # +5: optional methods
}
SCRIPTS = 0  # vague names of `ui/src` and Lua
