"""The most lines of code and vague names that each package may have.

The numbers only go down: `python -m tools.size --lower` writes those of today where they are lower. A number may be
raised by changing it here, in the commit that needs it, with the reason as a comment on its line.
"""

from __future__ import annotations

BUDGET = {  # package: (lines of code, vague names)
    "treadle": (15, 0),  # +5: `python -m treadle` next to a queue.py
    "treadle/admin": (6_492, 13),  # +65: cleanups in cancel, retry and explain
    "treadle/app": (1_122, 1),  # methods of objects; threads under gevent; mistyped options name app.enqueue
    "treadle/blobs": (772, 0),
    "treadle/cli": (5_672, 0),  # +3: cancel --force
    "treadle/concurrency": (502, 0),  # +46: real threads under gevent and eventlet
    "treadle/contrib": (8_348, 1),  # --factory; +1: delayed jobs are due at an instant; +1: --factory of mcp
    "treadle/core": (2_833, 4),  # URLs of files; results of Any | None; +2: restarts; instants of a job
    "treadle/durable": (1_421, 0),  # +244: undos and cleanup runs; +35: restart, warnings, codecs once a run
    "treadle/execution": (1_085, 0),  # +34: runs of cleanup jobs, on_undo
    "treadle/integrations": (3_610, 1),  # +42: sentences for missing extras, the admin in a TestCase
    "treadle/metrics": (567, 1),
    "treadle/outbox": (1_411, 0),
    "treadle/policy": (1_453, 6),  # +100: the rows of cleanup jobs
    "treadle/ports": (1_444, 1),  # +115: the head of a journal, which finds cut and deleted files; reserved stores
    "treadle/producer": (466, 0),  # +1: empty lists by annotation; list[int]() takes 0.5 us more than []
    "treadle/resources": (965, 0),
    "treadle/scheduling": (541, 0),  # +6: whole rows; +8: a paused queue keeps one tick of a schedule
    "treadle/serialization": (2_245, 0),  # +407: hooks of classes, a comparison of values, cycles; +89: defaults
    "treadle/server": (8_125, 9),  # +19: checks of cleanup rows
    "treadle/storage": (
        25_434,
        9,
    ),  # +35: pages without steps; +31: ranges of imported lines; +109: checkpoints apart from the rows
    "treadle/tasks": (1_349, 2),  # +5: arguments of a restart
    "treadle/testing": (3_783, 3),  # +1: a check of a replay
    "treadle/worker": (6_754, 4),  # +105: cleanup jobs
    "treadle/workflow": (1_119, 1),  # +66: cleanups of cancelled and reopened jobs
    "treadle_testkit": (451, 0),
    "treadle_testkit/conformance": (8_720, 2),  # +9: ids of Treadle in another queue; +97: laws of checkpoints
    "treadle_testkit/ports": (378, 0),  # +5: optional methods
}
SCRIPTS = 0  # vague names of `ui/src` and Lua
