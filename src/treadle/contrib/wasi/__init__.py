"""Runs sandboxed WebAssembly modules, bytes in and bytes out, each in its own process that can be killed."""

from treadle.contrib.wasi.sandbox import Bounds, ModuleReport, run_module

__all__ = ["Bounds", "ModuleReport", "run_module"]
