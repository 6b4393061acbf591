"""Writes `ui/src/openapi.ts`: the TypeScript types of the HTTP API, from the document at /v1/openapi.json.

`ui/src/api.check.ts` compares them with the types that the dashboard uses, so a change of the API that the dashboard
does not know fails its build. A test says when the file is stale.

    python -m tools.apitypes           write the file
    python -m tools.apitypes --check   exit with 1 if it is stale
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from treadle import App
from treadle.server import Settings
from treadle.server.app import operations_of
from treadle.server.longpoll import LongPoll
from treadle.server.openapi import describe
from treadle.server.operation import NO_BODY, Operation

ROOT: Final = Path(__file__).resolve().parents[1]
FILE: Final = ROOT / "ui/src/openapi.ts"
HEAD: Final = "/** The types of the HTTP API, from its OpenAPI document. Written by `python -m tools.apitypes`. */\n"
PLAIN: Final = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
NAME: Final = re.compile(r"[A-Za-z_$][\w$]*")

Schema = Mapping[str, Any]


def operations() -> list[Operation]:
    """The calls of the API, without the worker protocol, which the dashboard does not use."""
    app = App("memory://")
    found = operations_of(app._core, Settings(), LongPoll(lambda: app.storage))
    return [each for each in found if not each.path.startswith("/v1/work/")]


def complete(found: list[Operation]) -> set[str]:
    """The names of the types of which a server always sends every field, also those with a default."""
    names = set[str]()
    for kind in msgspec.inspect.multi_type_info([each.gives for each in found]):
        names |= _structs(kind, set())
    return names


def _structs(kind: Any, seen: set[int]) -> set[str]:
    """The structs within a type, without those that leave defaults out."""
    if id(kind) in seen:
        return set()
    seen.add(id(kind))
    found = set[str]()
    if isinstance(kind, msgspec.inspect.StructType):
        if not kind.cls.__struct_config__.omit_defaults:
            found |= {kind.cls.__name__, f"{kind.cls.__module__}.{kind.cls.__qualname__}"}
        for field in kind.fields:
            found |= _structs(field.type, seen)
        return found
    for name in ("item_type", "key_type", "value_type"):
        if hasattr(kind, name):
            found |= _structs(getattr(kind, name), seen)
    for each in (*getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
        found |= _structs(each, seen)
    return found


def named(name: str) -> str:
    """The name of a type. Two types of one name have the names of their modules in front: `a.job_history.Signal`."""
    module, _, last = name.rpartition(".")
    return "".join(word.title() for word in module.rpartition(".")[2].split("_")) + last


def typed(schema: Schema) -> str:
    """A JSON Schema as a type."""
    if "$ref" in schema:
        return named(str(schema["$ref"]).rpartition("/")[2])
    if "enum" in schema:
        return " | ".join(sorted(json.dumps(each) for each in schema["enum"]))
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
            return "{ " + " ".join(fields(schema, everything=False)) + " }"
        more = schema.get("additionalProperties")
        return f"{{ [name: string]: {typed(more) if isinstance(more, Mapping) else 'unknown'} }}"
    return PLAIN.get(str(kind), "unknown")


def _array(schema: Schema) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(typed(each) for each in schema['prefixItems'])}]"
    items = schema.get("items")
    inner = typed(items) if isinstance(items, Mapping) else "unknown"
    return f"({inner})[]" if " | " in inner else f"{inner}[]"


def fields(schema: Schema, *, everything: bool) -> Iterator[str]:
    """The fields of an object. `everything`: also those that are not required are there."""
    required = set(schema.get("required", ()))
    for name, each in schema["properties"].items():
        written = name if NAME.fullmatch(name) else json.dumps(name)
        mark = "" if everything or name in required else "?"
        yield f"{written}{mark}: {typed(each)};"


def text() -> str:
    """The whole file."""
    made = operations()
    document = describe(made, "", tokens=False)
    all_there = complete(made)
    parts = [HEAD]
    for name, schema in sorted(document["components"]["schemas"].items()):
        if "properties" in schema:
            lines = fields(schema, everything=name in all_there)
            parts.append(f"export interface {named(name)} {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n")
        else:
            parts.append(f"export type {named(name)} = {typed(schema)};\n")
    for title, get in (("Answers", _answer), ("Bodies", _body)):
        rows = sorted((f"{each.method} {each.path}", get(each, document)) for each in made)
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
