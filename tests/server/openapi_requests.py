"""Requests for every route of an OpenAPI document: bodies and parameters nearly as the schema has them, or not at all.

Knows the parts of JSON Schema that the service's document uses.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Json = dict[str, Any]
_METHODS = ("get", "post", "patch", "delete", "put")
_WORDS = (
    "default",
    "hello there",
    "a/b",
    "",
    " ",
    "..",
    "0",
    "7",
    "-1",
    "1" * 40,
    "*",
    "<|im_end|>",
    "\ud800",
    "ä\x00b",
)
TEXTS = st.one_of(st.sampled_from(_WORDS), st.text(max_size=12))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)


class Request(NamedTuple):
    """One request. body: None for none."""

    method: str
    path: str
    query: dict[str, str]
    body: Any


def requests_of(document: Json, fixed: dict[str, SearchStrategy[Any]]) -> SearchStrategy[Request]:
    """Requests for every route of the document. fixed: what goes into fields of these names instead."""
    schemas = document.get("components", {}).get("schemas", {})
    routes = [
        _route(method, path, told, schemas, fixed)
        for path, methods in document["paths"].items()
        for method, told in methods.items()
        if method in _METHODS
    ]
    return st.one_of(routes)


def _route(
    method: str, path: str, told: Json, schemas: Json, fixed: dict[str, SearchStrategy[Any]]
) -> SearchStrategy[Request]:
    parameters = told.get("parameters", [])
    in_path = {each["name"]: TEXTS.filter(bool) for each in parameters if each["in"] == "path"}
    in_query = {each["name"]: TEXTS for each in parameters if each["in"] == "query"}
    content = told.get("requestBody", {}).get("content", {}).get("application/json", {})
    body = _nearly(content["schema"], schemas, fixed) if content else st.none() | VALUES
    if method == "get":
        body = st.none()

    def made(names: Json, query: Json, body: Any) -> Request:
        filled = path
        for name, value in names.items():
            filled = filled.replace(f"{{{name}}}", quote(value, safe="", errors="replace"))
        return Request(method.upper(), filled, {key: _plain(value) for key, value in query.items()}, body)

    queries = st.fixed_dictionaries({}, optional=in_query)
    return st.builds(made, st.fixed_dictionaries(in_path), queries, body)


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _nearly(schema: Json, schemas: Json, fixed: dict[str, SearchStrategy[Any]]) -> SearchStrategy[Any]:
    """Mostly what the schema says; sometimes anything in its place."""
    right = _of(schema, schemas, fixed)
    return st.integers(0, 9).flatmap(lambda dice: VALUES if dice == 0 else right)


def _of(schema: Json, schemas: Json, fixed: dict[str, SearchStrategy[Any]]) -> SearchStrategy[Any]:
    if "$ref" in schema:
        return _of(schemas[schema["$ref"].rpartition("/")[2]], schemas, fixed)
    if "anyOf" in schema:
        return st.one_of([_of(each, schemas, fixed) for each in schema["anyOf"]])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        needed = schema.get("required", [])
        made = {
            name: fixed[name] if name in fixed else _nearly(each, schemas, fixed)
            for name, each in schema["properties"].items()
        }
        optional = {name: each for name, each in made.items() if name not in needed}
        return st.fixed_dictionaries({name: made[name] for name in needed}, optional=optional)
    if kind == "array":
        return st.lists(
            _nearly(schema.get("items", {}), schemas, fixed), min_size=schema.get("minItems", 0), max_size=3
        )
    if kind == "integer":
        return st.integers(schema.get("minimum", -3), min(8, schema.get("maximum", 8)))
    simple = {"string": TEXTS, "number": st.floats(0, 2), "boolean": st.booleans(), "null": st.none()}
    return simple.get(str(kind), VALUES)
