"""Changes of a program that its stored jobs do not survive."""

from __future__ import annotations

from tests.admin.code_check.programs import Case


def call(task: str, given: str = "") -> str:
    return f"await app.tasks[{task!r}].enqueue({given})"


def signature(
    what: str, old: str, new: str, given: str, *finds: str, types: str = "", new_types: str | None = None
) -> Case:
    """A change of the parameters of a task, whose name is the first word of `finds`."""
    name = "s_" + what.replace(" ", "_")
    head = f"@app.task(name={name!r})\nasync def task"
    old_types, later = types + "\n", (types if new_types is None else new_types) + "\n"
    return Case(
        what,
        f"{old_types}{head}({old}) -> None: ...",
        f"{later}{head}({new}) -> None: ...",
        call(name, given),
        tuple(f"break arguments {name}: {each}" for each in finds),
    )


ENUM = "class Colour(enum.Enum):\n    RED = 'red'\n    BLUE = 'blue'"
DATACLASS = "@dataclasses.dataclass\nclass Order:\n    id: int"
MODEL = "class Address(pydantic.BaseModel):\n    street: str"
MISSING, TYPE = "is missing: expected", "expected"

ARGUMENTS = [
    signature("a parameter without a default is new", "a: int", "a: int, b: str", "1", f"parameter 'b' {MISSING} str"),
    signature("a parameter is gone", "a: int, b: int", "a: int", "1, 2", "takes at most 1 positional arguments, got 2"),
    signature(
        "a named parameter is renamed",
        "*, to: str",
        "*, recipient: str",
        "to='x'",
        "parameter 'to' is not one of its parameters",
        f"parameter 'recipient' {MISSING}",
    ),
    signature("a parameter has another type", "a: int", "a: str", "1", "parameter 'a' expected str, got int"),
    signature(
        "two parameters do not fit", "a: int", "a: str, b: int", "1", f"parameter 'b' {MISSING}", "parameter 'a' expec"
    ),
    signature(
        "a member of an enum is gone",
        "c: Colour",
        "c: Colour",
        "Colour.BLUE",
        "parameter 'c' invalid enum value 'blue'",
        types=ENUM,
        new_types="class Colour(enum.Enum):\n    RED = 'red'",
    ),
    signature(
        "a literal is narrower",
        "a: typing.Literal['x', 'y']",
        "a: typing.Literal['x']",
        "'y'",
        "parameter 'a' invalid enum value 'y'",
    ),
    signature(
        "a dataclass has a new field",
        "o: Order",
        "o: Order",
        "Order(1)",
        "parameter 'o' object missing required field cents",
        types=DATACLASS,
        new_types=DATACLASS + "\n    cents: int",
    ),
    signature(
        "a pydantic model has a new field",
        "o: Address",
        "o: Address",
        "Address(street='x')",
        "parameter 'o' ",
        types=MODEL,
        new_types=MODEL + "\n    city: str",
    ),
    signature("a list is a dict", "a: list[int]", "a: dict[str, int]", "[1]", "parameter 'a' expected object"),
    signature("a moment is a number", "a: datetime.date", "a: int", "datetime.date(2030, 1, 1)", "parameter 'a' expec"),
    signature(
        "a number has a bound", "a: int", "a: typing.Annotated[int, msgspec.Meta(le=10)]", "11", "parameter 'a' exp"
    ),
    signature("an optional parameter is not", "a: int | None", "a: int", "None", "parameter 'a' expected int"),
    signature("more positional arguments are gone", "*a: int", "a: int", "1, 2", "takes at most 1 positional argum"),
    signature("free keywords are gone", "**a: int", "", "x=1", "parameter 'x' is not one of its parameters"),
]

