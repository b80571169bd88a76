"""What /spec says of each endpoint. Requests are parsed by hand, because LibreTranslate takes them in three forms."""

from __future__ import annotations

from typing import Any

from capsnmt.server.v1 import V1Request

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
KEY: Schema = {**STRING, "description": "API key, where the server asks for one"}
LANGUAGE: Schema = {**STRING, "example": "en"}
SOURCE: Schema = {**STRING, "description": "language code, or auto", "example": "en"}
DETECTED: Schema = {
    "type": "object",
    "properties": {"confidence": {"type": "number", "minimum": 0, "maximum": 100}, "language": STRING},
    "required": ["confidence", "language"],
}


def either(one: Schema) -> Schema:
    """Of a text, or of each text of a list."""
    return {"oneOf": [one, {"type": "array", "items": one}]}


TRANSLATE: Schema = {
    "type": "object",
    "properties": {
        "q": {**either({**STRING, "minLength": 1}), "description": "text, or a list of texts", "example": "Hello!"},
        "source": SOURCE,
        "target": {**LANGUAGE, "example": "de"},
        "format": {"type": "string", "enum": ["text", "html"], "default": "text"},
        "alternatives": {"type": "integer", "minimum": 0, "default": 0},
        "api_key": KEY,
    },
    "required": ["q", "source", "target"],
}
TRANSLATED: Schema = {
    "type": "object",
    "properties": {
        "translatedText": either(STRING),
        "detectedLanguage": either(DETECTED),
        "alternatives": {"type": "array", "items": {"oneOf": [STRING, {"type": "array", "items": STRING}]}},
    },
    "required": ["translatedText"],
}
DETECT: Schema = {"type": "object", "properties": {"q": STRING, "api_key": KEY}, "required": ["q"]}
FILE: Schema = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary", "description": ".txt, .html or .srt"},
        "source": SOURCE,
        "target": {**LANGUAGE, "example": "de"},
        "api_key": KEY,
    },
    "required": ["file", "source", "target"],
}
LANGUAGES: Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"code": STRING, "name": STRING, "targets": {"type": "array", "items": STRING}},
        "required": ["code", "name", "targets"],
    },
}
ERROR: Schema = {"type": "object", "properties": {"error": STRING}, "required": ["error"]}
OBJECT: Schema = {"type": "object"}

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
JSON = "application/json"

_ERRORS = {
    400: "The request is not valid",
    403: "The key is not valid, or the feature is off",
    408: "The body came too slowly",
    413: "The body is too large",
    415: "The body is packed",
    429: "Too many requests; Retry-After says when to come back",
    500: "A fault of the server",
    503: "The server is busy or the deadline has passed; Retry-After says when to come back",
}


def operation(summary: str, body: Schema | None, kinds: tuple[str, ...], answer: Schema | None) -> Schema:
    """The OpenAPI object of one endpoint; no `body` means a GET."""
    content = {JSON: {"schema": answer}} if answer is not None else {"*/*": {}}
    errors = {
        str(code): {"description": text, "content": {JSON: {"schema": ERROR}}}
        for code, text in _ERRORS.items()
        if body is not None or code in (400, 500, 503)
    }
    described: Schema = {
        "summary": summary,
        "responses": {"200": {"description": "Done", "content": content}, **errors},
    }
    if body is not None:
        described["requestBody"] = {"required": True, "content": {kind: {"schema": body} for kind in kinds}}
    return described


def v1_schema() -> Schema:
    """Of our own request."""
    return V1Request.model_json_schema()


def openapi(paths: dict[str, dict[str, Schema]], version: str) -> Schema:
    """The document."""
    info = {"title": "CapsNMT", "version": version, "description": "LibreTranslate's API, and our own under /v1."}
    return {"openapi": "3.1.0", "info": info, "paths": paths}
