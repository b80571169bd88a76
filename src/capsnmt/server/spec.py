"""What /spec says of each endpoint. Requests are parsed by hand, because LibreTranslate takes them in three forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from capsnmt.decoding.translation import Status
from capsnmt.server.documents import MEDIA_TYPES
from capsnmt.server.state import AUTO
from capsnmt.server.v1 import V1Request

Schema = dict[str, Any]

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
JSON = "application/json"

_ERRORS = {
    400: "The request is not valid",
    401: "The token is not valid",
    403: "The key is not valid, or the feature is off",
    404: "There is no such file, or its time is over",
    408: "The body came too slowly",
    413: "The body is too large",
    415: "The body is packed",
    429: "Too many requests; Retry-After says when to come back",
    500: "A fault of the server",
    503: "The server is busy or the deadline has passed; Retry-After says when to come back",
}
_OF_ALL = (400, 500, 503)
_OF_BODIES = (*_OF_ALL, 403, 408, 413, 415, 429)


def _record(*optional: str, **properties: Schema) -> Schema:
    """An object; what is not `optional` is always there."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _one_or_list(one: Schema) -> Schema:
    """Of a text, or of each text of a list."""
    return {"oneOf": [one, _list_of(one)]}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_STRING: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_BOOLEAN: Schema = {"type": "boolean"}
_KEY: Schema = {**_STRING, "description": "API key, where the server asks for one"}
_NAMED = _record(code=_STRING, name=_STRING)
_DETECTED = _record(confidence={**_NUMBER, "minimum": 0, "maximum": 100}, language=_STRING)
_LANGUAGES = _list_of(_record(code=_STRING, name=_STRING, targets=_list_of(_STRING)))
_TRANSLATED = _record(
    "detectedLanguage",
    "alternatives",
    translatedText=_one_or_list(_STRING),
    detectedLanguage=_one_or_list(_DETECTED),
    alternatives=_list_of({"oneOf": [_STRING, _list_of(_STRING)]}),
)
_SETTINGS = _record(
    charLimit={"type": "integer"},
    frontendTimeout={"type": "integer"},
    apiKeys=_BOOLEAN,
    keyRequired=_BOOLEAN,
    suggestions=_BOOLEAN,
    filesTranslation=_BOOLEAN,
    supportedFilesFormat=_list_of(_STRING),
    language=_record(source=_NAMED, target=_NAMED),
)
_LINE = _record(
    source=_STRING,
    text=_STRING,
    score=_or_null(_NUMBER),
    status={**_STRING, "enum": list(get_args(Status))},
    notes=_list_of(_STRING),
    hypotheses=_list_of(_record(text=_STRING, score=_or_null(_NUMBER))),
    routing=_or_null(_list_of(_record(words=_list_of(_STRING), shares=_list_of(_list_of(_list_of(_NUMBER)))))),
    end={**_STRING, "description": "what ended the line"},
)
_V1_TRANSLATED = _record(
    "detected",
    path={**_list_of(_STRING), "description": "the languages on the way"},
    detected=_DETECTED,
    translations=_list_of(_record(text=_STRING, lines=_list_of(_LINE))),
    elapsed_ms=_NUMBER,
)
_MODELS = _list_of(
    _record(
        name=_STRING,
        source=_STRING,
        target=_STRING,
        system=_STRING,
        precision=_STRING,
        beam={"type": "integer"},
        routing=_BOOLEAN,
    )
)
_ERROR = _record(error=_STRING)


def openapi(codes: Sequence[str], version: str) -> Schema:
    """The document of a server with these languages."""
    info = {"title": "CapsNMT", "version": version, "description": "LibreTranslate's API, and our own under /v1."}
    return {"openapi": "3.1.0", "info": info, "paths": _paths(codes)}


