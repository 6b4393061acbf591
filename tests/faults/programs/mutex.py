"""A mutex: each device is used by one job at a time, in any process. A job may die while it uses a device."""

from tests.faults.outside import effect
from treadle import App, current

app = App()


@app.task
async def print_label(device: str, order: int) -> None:
    here = current()
    async with here.lock(f"device:{device}") as number:
        await here.step("begin", effect, f"{device} begins {order} {number}")
        await here.sleep(0.1)
        await here.step("end", effect, f"{device} ends {order} {number}")


# --- in the tests
LINES = [f"{device} {what} {order}" for order in (1, 2) for what in ("begins", "ends") for device in ("a", "b")]


async def scenario() -> None:
    orders = [(device, order) for order in (1, 2) for device in ("a", "b")]
    specs = [print_label.options(id=f"{device}{order}").job(device, order) for device, order in orders]
    for job in await app.enqueue(specs):
        await job.result(timeout=60)


def right(effects: list[str], result: None, line: int) -> None:
    """An order ends before the next one of its device begins, also over a kill, and the numbers rise."""
    assert {effect.rpartition(" ")[0] for effect in effects} == {*LINES}
    assert len(effects) - len(LINES) <= 2 * bool(line)
    for device in ("a", "b"):
        own = list(dict.fromkeys(effect for effect in effects if effect.startswith(device)))  # without repetitions
        words = [effect.split()[1:] for effect in own]
        assert [what for what, _, _ in words] == ["begins", "ends"] * 2
        assert all(begin[1:] == end[1:] for begin, end in zip(words[::2], words[1::2], strict=True))
        numbers = [int(number) for _, _, number in words[::2]]
        assert numbers == sorted(set(numbers))
