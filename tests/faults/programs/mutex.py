"""A mutex, or a pool of one: each device is used by one job at a time, in any process."""

from tests.faults.outside import effect
from treadle import App, Limit, current

app = App()
app.limits.declare(Limit("device", slots=1))


@app.task(options=lambda device, order: {"limits": [f"device:{device}"]})
async def print_label(device: str, order: int) -> None:
    here = current()
    await here.step("begin", effect, f"{device} begins {order}")
    await here.step("end", effect, f"{device} ends {order}")


# --- in the tests
LINES = [f"{device} {what} {order}" for order in (1, 2) for what in ("begins", "ends") for device in ("a", "b")]


async def scenario() -> None:
    specs = [print_label.options(id=f"{device}{order}").job(device, order) for order in (1, 2) for device in ("a", "b")]
    for job in await app.enqueue(specs):
        await job.result(timeout=60)


def right(effects: list[str], result: None, line: int) -> None:
    """While a process lives, an order ends before the next one of its device begins."""
    assert {*effects} == {*LINES}
    assert len(effects) - len(LINES) <= 2 * bool(line)
    for lines in (effects[:line], effects[line:]):
        for device in ("a", "b"):
            own = [effect.split()[1:] for effect in lines if effect.startswith(device)]
            if own and own[0][0] == "ends":  # of an order that began before the kill
                del own[0]
            for before, after in zip(own[::2], own[1::2], strict=False):
                assert (before[0], after) == ("begins", ["ends", before[1]])
