"""The most lines of code and vague names that each package may have.

The numbers only go down: `python -m tools.size --lower` writes those of today where they are lower. A number may be
raised by changing it here, in the commit that needs it, with the reason as a comment on its line.
"""

from __future__ import annotations

BUDGET = {  # package: (lines of code, vague names)
    "treadle": (15, 0),  # +5: `python -m treadle` next to a queue.py
    "treadle/admin": (6_177, 13),
    "treadle/app": (
        1_116,
        1,
    ),  # +18: mistyped options name app.enqueue; static methods, methods of objects; +12: an error of a mistyped option names app.enqueue; +3: real threads under gevent
    "treadle/blobs": (772, 0),
    "treadle/cli": (
        5_562,
        0,
    ),  # +76: --factory, output of any encoding, hints about another file and in words of manage.py
    "treadle/concurrency": (502, 0),  # +46: real threads under gevent and eventlet
    "treadle/contrib": (8_330, 1),  # +1: delayed jobs are due at an instant; +1: --factory of mcp
    "treadle/core": (
        2_756,
        4,
    ),  # +7: instants of a job and their range; +57: URLs of files of any name, sentences for extras, modules of Python kept
    "treadle/durable": (661, 0),
    "treadle/execution": (988, 0),
    "treadle/integrations": (3_610, 1),  # +42: sentences for missing extras, the admin in a TestCase
    "treadle/metrics": (567, 1),
    "treadle/outbox": (1_411, 0),
    "treadle/policy": (
        1_280,
        6,
    ),  # +7: an instant and its span; a verdict has no traceback; +18: a step such as */90 is refused
    "treadle/ports": (1_330, 1),
    "treadle/producer": (467, 0),
    "treadle/resources": (964, 0),
    "treadle/scheduling": (535, 0),  # +8: a paused queue keeps one tick of a schedule
    "treadle/serialization": (1_637, 0),  # +5: a coroutine that nothing awaits
    "treadle/server": (8_094, 9),
    "treadle/storage": (
        25_189,
        9,
    ),  # +56: instants by the storage's clock, on each storage; +30: a path in place of a URL, a folder in place of a file
    "treadle/tasks": (1_343, 2),  # +32: functions that no job can run are refused at the declaration
    "treadle/testing": (3_735, 3),  # +1: URLs of files of any name
    "treadle/worker": (
        6_626,
        4,
    ),  # +23: loggers that dictConfig disabled, modules of Python kept, each line of log once
    "treadle/workflow": (1_052, 1),  # +12: types of chains that mix tasks and .late
    "treadle_testkit": (451, 0),
    "treadle_testkit/conformance": (8_614, 2),  # +133: the law of instants
    "treadle_testkit/ports": (373, 0),
}
SCRIPTS = 0  # vague names of `ui/src` and Lua
