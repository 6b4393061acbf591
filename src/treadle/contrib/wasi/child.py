"""The process of one module: reads an Order from stdin, writes a Report to stdout.

It is started as `python -I -m treadle.contrib.wasi.child`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import msgspec

from treadle.contrib.wasi.sandbox import ModuleReport, Order

TICK = 0.02  # s between the engine's checks of its deadline


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    _bound(order)
    report = _run(order)
    sys.stdout.buffer.write(msgspec.json.encode(report))
    sys.stdout.buffer.flush()
    os._exit(0)  # do not wait for the engine's threads


def _bound(order: Order) -> None:
    """Set limits of the operating system: file size, and CPU time in case the engine's own limit fails."""
    try:
        import resource
    except ImportError:
        return
    for kind, most in ((resource.RLIMIT_FSIZE, order.bounds.output), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (most, most))
    seconds = int(order.bounds.wall) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _bound_memory(more: int) -> None:
    """Limit further memory to `more` bytes: the compiler can take 860 MB for a module of 2 MB."""
    if sys.platform != "linux":
        return  # other systems do not count mapped memory
    import resource

    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        taken = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (taken + more, resource.RLIM_INFINITY))


def _run(order: Order) -> ModuleReport:
    import wasmtime

    deadline = time.monotonic() + order.bounds.wall
    config = wasmtime.Config()
    config.epoch_interruption = True
    engine = wasmtime.Engine(config)
    store: Any = wasmtime.Store(engine)
    store.set_limits(memory_size=order.bounds.memory, table_elements=100_000, instances=10, tables=10, memories=1)
    store.set_epoch_deadline(max(1, int(order.bounds.wall / TICK)))
    wasi = wasmtime.WasiConfig()
    wasi.stdin_file, wasi.stdout_file, wasi.stderr_file = order.stdin, order.stdout, order.stderr
    store.set_wasi(wasi)
    threading.Thread(target=_tick, args=(engine,), daemon=True).start()
    try:
        linker = wasmtime.Linker(engine)
        linker.define_wasi()
        _bound_memory(order.bounds.compiler)
        module = wasmtime.Module.from_file(engine, order.module)
        _bound_memory(order.bounds.memory + order.bounds.compiler)
        start: Any = linker.instantiate(store, module).exports(store).get("_start")
        if start is None:
            return ModuleReport(trap="expected a module with a _start function")
        start(store)
    except wasmtime.ExitTrap as error:
        return ModuleReport(exit_code=int(error.code))
    except wasmtime.Trap as error:
        if error.trap_code is wasmtime.TrapCode.INTERRUPT:
            return ModuleReport(timed_out=True)
        return ModuleReport(trap=_first(error.message))
    except wasmtime.WasmtimeError as error:
        late = time.monotonic() >= deadline
        return ModuleReport(timed_out=True) if late else ModuleReport(trap=_first(str(error)))
    return ModuleReport(exit_code=0)


def _tick(engine: Any) -> None:
    while True:
        time.sleep(TICK)
        engine.increment_epoch()


def _first(text: str) -> str:
    """The engine's error text without the module's stack."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "wasm backtrace" not in line]
    named = [line for line in lines if not line[:1].isdigit() or ":" not in line[:4]]
    return " ".join(named)[:500] or "stopped by the engine"


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()
