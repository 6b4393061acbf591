"""Schemas of tools, from the OpenAPI document of the API. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

REF: Final = "#/components/schemas/"
TRUNCATED: Final = {
    "type": "array",
    "items": {"type": "string"},
    "description": "where texts and lists were cut because the answer was too large",
}


def inputs(document: Mapping[str, Any], method: str, path: str, left_out: Collection[str]) -> dict[str, Any]:
    """The arguments of an operation: the parts of its path, which are required, and its query."""
    parameters = document["paths"][path][method.lower()].get("parameters", ())
    kept = [
        parameter
        for parameter in parameters
        if parameter["name"] not in left_out and parameter["in"] in ("path", "query")
    ]
    properties = {
        parameter["name"]: {**_inlined(document, parameter["schema"]), **_described(parameter)} for parameter in kept
    }
    required = [parameter["name"] for parameter in kept if parameter["in"] == "path"]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _described(parameter: Mapping[str, Any]) -> dict[str, str]:
    return {"description": parameter["description"]} if parameter.get("description") else {}


def _inlined(document: Mapping[str, Any], schema: Any) -> Any:
    """The schema without references."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(document, document["components"]["schemas"][schema["$ref"].removeprefix(REF)])
        return {name: _inlined(document, part) for name, part in schema.items()}
    return [_inlined(document, part) for part in schema] if isinstance(schema, list) else schema


def output(document: Mapping[str, Any], method: str, path: str, keep: Collection[str]) -> dict[str, Any]:
    """The answer of an operation as an object with its own definitions. `keep`: the only fields; (): all."""
    answer = document["paths"][path][method.lower()]["responses"]["200"]["content"]["application/json"]["schema"]
    components = document["components"]["schemas"]
    root = dict(components[answer["$ref"].removeprefix(REF)] if "$ref" in answer else answer)
    if keep:
        root["properties"] = {name: root["properties"][name] for name in keep}
        root["required"] = [name for name in root.get("required", ()) if name in keep]
    root["properties"] = {**root["properties"], "truncated": TRUNCATED}
    root.pop("additionalProperties", None)
    needed, open_ = dict[str, Any](), list(_refs(root))
    while open_:
        name = open_.pop()
        if name not in needed:
            needed[name] = components[name]
            open_ += _refs(components[name])
    answer_schema: dict[str, Any] = _local(root)
    if needed:
        answer_schema["$defs"] = {name: _local(component) for name, component in sorted(needed.items())}
    return answer_schema


def _refs(schema: Any) -> Iterator[str]:
    """The names of the components that a schema refers to."""
    if isinstance(schema, dict):
        for name, part in schema.items():
            if name == "$ref":
                yield part.removeprefix(REF)
            else:
                yield from _refs(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _refs(part)


def _local(schema: Any) -> Any:
    """The schema with references to `$defs`; without OpenAPI's own discriminators."""
    if isinstance(schema, dict):
        return {
            name: part.replace(REF, "#/$defs/") if name == "$ref" else _local(part)
            for name, part in schema.items()
            if name != "discriminator"
        }
    return [_local(part) for part in schema] if isinstance(schema, list) else schema
