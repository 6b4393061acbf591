"""Running sandboxed WebAssembly: a module with bytes in and bytes out, in a process of its own that can be killed."""

from treadle.wasi.sandbox import Bounds, Report, run_module

__all__ = ["Bounds", "Report", "run_module"]
