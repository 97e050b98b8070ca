"""The OpenAPI document of the server, from the types of its routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from msgspec.json import schema_components

from bertwright.serving.replies import ErrorReply, OpenAiError
from bertwright.serving.route import Route

ERRORS = {
    400: "no JSON, or another Host", 401: "a key is missing or wrong", 403: "a page of another site",
    404: "no model has this name", 408: "the body took too long", 413: "too long", 422: "not what the route reads",
    424: "no model here answers this", 429: "overloaded; Retry-After says when", 503: "starting",
}  # fmt: skip


def describe_api(routes: Sequence[Route]) -> dict[str, Any]:
    types = [kind for route in routes for kind in (route.body or ErrorReply, route.reply)]
    schemas, components = schema_components(
        [*types, ErrorReply, OpenAiError], ref_template="#/components/schemas/{name}"
    )
    error = {"anyOf": [*schemas[-2:]]}
    errors = {str(status): describe_content(text, error) for status, text in ERRORS.items()}
    paths: dict[str, Any] = {}
    for body, reply, route in zip(schemas[::2], schemas[1::2], routes, strict=False):
        paths.setdefault(route.path, {})[route.method.lower()] = describe_route(route, body, reply, errors)
    page = {"description": "HTML", "content": {"text/html": {"schema": {"type": "string"}}}}
    paths["/"]["get"] = {"summary": "Show the page", "responses": {"200": page, **errors}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "bertwright serve", "version": version("bertwright")},
        "paths": paths,
        "components": {"schemas": components},
    }


def describe_route(route: Route, body: Any, reply: Any, errors: Mapping[str, Any]) -> dict[str, Any]:
    responses = {"200": describe_content("the reply", reply), **errors}
    operation: dict[str, Any] = {"summary": route.summary, "responses": responses}
    if route.body is not None:
        operation["requestBody"] = describe_content("", body) | {"required": True}
    if "{name}" in route.path:
        operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def describe_content(text: str, schema: Any) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
