"""A request's parameters, wherever a client has put them: JSON, a form, or the query string of a POST."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request

from capsnmt.server.errors import Refused

_MOST_FIELDS = 100


@dataclass(frozen=True)
class Fields:
    """Parameters by name. Of JSON they may be anything, of a form they are strings."""

    values: dict[str, Any]
    from_json: bool
    file: UploadFile | None = None

    def get(self, name: str) -> Any:
        """A parameter's value, or None."""
        return self.values.get(name)

    def string(self, name: str) -> str:
        """A parameter that can only be a string; an empty one is none. Raises Refused."""
        value = self.values.get(name)
        if value is None or value == "":
            return ""
        if not isinstance(value, str):
            raise Refused(400, f"Invalid request: {name} parameter must be a string")
        return value


async def read_fields(request: Request) -> Fields:
    """Reads and parses the body. Raises Refused for what is no JSON object or no form."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return Fields(parse_json(await request.body()), True)
    values: dict[str, Any] = {name: well_formed(value) for name, value in reversed(request.query_params.multi_items())}
    file: UploadFile | None = None
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        try:
            form = await request.form(max_files=1, max_fields=_MOST_FIELDS)
        except (ValueError, AssertionError, LookupError):
            raise Refused(400, "Invalid request: the form cannot be read") from None
        for name, value in reversed(form.multi_items()):
            if isinstance(value, str):
                values[name] = well_formed(value)
            elif name == "file":
                file = value
    return Fields(values, False, file)


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object whose strings can all be written as UTF-8. Raises Refused."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "Invalid JSON format") from None
    if not isinstance(values, dict):
        raise Refused(400, "Invalid JSON format")
    return {well_formed(name): _well_formed(value) for name, value in values.items()}


def _well_formed(value: Any) -> Any:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, list):
        return [well_formed(item) if isinstance(item, str) else item for item in value]
    return value


def well_formed(text: str) -> str:
    """JSON can spell halves of UTF-16 pairs, which no answer could hold: they become U+FFFD."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
