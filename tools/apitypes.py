"""Writes `ui/src/api.ts`: the TypeScript types of the HTTP API, from the document at /v1/openapi.json.

The pages use these types, so a change of the API that a page does not know fails the build. A test says when the file
is stale.

    python -m tools.apitypes           write the file
    python -m tools.apitypes --check   exit with 1 if it is stale
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from msgspec import NODEFAULT

from treadle import App
from treadle.admin.operations import Verb
from treadle.core.limit_model import WhenFull
from treadle.policy.attempts import Ended
from treadle.server import Settings
from treadle.server.app import operations_of
from treadle.server.auth.tokens import ScopeName
from treadle.server.longpoll import LongPoll
from treadle.server.openapi import describe
from treadle.server.operation import NO_BODY, Operation
from treadle.server.overview.views import Counted
from treadle.server.routes.job_messages import Status
from treadle.server.shown_payloads import Why

ROOT: Final = Path(__file__).resolve().parents[1]
FILE: Final = ROOT / "ui/src/api.ts"
HEAD: Final = """\
/** The types of the HTTP API, from its OpenAPI document. Written by `python -m tools.apitypes`.
 *
 * Durations are in seconds, instants in seconds since 1970. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
"""
WORDS: Final = {  # the literals that pages name
    "Act": Verb,
    "AttemptEnd": Ended,
    "Counted": Counted,
    "Scope": ScopeName,
    "Status": Status,
    "WhenFull": WhenFull,
    "Withheld": Why,
}
PLAIN: Final = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
NAME: Final = re.compile(r"[A-Za-z_$][\w$]*")

Schema = Mapping[str, Any]


def operations() -> list[Operation]:
    """The calls of the API, without the worker protocol, which the dashboard does not use."""
    app = App("memory://")
    found = operations_of(app._core, Settings(), LongPoll(lambda: app.storage))
    return [each for each in found if not each.path.startswith("/v1/work/")]


def sent(calls: list[Operation]) -> dict[str, set[str]]:
    """By the name of each type of an answer: the fields that a server always sends, also those with a default."""
    fields: dict[str, set[str]] = {}
    for kind in msgspec.inspect.multi_type_info([call.gives for call in calls]):
        _add_sent(kind, fields)
    return fields


def _add_sent(kind: Any, fields: dict[str, set[str]]) -> None:
    """Add the structs within a type."""
    if isinstance(kind, msgspec.inspect.StructType):
        full = f"{kind.cls.__module__}.{kind.cls.__qualname__}"
        if full in fields:
            return
        always = {field.encode_name for field in kind.fields if _is_sent(field)}
        fields[full] = fields[kind.cls.__name__] = set() if kind.cls.__struct_config__.omit_defaults else always
        for field in kind.fields:
            _add_sent(field.type, fields)
        return
    for name in ("item_type", "key_type", "value_type"):
        if hasattr(kind, name):
            _add_sent(getattr(kind, name), fields)
    for inner in (*getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
        _add_sent(inner, fields)


def _is_sent(field: msgspec.inspect.Field) -> bool:
    """Whether a field is always sent. One that may be unset has neither a default nor a factory."""
    return field.required or field.default is not NODEFAULT or field.default_factory is not NODEFAULT


def named(name: str) -> str:
    """The name of a type, without "View" at its end. Two types of one name have the names of their modules in front:
    `a.job_history.Signal`."""
    module, _, last = name.rpartition(".")
    short = last if last == "PauseView" else last.removesuffix("View")  # there is a Pause, too
    return "".join(word.title() for word in module.rpartition(".")[2].split("_")) + short


def typed(schema: Schema) -> str:
    """A JSON Schema as a type."""
    if "$ref" in schema:
        return named(str(schema["$ref"]).rpartition("/")[2])
    if "enum" in schema:
        names = [name for name, kind in WORDS.items() if set(get_args(kind)) == set(schema["enum"])]
        return names[0] if names else _words(schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " | ".join(dict.fromkeys(typed(each) for each in schema[word]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(typed({**schema, "type": each}) for each in kind)
    if kind == "array":
        return _array(schema)
    if kind == "object":
        if "properties" in schema:
            return "{ " + " ".join(fields(schema)) + " }"
        more = schema.get("additionalProperties")
        return f"{{ [name: string]: {typed(more) if isinstance(more, Mapping) else 'Json'} }}"
    return PLAIN.get(str(kind), "Json")


def _array(schema: Schema) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(typed(each) for each in schema['prefixItems'])}]"
    items = schema.get("items")
    inner = typed(items) if isinstance(items, Mapping) else "Json"
    return f"({inner})[]" if " | " in inner else f"{inner}[]"


def _words(values: Iterable[str]) -> str:
    return " | ".join(sorted(json.dumps(value) for value in values))


def fields(schema: Schema, always: Iterable[str] = ()) -> Iterator[str]:
    """The fields of an object. `always`: those that are there although they are not required."""
    there = {*schema.get("required", ()), *always}
    for name, kind in schema["properties"].items():
        written = name if NAME.fullmatch(name) else json.dumps(name)
        yield f"{written}{'' if name in there else '?'}: {typed(kind)};"


def text() -> str:
    """The whole file."""
    calls = operations()
    document = describe(calls, "", tokens=False)
    always = sent(calls)
    parts = [HEAD, *(f"export type {name} = {_words(get_args(kind))};\n" for name, kind in WORDS.items())]
    for name, schema in sorted(document["components"]["schemas"].items()):
        if "properties" in schema:
            lines = fields(schema, always.get(name, ()))
            parts.append(f"export interface {named(name)} {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n")
        else:
            parts.append(f"export type {named(name)} = {typed(schema)};\n")
    for title, get in (("Answers", _answer), ("Bodies", _body)):
        rows = sorted((f"{each.method} {each.path}", get(each, document)) for each in calls)
        parts.append(
            f"export interface {title} {{\n"
            + "".join(f"  {json.dumps(call)}: {kind};\n" for call, kind in rows if kind)
            + "}\n"
        )
    return "\n".join(parts)


def _answer(operation: Operation, document: Schema) -> str:
    if operation.media != "application/json" or operation.status == 204:
        return ""
    found = document["paths"][operation.path][operation.method.lower()]["responses"][str(operation.status)]
    return typed(found["content"]["application/json"]["schema"])


def _body(operation: Operation, document: Schema) -> str:
    if operation.takes is NO_BODY:
        return ""
    found = document["paths"][operation.path][operation.method.lower()]["requestBody"]
    return typed(found["content"]["application/json"]["schema"])


def is_stale() -> bool:
    return not FILE.exists() or FILE.read_text() != text()


def main(words: list[str]) -> int:
    if words == ["--check"]:
        if is_stale():
            print(f"{FILE.relative_to(ROOT)} is not what the API is: run python -m tools.apitypes", file=sys.stderr)
            return 1
        return 0
    FILE.write_text(text())
    print(f"wrote {FILE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