TASKS = [
    Case(
        "a task is removed",
        '@app.task(name="removed")\nasync def removed() -> None: ...',
        "",
        call("removed"),
        ("break task removed: this code has no such task",),
    ),
    Case(
        "a task is renamed",
        '@app.task(name="send_letters")\nasync def send() -> None: ...',
        '@app.task(name="send_letter")\nasync def send() -> None: ...',
        call("send_letters"),
        ("break task send_letters: this code has no such task; the most similar one is 'send_letter'",),
    ),
    Case(
        "a task has another queue",
        '@app.task(name="moves", queue="old-queue")\nasync def moves() -> None: ...',
        '@app.task(name="moves", queue="new-queue")\nasync def moves() -> None: ...',
        call("moves"),
        ("break queue old-queue: no task of this code has this queue",),
    ),
    Case(
        "a scheduled job does not fit",
        '@app.task(name="later")\nasync def later(a: int) -> None: ...',
        '@app.task(name="later")\nasync def later(a: bytes) -> None: ...',
        "await app.tasks['later'].options(delay=3600).enqueue(1)",
        ("break arguments later: parameter 'a' expected",),
    ),
    Case(
        "a waiting job does not fit",
        '@app.task(name="up")\nasync def up() -> None: ...\n'
        '@app.task(name="down")\nasync def down(a: int) -> None: ...',
        '@app.task(name="up")\nasync def up() -> None: ...\n@app.task(name="down")\nasync def down() -> None: ...',
        "job = await app.tasks['up'].enqueue()\nawait app.tasks['down'].options(after=job).enqueue(1)",
        ("break arguments down: takes at most 0 positional arguments",),
    ),
    Case(
        "the codec of a task is another",
        "from treadle import DefaultCodec\nclass Own:\n"
        "    def encode(self, value): return 'own' + DefaultCodec().encode(value)\n"
        "    def decode(self, text): return DefaultCodec().decode(text[3:])\n"
        '@app.task(name="coded", codec=Own())\nasync def coded(a: int) -> None: ...',
        '@app.task(name="coded")\nasync def coded(a: int) -> None: ...',
        call("coded", "1"),
        ("break arguments coded: expected a payload of JSON",),
    ),
]

WORKFLOWS = [
    Case(
        "the job behind a chain takes no result",
        '@app.task(name="one")\nasync def one() -> int: return 1\n'
        '@app.task(name="two")\nasync def two(a: int) -> None: ...',
        '@app.task(name="one")\nasync def one() -> int: return 1\n@app.task(name="two")\nasync def two() -> None: ...',
        "await app.enqueue(chain(app.tasks['one'].job(), app.tasks['two'].job()))",
        ("break arguments two: has no positional parameter for the result of the job before it",),
    ),
    Case(
        "a stored result does not fit its annotation",
        '@app.task(name="made")\nasync def made() -> int: return 1\n'
        '@app.task(name="reads")\nasync def reads(a: int) -> None: ...',
        '@app.task(name="made")\nasync def made() -> dict[str, int]: return {}\n'
        '@app.task(name="reads")\nasync def reads(a: typing.Any) -> None: ...',
        "await app.enqueue(chain(app.tasks['made'].job(), app.tasks['reads'].options(delay=3600).job()))",
        ("break result made: a stored result that reads will read does not fit its return annotation any more",),
        runs=True,
    ),
    Case(
        "a stored result does not fit the job that gets it",
        '@app.task(name="gives")\nasync def gives() -> int: return 1\n'
        '@app.task(name="takes")\nasync def takes(a: int) -> None: ...',
        '@app.task(name="gives")\nasync def gives() -> int: return 1\n'
        '@app.task(name="takes")\nasync def takes(a: str) -> None: ...',
        "await app.enqueue(chain(app.tasks['gives'].job(), app.tasks['takes'].options(delay=3600).job()))",
        ("break result takes: the result of gives does not fit its first parameter 'a': expected str",),
        runs=True,
    ),
    Case(
        "a reducer is gone",
        '@app.reducer("summed")\ndef summed(values: list[int]) -> int: return sum(values)\n'
        '@app.task(name="part")\nasync def part() -> int: return 1',
        '@app.task(name="part")\nasync def part() -> int: return 1',
        "await app.enqueue(flow(app.tasks['part'].job(), app.tasks['part'].job(), reduce='summed'))",
        ("break reducer summed: this code has no such reducer",),
    ),
    Case(
        "the result of a child cannot be reduced",
        '@app.task(name="child")\nasync def child() -> int: return 1\n'
        '@app.task(name="parent", reduce="sum")\nasync def parent() -> int:\n'
        "    return flow(child.job(), child.options(delay=3600).job())",
        '@app.task(name="child")\nasync def child() -> list[int]: return [1]\n'
        '@app.task(name="parent", reduce="sum")\nasync def parent() -> typing.Any: ...',
        "await app.tasks['parent'].enqueue()",
        ("break result child: a stored result that parent will read",),
        runs=True,
    ),
    Case(
        "the task of a parent that has run is gone",
        '@app.task(name="leaf")\nasync def leaf() -> int: return 1\n'
        '@app.task(name="trunk")\nasync def trunk() -> int:\n    return flow(leaf.options(delay=3600).job())',
        '@app.task(name="leaf")\nasync def leaf() -> int: return 1',
        "await app.tasks['trunk'].enqueue()",
        ("break task trunk: this code has no such task",),
        runs=True,
    ),
]


