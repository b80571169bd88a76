"""What a client is told when it cannot have what it asked for. No text here holds anything of a user's text or key."""

from __future__ import annotations

import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse


class Refused(HTTPException):
    """Ends a request with `{"error": text}`; `retry_after_s` tells a client when to come back."""

    def __init__(self, status: int, text: str, *, retry_after_s: float | None = None) -> None:
        headers = None if retry_after_s is None else {"Retry-After": str(max(1, math.ceil(retry_after_s)))}
        super().__init__(status_code=status, detail=text, headers=headers)


class Overloaded(Refused):
    """More work is waiting than can be done in time."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(503, "The server is busy: try again later", retry_after_s=retry_after_s)


class TooLate(Refused):
    """The deadline passed before the answer was there."""

    def __init__(self, retry_after_s: float = 1.0) -> None:
        super().__init__(503, "The deadline has passed: try again later or with less text", retry_after_s=retry_after_s)


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


def error_response(error: HTTPException) -> JSONResponse:
    """LibreTranslate's form of an error."""
    # A body that is not read to its end would go on coming.
    close = {"Connection": "close"} if error.status_code in (408, 413, 415) else {}
    headers = {**(error.headers or {}), **close}
    return JSONResponse({"error": error.detail}, status_code=error.status_code, headers=headers)


def error_event(error: HTTPException) -> dict[str, Any]:
    """The same in a stream that has begun, where status and headers have gone out already."""
    wait = (error.headers or {}).get("Retry-After")
    return {
        "error": error.detail,
        "status": error.status_code,
        "retry_after": None if wait is None else int(wait),
    }


def missing(name: str) -> Refused:
    """A parameter that LibreTranslate requires."""
    return Refused(400, f"Invalid request: missing {name} parameter")


def too_large(size: int, limit: int) -> Refused:
    """LibreTranslate's text for too many characters or items."""
    return Refused(400, f"Invalid request: request ({size}) exceeds text limit ({limit})")


def too_many_lines(lines: int, limit: int) -> Refused:
    """Lines cost something even where nothing stands in them."""
    return Refused(400, f"Invalid request: request ({lines} lines) exceeds line limit ({limit})")


def brief(value: str, characters: int = 40) -> str:
    """A client's own value, short enough to be named in an answer."""
    return value if len(value) <= characters else f"{value[:characters]}…"
