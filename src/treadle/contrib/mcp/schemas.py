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
    kept = [each for each in parameters if each["name"] not in left_out and each["in"] in ("path", "query")]
    properties = {each["name"]: {**_inlined(document, each["schema"]), **_described(each)} for each in kept}
    required = [each["name"] for each in kept if each["in"] == "path"]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _described(parameter: Mapping[str, Any]) -> dict[str, str]:
    return {"description": parameter["description"]} if parameter.get("description") else {}


def _inlined(document: Mapping[str, Any], schema: Any) -> Any:
    """The schema without references."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(document, document["components"]["schemas"][schema["$ref"].removeprefix(REF)])
        return {name: _inlined(document, each) for name, each in schema.items()}
    return [_inlined(document, each) for each in schema] if isinstance(schema, list) else schema


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
    found: dict[str, Any] = _local(root)
    if needed:
        found["$defs"] = {name: _local(each) for name, each in sorted(needed.items())}
    return found


def _refs(schema: Any) -> Iterator[str]:
    """The names of the components that a schema refers to."""
    if isinstance(schema, dict):
        for name, each in schema.items():
            if name == "$ref":
                yield each.removeprefix(REF)
            else:
                yield from _refs(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _refs(each)


def _local(schema: Any) -> Any:
    """The schema with references to `$defs`; without OpenAPI's own discriminators."""
    if isinstance(schema, dict):
        return {
            name: each.replace(REF, "#/$defs/") if name == "$ref" else _local(each)
            for name, each in schema.items()
            if name != "discriminator"
        }
    return [_local(each) for each in schema] if isinstance(schema, list) else schema
