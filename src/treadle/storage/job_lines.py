"""Writes the content of a storage as lines of JSON, and reads such lines. Pure; `admin/storage_file.py` has the files.

A text that is JSON is a part of its line as JSON, byte for byte; any other text is written as {"$text": "..."}.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict, fields

from treadle.core.errors import UNREADABLE, TooLarge
from treadle.core.limit_model import LimitFacts
from treadle.core.model import NewJob, Record
from treadle.core.plain_json import read_json, refuse_unbounded
from treadle.core.query_model import MetricsRow
from treadle.core.ranges import COUNT, FAR, a_count, a_span, check_change, check_job, check_metrics
from treadle.storage.transfer import Carried, Chunk, Rate

VERSION: Final = 1  # a higher number follows when a reader of this version would misread a line


class Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line. `began_at`: the storage's time when the export began, seconds since 1970."""

    version: int
    storage: str
    began_at: float


class End(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last line. `changed`: jobs changed while they were read, so the lines are not of one moment."""

    jobs: int
    changed: bool


class _Text(Struct, frozen=True, rename={"text": "$text"}, forbid_unknown_fields=True):
    text: str


Line = Header | End | LimitFacts | Rate | MetricsRow | Carried
KINDS: Final[Mapping[str, Any]] = {
    "export": Header,
    "limit": LimitFacts,
    "rate": Rate,
    "metrics": MetricsRow,
    "end": End,
}
JOB: Final = "job"
# The fields that hold a text, and those that are written even when they have their default, because filters name them.
_TEXTS: Final = {NewJob: {"payload", "retry"}, Record: {"result", "value", "note"}}
_ALWAYS: Final = {NewJob: {"id", "task", "queue", "payload"}, Record: {"version", "state", "attempt", "created_at"}}
_DEFAULTS: Final = {kind: {field.name: field.default for field in fields(kind)} for kind in (NewJob, Record, Carried)}
_OF_LINE: Final = _DEFAULTS[Record].keys() | _DEFAULTS[Carried].keys() - {"record"} | {"kind"}
# The fields of a record that every storage has room for up to COUNT and FAR.
_COUNTS: Final = ("version", "pending", "attempt", "lost", "reopenings")
_MOMENTS: Final = tuple(field.name for field in fields(Record) if field.name.endswith("_at"))
_POSITIONS: Final = ("queue_position", "return_position")
_FARTHEST: Final = 1_000 * FAR  # of a position: aging moves it away from the instant

_encode: Final = msgspec.json.Encoder().encode
_parts: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_wrapped: Final = msgspec.json.Decoder(_Text).decode
_string: Final = msgspec.json.Decoder(str).decode
_carried: Final = msgspec.json.Decoder(Carried).decode


# --- write


def line_of(kind: str, value: Header | End | LimitFacts | Rate | MetricsRow) -> bytes:
    return _encode({"kind": kind, **_parts(_encode(value))}) + b"\n"


def lines_of(chunk: Chunk) -> Iterator[bytes]:
    """The lines of one chunk. Storages that hold the same give the same lines, in an order of their own."""
    for facts in sorted(chunk.rules, key=lambda facts: facts.name):
        yield line_of("limit", facts)
    for rate in sorted(chunk.rates, key=lambda rate: rate.key):
        sums = Counter[float]()
        for moment, cost in rate.starts:
            sums[moment] += cost
        yield line_of("rate", Rate(rate.key, tuple(sorted(sums.items())), rate.tokens, rate.at))
    for row in chunk.metrics:
        yield line_of("metrics", row)
    for carried in chunk.jobs:
        yield _job_line(carried)


def _job_line(carried: Carried) -> bytes:
    record = carried.record
    row = {"job": _written(record.job), **_written(record)}
    if record.checkpoints:
        row["checkpoints"] = {name: _json(text) for name, text in record.checkpoints}
    if carried.edges:
        row["edges"] = sorted(carried.edges, key=lambda edge: edge.up)
    if carried.holds_key:
        row["holds_key"] = True
    if carried.behind is not None:
        row["behind"] = carried.behind
    return _encode({"kind": JOB, **row}) + b"\n"


def _written(value: NewJob | Record) -> dict[str, Any]:
    """The fields of a struct that differ from their defaults, and those that are always written."""
    texts, always, defaults = _TEXTS[type(value)], _ALWAYS[type(value)], _DEFAULTS[type(value)]
    return {
        name: _json(part) if name in texts and part is not None else part
        for name, part in asdict(value).items()
        if name not in ("job", "checkpoints") and (name in always or part != defaults[name])
    }


def _json(text: str) -> Raw | _Text:
    """The text as a part of a line."""
    if "\n" in text or "\r" in text or text != text.strip():
        return _Text(text)
    try:
        read_json(text)
    except UNREADABLE:
        return _Text(text)
    return _Text(text) if _is_wrapped(text.encode()) else Raw(text.encode())


def _is_wrapped(text: bytes) -> bool:
    """Whether a reader would take this JSON for a text that is no JSON."""
    return text.startswith(b"{") and b'$text"' in text


# --- read


def read_line(line: bytes) -> Line:
    """One line. Raises ValueError with the reason: it is not a line of an export of this version, or has a bad
    value."""
    try:
        refuse_unbounded(line)
        parts = _parts(line)
        kind = _string(parts["kind"]) if "kind" in parts else ""
        if kind == JOB:
            return _read_job(parts)
        if kind not in KINDS:
            raise ValueError(f"expected the kind job, {', '.join(KINDS)}; found {kind or 'none'}")
        del parts["kind"]
        _refuse_unknown(parts, {field.name for field in fields(KINDS[kind])})
        value: Line = msgspec.json.decode(_encode(parts), type=KINDS[kind])
        _check_ranges(value)
    except (*UNREADABLE, TooLarge) as error:
        raise ValueError(str(error)) from error
    return value


def _read_job(parts: dict[str, Raw]) -> Carried:
    _refuse_unknown(parts, _OF_LINE)
    job = _parts(parts.pop("job", Raw(b"{}")))
    _refuse_unknown(job, _DEFAULTS[NewJob].keys())
    record = {name: part for name, part in parts.items() if name in _DEFAULTS[Record]}
    for row, names in ((job, _TEXTS[NewJob]), (record, _TEXTS[Record])):
        row.update({name: _quoted(row[name]) for name in names & row.keys()})
    whole: dict[str, Any] = {**record, "job": job}
    if "checkpoints" in parts:
        whole["checkpoints"] = [(name, _quoted(part)) for name, part in _parts(parts["checkpoints"]).items()]
    rest = {name: parts[name] for name in _DEFAULTS[Carried].keys() & parts.keys()}
    carried = _carried(_encode({**rest, "record": whole}))
    check_job(carried.record.job)
    for name in _COUNTS:
        a_count(name, getattr(carried.record, name), 0, COUNT)
    a_count("failures_allowed", carried.record.failures_allowed, -COUNT, COUNT)
    for name in _MOMENTS:
        a_span(name, getattr(carried.record, name), -FAR, FAR)
    for name in _POSITIONS:
        a_span(name, getattr(carried.record, name), -_FARTHEST, _FARTHEST)
    for edge in carried.edges:
        a_count("edges", edge.version, 0, COUNT)
    if carried.holds_key and carried.record.job.key is None:
        raise ValueError("expected a key, because holds_key is true; found none")
    return carried


def _check_ranges(value: Line) -> None:
    """Raise BadOption or TooLarge for a value that a storage would refuse when a part of the file is imported."""
    if isinstance(value, LimitFacts):
        for change in (value.set, value.declared, *value.pauses):
            if change is not None:
                check_change(change)
    elif isinstance(value, Rate):
        for moment, cost in value.starts:
            a_span("starts", moment, -FAR, FAR)
            a_count("starts", cost, 0, COUNT)
        a_span("tokens", value.tokens, -FAR, FAR)
        a_span("at", value.at, -FAR, FAR)
    elif isinstance(value, MetricsRow):
        check_metrics(value)
    elif isinstance(value, End):
        a_count("jobs", value.jobs, most=2**53)


def _refuse_unknown(parts: Mapping[str, object], known: Any) -> None:
    if extra := sorted(parts.keys() - known):
        raise ValueError(f"unknown field {extra[0]!r}; a newer Treadle may have written it")


def _quoted(part: Raw) -> Raw:
    """The JSON string of the text that is written as this part of a line."""
    text = bytes(part)
    if _is_wrapped(text):
        try:
            return Raw(_encode(_wrapped(text).text))
        except UNREADABLE:
            pass
    return Raw(_encode(text.decode()))
