"""The tools that act. Each answers with a preview and a code first, and acts when it is called with that code.

The assistant, and the person who watches it, see the preview before the act happens. A code is valid once, for ten
minutes, for the same act with the same arguments.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from treadle.admin import Operation
from treadle.contrib.mcp.calls import CallRefused, Calls
from treadle.core.clock import monotonic

if TYPE_CHECKING:
    from treadle.app import App

VALID: Final = 600.0  # s that a code is valid
CODES: Final = 100  # codes that are valid at once; older ones are dropped
PATIENCE: Final = 20.0  # s to wait for the end of an operation

_TEXT: Final = {"type": "string", "minLength": 1}
CONFIRM: Final = {
    **_TEXT,
    "description": "The code of the preview. Without a code the answer says what would happen, and has the code.",
}
FILTERS: Final = ("status", "q", "task", "queue", "workflow", "parent", "label", "since", "before")
CHOICE: Final = {
    "ids": {"type": "array", "items": _TEXT, "maxItems": 1000, "description": "these jobs"},
    "group": {**_TEXT, "description": "the `key` of a group of list_failures; for retry and delete"},
    **{name: {"type": "number" if name in ("since", "before") else "string"} for name in FILTERS},
    "tree": {"type": "boolean", "default": True, "description": "cancel also the children"},
    "confirm": CONFIRM,
}
QUEUE: Final = {"queue": {**_TEXT, "description": "the queue"}, "confirm": CONFIRM}
SIGNAL: Final = {
    "id": {**_TEXT, "description": "the job"},
    "name": {**_TEXT, "description": "the signal"},
    "value": {"description": "any JSON value; null by default"},
    "confirm": CONFIRM,
}
DECISION: Final = {
    "id": {**_TEXT, "description": "the `id` of a request of list_approvals"},
    "approved": {"type": "boolean", "description": "true: approve, false: reject"},
    "reason": {"type": "string", "description": "the reason, in the words of the person"},
    "confirm": CONFIRM,
}
OUTPUT: Final = {
    "type": "object",
    "properties": {
        "acted": {"type": "boolean", "description": "false: this is a preview, and nothing has changed"},
        "words": {"type": "string", "description": "the act in words: as it would be, or as it was"},
        "confirm": {
            "type": "string",
            "description": "call the tool again with the same arguments and this code to act",
        },
        "matches": {"type": "integer", "description": "how many jobs it is about now"},
        "capped": {"type": "boolean", "description": "there are more; the act is bounded by `matches`"},
        "samples": {"type": "array", "items": {"type": "object"}, "description": "the first five jobs, or the request"},
        "operation": {"type": "object", "description": "the operation: state, done, passed_over by reason, error"},
        "warning": {"type": "string"},
        "truncated": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["acted", "words"],
}


class Acting(Struct, frozen=True):
    """One tool. properties: its arguments; required: the names of those without a default."""

    name: str
    description: str
    properties: Mapping[str, Any]
    required: tuple[str, ...] = ()

    def input_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
            "additionalProperties": False,
        }


TOOLS: Final = (
    Acting("retry", "Retry failed jobs: by ids, by group of failures, or by filter.", CHOICE),
    Acting("cancel", "Cancel unfinished jobs: by ids or by filter.", CHOICE),
    Acting("run_now", "Queue scheduled jobs at once: by ids or by filter.", CHOICE),
    Acting("delete", "Delete ended jobs: by ids, by group of failures, or by filter.", CHOICE),
    Acting("pause_queue", "Stop claims from a queue. Running jobs go on.", QUEUE, ("queue",)),
    Acting("resume_queue", "Resume claims from a paused queue.", QUEUE, ("queue",)),
    Acting(
        "decide",
        "Approve or reject a request for approval, as the person has decided.",
        DECISION,
        ("id", "approved"),
    ),
    Acting("signal", "Send a signal with a value to a job that waits for it.", SIGNAL, ("id", "name")),
)


class Previewed(NamedTuple):
    """The bounds of an act: the jobs that were created before its preview, and their number then."""

    created_before: float
    at_most: int | None = None


class Codes:
    """The codes of previews. `clock` is for tests."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[bytes, Previewed, float]] = {}

    def new(self, name: str, arguments: Mapping[str, Any], previewed: Previewed) -> str:
        """A code for this act on the jobs of the preview."""
        code = secrets.token_urlsafe(9)
        self._known[code] = (_identity(name, arguments), previewed, self._clock() + VALID)
        for old in list(self._known)[:-CODES]:
            del self._known[old]
        return code

    def take(self, code: str, name: str, arguments: Mapping[str, Any]) -> Previewed:
        """The bounds of the act. Raises CallRefused for a code that is unknown, too old, or of another act."""
        identity, previewed, ends = self._known.pop(code, (b"", Previewed(0.0), 0.0))
        if ends <= self._clock():
            raise CallRefused("this code is not valid, or not any more: call the tool without `confirm` for a preview")
        if identity != _identity(name, arguments):
            raise CallRefused("this code is for another act: call the tool without `confirm` for a preview of this one")
        return previewed


def _identity(name: str, arguments: Mapping[str, Any]) -> bytes:
    kept = {key: value for key, value in arguments.items() if key != "confirm"}
    return msgspec.json.encode([name, kept], order="sorted")


