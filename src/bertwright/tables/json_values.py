"""Values of JSON with their types, or an error that names the place."""

from __future__ import annotations

import json
from typing import Any


def as_object(value: Any, location: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{location}: expected a JSON object, got {quote(value)}")
    return value


def member(value: Any, key: str, kind: type | tuple[type, ...], location: str) -> Any:
    """Return a member of an object. Raises ValueError if it is missing or of another type; a bool is no number."""
    members = as_object(value, location)
    if key not in members:
        raise ValueError(f'{location}: "{key}" is missing; found are {", ".join(members) or "none"}')
    found = members[key]
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise ValueError(f'{location}: "{key}": expected {_EXPECTED[kind]}, got {quote(found)}')
    return found


_EXPECTED = {
    str: "a text",
    bool: "true or false",
    list: "a list",
    (list, dict): "a list",
    (list, dict, str): "a list",
    (str, int): "a text or a whole number",
    (int, type(None)): "a whole number",
}


def text_member(value: Any, key: str, location: str) -> str:
    text: str = member(value, key, str, location)
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair, which UTF-8 cannot encode
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f'{location}: {half} in "{key}" is half a surrogate pair; fix the file') from None
    return text


def quote(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else f"{text[:40]}…"
