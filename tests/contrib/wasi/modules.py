"""Small sandboxed modules for tests, written as text."""

from __future__ import annotations

from wasmtime import wat2wasm

_IO = """
(import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
(memory (export "memory") 20)
"""

TEXTS = {
    # stdin to stdout, a megabyte at a time
    "echo": """(func (export "_start") (loop $more
        (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 1000000))
        (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 16)))
        (i32.store (i32.const 4) (i32.load (i32.const 16)))
        (if (i32.load (i32.const 16)) (then
            (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 20))) (br $more)))))""",
    # "bad\\n" to stderr, and 3
    "fails": """(data (i32.const 64) "bad\\n") (func (export "_start")
        (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 4))
        (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 20)))
        (call $exit (i32.const 3)))""",
    "endless": '(func (export "_start") (loop $more (br $more)))',
    "bomb": """(func (export "_start") (loop $more
        (if (i32.eq (memory.grow (i32.const 100)) (i32.const -1)) (then unreachable)) (br $more)))""",
    # writes for ever
    "flood": """(func (export "_start") (loop $more
        (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 1000000))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 20))) (br $more)))""",
    # a megabyte
    "too_much": """(func (export "_start")
        (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 1000000))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 20))))""",
    "no_start": '(func (export "other"))',
}


def module(name: str) -> bytes:
    return bytes(wat2wasm(f"(module {_IO} {TEXTS[name]})"))