class Actor:
    """Runs the tools of `TOOLS`."""

    def __init__(self, app: App, calls: Calls) -> None:
        self._core, self._calls, self._codes = app._core, calls, Codes()
        self._ended: dict[str, asyncio.Event] = {}
        self._core.operations.listen(self._hear)

    async def run(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The preview or the result. Raises CallRefused."""
        code = arguments.get("confirm")
        if code is None:
            preview = await self._preview(name, arguments)
            previewed = Previewed(self._core.now(), preview.get("matches") or None)
            preview["confirm"] = self._codes.new(name, arguments, previewed)
            return {"acted": False, **preview}
        return {"acted": True, **await self._act(name, arguments, self._codes.take(str(code), name, arguments))}

    async def _preview(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if name in ("pause_queue", "resume_queue"):
            return await self._preview_queue(name, str(arguments["queue"]))
        if name == "decide":
            request = await self._calls("GET", "/v1/approvals/{id}", parts={"id": str(arguments["id"])})
            verb = "approved" if arguments["approved"] else "rejected"
            whose = f"the request {request['name']!r} of job {request['job']} ({request['task']!r})"
            return {"words": f"{whose}, which is {request['state']}, would be {verb}", "samples": [request]}
        if name == "signal":
            job = await self._calls("GET", "/v1/jobs/{id}", parts={"id": str(arguments["id"])})
            which = f"the job {job['id']} of {job['task']!r}, which is {job['state']}"
            return {"words": f"the signal {arguments['name']!r} would be sent to {which}"}
        body = _body_of(name, arguments, self._core.now())
        preview = await self._calls("POST", "/v1/operations", body={**body, "dry": True}, scope="operate")
        sentence = f"{name} would be applied to: {preview['words']}"
        return {
            **{key: preview[key] for key in ("matches", "capped", "samples", "warning") if key in preview},
            "words": sentence,
        }

    async def _preview_queue(self, name: str, queue: str) -> dict[str, Any]:
        overview = await self._calls("GET", "/v1/overview")
        row = next((row for row in overview["queues"] if row["name"] == queue), None)
        done = "paused" if name == "pause_queue" else "resumed"
        if row is None:
            return {"words": f"queue {queue!r} would be {done}; no jobs or workers use it now"}
        state = "paused" if row["paused"] else "open"
        jobs = f"{row['queued']:,} jobs are queued, {row['running']:,} run"
        return {"words": f"queue {queue!r} would be {done}; it is {state}, {jobs}"}

    async def _act(self, name: str, arguments: Mapping[str, Any], previewed: Previewed) -> dict[str, Any]:
        if name in ("pause_queue", "resume_queue"):
            verb = name.partition("_")[0]
            parts = {"name": str(arguments["queue"])}
            answer = await self._calls("POST", f"/v1/queues/{{name}}/{verb}", parts=parts, scope="operate")
            return {"words": f"queue {arguments['queue']!r} is {verb}d", **answer}
        if name == "decide":
            body = {"approved": arguments["approved"], "reason": arguments.get("reason", "")}
            parts = {"id": str(arguments["id"])}
            decision = await self._calls("POST", "/v1/approvals/{id}/decide", parts=parts, body=body, scope="operate")
            return {"words": f"the request is {'approved' if decision['approved'] else 'rejected'}"}
        if name == "signal":
            body = {"name": arguments["name"], "value": arguments.get("value")}
            parts = {"id": str(arguments["id"])}
            answer = await self._calls("POST", "/v1/jobs/{id}/signal", parts=parts, body=body, scope="operate")
            warning = {"warning": answer["warning"]} if "warning" in answer else {}
            return {"words": f"the signal {arguments['name']!r} was sent", **warning}
        body = {**_body_of(name, arguments, previewed.created_before), "at_most": previewed.at_most}
        begun = await self._calls("POST", "/v1/operations", body=body, scope="operate")
        operation = await self._end_of(begun["id"])
        return {"words": _outcome(name, operation), "operation": operation}

    async def _end_of(self, id: str) -> dict[str, Any]:
        """Wait until the operation has ended, for 20 s at most -> its current state."""
        ended = self._ended.setdefault(id, asyncio.Event())
        try:
            async with asyncio.timeout(PATIENCE):
                await ended.wait()
        except TimeoutError:
            pass
        finally:
            self._ended.pop(id, None)
        operation = await self._calls("GET", "/v1/operations/{id}", parts={"id": id}, scope="operate")
        return dict(operation)

    def _hear(self, operation: Operation, _: tuple[str, ...]) -> None:
        if operation.ended_at is not None:
            self._ended.setdefault(operation.id, asyncio.Event()).set()


def _body_of(name: str, arguments: Mapping[str, Any], created_before: float) -> dict[str, Any]:
    """The body of an operation. Jobs created later are left alone."""
    body: dict[str, Any] = {"act": name, "created_before": created_before, "tree": arguments.get("tree", True)}
    filters = {key: arguments[key] for key in FILTERS if arguments.get(key) is not None}
    if arguments.get("ids") is not None:
        body["ids"] = arguments["ids"]
    if arguments.get("group") is not None:
        body["group"] = {"key": arguments["group"]}
    if filters:
        body["filter"] = filters
    if not {"ids", "group", "filter"} & body.keys():
        raise CallRefused("expected ids, group, or a filter such as queue or status")
    return body


def _outcome(name: str, operation: Mapping[str, Any]) -> str:
    passed_over = "".join(f"; {count:,} left: {reason}" for reason, count in operation["passed_over"].items())
    state = "" if operation["state"] == "done" else f" ({operation['state']})"
    return f"{name}: {operation['done']:,} jobs changed{passed_over}{state}"
