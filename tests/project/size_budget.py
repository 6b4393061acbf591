"""The most lines of code and vague names that each package may have.

The numbers only go down: `python -m tools.size --lower` writes those of today where they are lower. A number may be
raised by changing it here, in the commit that needs it, with the reason as a comment on its line.
"""

from __future__ import annotations

BUDGET = {  # package: (lines of code, vague names)
    "treadle": (15, 0),  # +5: `python -m treadle` next to a queue.py
    "treadle/admin": (6_678, 13),  # +46: imports, explain; +65: cleanups in cancel, retry and explain
    "treadle/app": (1_125, 1),  # methods of objects; threads under gevent; mistyped options name app.enqueue
    "treadle/blobs": (772, 0),
    "treadle/cli": (5_707, 0),  # +104: closed streams, `storage export` and `import`; --factory; +3: cancel --force
    "treadle/concurrency": (507, 0),  # +46: real threads under gevent and eventlet
    "treadle/contrib": (8_345, 1),  # --factory; +1: delayed jobs are due at an instant; +1: --factory of mcp
    "treadle/core": (2_851, 4),  # URLs of files; results of Any | None; +2: restarts; instants of a job
    "treadle/durable": (2_524, 1),  # +244: undos and cleanup runs; +35: restart, warnings, codecs once a run
    "treadle/execution": (1_226, 0),  # +34: runs of cleanup jobs, on_undo; the typed calls of a step
    "treadle/integrations": (3_610, 1),  # +42: sentences for missing extras, the admin in a TestCase
    "treadle/metrics": (567, 1),
    "treadle/outbox": (1_411, 0),
    "treadle/policy": (1_470, 6),  # +42: rounds of a restarted job; +100: the rows of cleanup jobs
    "treadle/ports": (1_444, 1),  # +115: the head of a journal, which finds cut and deleted files; reserved stores
    "treadle/producer": (466, 0),  # +1: empty lists by annotation; list[int]() takes 0.5 us more than []
    "treadle/resources": (965, 0),
    "treadle/scheduling": (541, 0),  # +6: whole rows; +8: a paused queue keeps one tick of a schedule
    "treadle/serialization": (2_245, 0),  # +407: hooks of classes, a comparison of values, cycles; +89: defaults
    "treadle/server": (8_485, 9),  # +10: `at_most` and the key of an operation; +253: steps of runners and messages
    "treadle/storage": (25_453, 9),  # +35: pages without steps; +31: ranges of imported lines; +2: too long names
    "treadle/tasks": (1_352, 2),  # +5: arguments of a restart
    "treadle/testing": (3_803, 3),  # +38: calls that change their mind, restarts; +1: a check of a replay
    "treadle/worker": (6_778, 4),  # +12: look-only storages, suspects, restarts; +102: cleanup jobs; +105: cleanup jobs
    "treadle/workflow": (1_276, 1),  # +66: cleanups of cancelled and reopened jobs
    "treadle_testkit": (451, 0),
    "treadle_testkit/conformance": (8_734, 2),  # +9: ids of Treadle in another queue; +97: laws of checkpoints
    "treadle_testkit/ports": (378, 0),  # +5: optional methods
}
SCRIPTS = 0  # vague names of `ui/src` and Lua