def _paths(codes: Sequence[str]) -> dict[str, dict[str, Schema]]:
    source = {**_STRING, "description": f"language code, or {AUTO}", "enum": [AUTO, *codes]}
    target = {**_STRING, "description": "language code", "enum": list(codes)}
    translate = _record(
        "format",
        "alternatives",
        "api_key",
        q={**_one_or_list({**_STRING, "minLength": 1}), "description": "text, or a list of texts"},
        source=source,
        target=target,
        format={**_STRING, "enum": ["text", "html"], "default": "text"},
        alternatives={"type": "integer", "minimum": 0, "default": 0},
        api_key=_KEY,
    )
    upload = {**_STRING, "format": "binary", "description": ", ".join(MEDIA_TYPES)}
    file = _record("api_key", file=upload, source=source, target=target, api_key=_KEY)
    detect = _record("api_key", q={**_STRING, "minLength": 1}, api_key=_KEY)
    own = V1Request.model_json_schema()
    own["properties"] |= {
        "source": {**own["properties"]["source"], **source},
        "target": {**own["properties"]["target"], **target},
    }
    files = {media_type: {"schema": _STRING} for media_type in dict.fromkeys(MEDIA_TYPES.values())}
    anything = (JSON, FORM, MULTIPART)
    return {
        "/translate": {"post": _post("Translate text", translate, anything, _json(_TRANSLATED), in_query=True)},
        "/detect": {"post": _post("Detect a language", detect, anything, _json(_list_of(_DETECTED)), in_query=True)},
        "/languages": {"get": _get("Languages", _json(_LANGUAGES))},
        "/frontend/settings": {"get": _get("Settings of the page", _json(_SETTINGS))},
        "/health": {"get": _get("Is the server well", _json(_record(status=_STRING)))},
        "/suggest": {"post": _post("Suggest a translation (never taken)", {"type": "object"}, anything, None)},
        "/translate_file": {
            "post": _post("Translate a file", file, (MULTIPART,), _json(_record(translatedFileUrl=_STRING)))
        },
        "/download_file/{name}": {"get": _get("Fetch a translated file", files, 404, path_parameter="name")},
        "/v1/translate": {
            "post": _post(
                "Translate with n-best lists, scores, statuses, routing; with `stream` as server-sent events",
                own,
                (JSON,),
                {**_json(_V1_TRANSLATED), "text/event-stream": {}},
            )
        },
        "/v1/models": {"get": _get("The models", _json(_MODELS))},
        "/metrics": {"get": _get("Figures for Prometheus", {"text/plain": {"schema": _STRING}}, 401)},
    }


def _json(schema: Schema) -> Schema:
    return {JSON: {"schema": schema}}


def _get(summary: str, content: Schema, *errors: int, path_parameter: str | None = None) -> Schema:
    described: Schema = {"summary": summary, "responses": _responses(content, (*_OF_ALL, *errors))}
    if path_parameter is not None:
        named = {"name": path_parameter, "in": "path", "required": True, "schema": {**_STRING, "minLength": 1}}
        described["parameters"] = [named]
    return described


def _post(
    summary: str, body: Schema, kinds: Sequence[str], content: Schema | None, *, in_query: bool = False
) -> Schema:
    """No `content`: it never succeeds. `in_query`: parameters may stand there instead of in the body."""
    described: Schema = {
        "summary": summary,
        "requestBody": {"required": not in_query, "content": {kind: {"schema": body} for kind in kinds}},
        "responses": _responses(content, _OF_BODIES),
    }
    if in_query:
        described["parameters"] = [
            {"name": name, "in": "query", "required": False, "schema": _in_query(schema)}
            for name, schema in body["properties"].items()
        ]
    return described


def _in_query(schema: Schema) -> Schema:
    """There is no list in a query string."""
    described = {"description": schema["description"]} if "description" in schema else {}
    return {**described, **schema["oneOf"][0]} if "oneOf" in schema else schema


def _responses(content: Schema | None, errors: Sequence[int]) -> Schema:
    done = {} if content is None else {"200": {"description": "Done", "content": content}}
    failed = {str(code): {"description": _ERRORS[code], "content": _json(_ERROR)} for code in sorted(errors)}
    return {**done, **failed}