def durable(what: str, name: str, old: str, new: str, *finds: str, types: str = "") -> Case:
    """A change of the body of a task whose job waits in the middle."""
    head = f"{types}\n@app.task(name={name!r})\nasync def task() -> None:\n"
    return Case(what, head + f"    {old}", head + f"    {new}", call(name), finds, runs=True)


CHARGE = "def charge() -> int: return 1\ndef pay() -> int: return 1"
WAIT = "await current().wait_for('go')"

STEPS = [
    durable(
        "a step is renamed",
        "d_renamed",
        f"await current().step('charge', charge); {WAIT}",
        f"await current().step('charge_card', charge); {WAIT}",
        "break step d_renamed: the recorded step 'charge' is not in its source any more; the most similar one is "
        "'charge_card'",
        types=CHARGE,
    ),
    durable(
        "a sleep is renamed",
        "d_sleep",
        "await current().sleep(3600, name='night')",
        "await current().sleep(3600, name='day'); await current().step('other', charge)",
        "break step d_sleep: the recorded step 'sleep:night'",
        types=CHARGE,
    ),
    durable(
        "a signal is renamed",
        "d_signal",
        "await current().wait_for('approved')",
        "await current().wait_for('confirmed')",
        "break signal d_signal: jobs wait for the signal 'approved'",
    ),
    Case(
        "the result of a step has another type",
        "def price() -> int: return 1\n"
        f'@app.task(name="d_result")\nasync def task() -> None:\n    await current().step("price", price); {WAIT}',
        "def price() -> dict[str, int]: return {}\n"
        f'@app.task(name="d_result")\nasync def task() -> None:\n    await current().step("price", price); {WAIT}',
        call("d_result"),
        ("break step d_result: the recorded result of step 'price' does not fit its function any more",),
        runs=True,
    ),
]

SCHEDULES = [
    Case(
        "the task of a stored schedule is gone",
        '@app.task(name="weekly")\nasync def weekly() -> None: ...',
        "",
        "await app.schedules.upsert('weekly-report', app.tasks['weekly'].job(), every=86_400)",
        ("break schedule weekly-report: the jobs that it makes: there is no task 'weekly' any more",),
    ),
    Case(
        "the stored call of a schedule does not fit",
        '@app.task(name="monthly")\nasync def monthly(a: int) -> None: ...',
        '@app.task(name="monthly")\nasync def monthly(a: int, b: int) -> None: ...',
        "await app.schedules.upsert('monthly-report', app.tasks['monthly'].job(1), every=86_400)",
        ("break schedule monthly-report: the jobs that it makes: monthly: parameter 'b' is missing",),
    ),
    Case(
        "a declared schedule is gone",
        '@app.cron("0 3 * * *")\n@app.task(name="nightly")\nasync def nightly() -> None: ...',
        '@app.task(name="nightly")\nasync def nightly() -> None: ...',
        "pass",
        ("note schedule nightly: this code does not declare it any more",),
    ),
    Case(
        "a declared schedule has another time",
        '@app.cron("0 4 * * *")\n@app.task(name="early")\nasync def early() -> None: ...',
        '@app.cron("0 5 * * *")\n@app.task(name="early")\nasync def early() -> None: ...',
        "pass",
        ("note schedule early: this code declares 0 5 * * *",),
    ),
]

LIMITS = [
    Case(
        "an operator has set another rule than the code",
        'app.limits.declare(Limit("crm", slots=2))',
        'app.limits.declare(Limit("crm", slots=9))',
        'await app.limits.set(Limit("crm", slots=3))',
        ("note limit crm: this code declares slots=9, and an operator has set slots=3",),
    ),
    Case(
        "a limit is declared no more",
        'app.limits.declare(Limit("erp", slots=2))',
        "",
        "pass",
        ("note limit erp: this code does not declare it any more; the stored rule (slots=2) stays in force",),
    ),
    Case(
        "jobs name a limit without a rule",
        '@app.task(name="limited", limits=["unknown-api"])\nasync def limited() -> None: ...',
        '@app.task(name="limited")\nasync def limited() -> None: ...',
        call("limited"),
        ("note limit unknown-api: jobs name this limit, and no rule is stored or declared",),
    ),
]

PLANTED = [*ARGUMENTS, *TASKS, *WORKFLOWS, *STEPS, *SCHEDULES, *LIMITS]
