"""The application: which path leads where."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from capsnmt import __version__
from capsnmt.server import spec
from capsnmt.server.errors import ClientGoneError, Refused, error_response
from capsnmt.server.files import Files
from capsnmt.server.languages import public_code
from capsnmt.server.libretranslate import LibreTranslate
from capsnmt.server.middleware import CLIENT_GONE, Guard
from capsnmt.server.state import Server
from capsnmt.server.v1 import V1

PAGE = Path(__file__).parent / "page"

Endpoint = Callable[..., Awaitable[Response]]


class Route(NamedTuple):
    """One endpoint; spec.py describes it."""

    path: str
    method: str
    endpoint: Endpoint


def build_app(server: Server) -> ASGIApp:
    """The whole server as an ASGI application."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await server.start()
        yield
        await server.close()

    app = FastAPI(title="CapsNMT", version=__version__, lifespan=lifespan, openapi_url=None, docs_url=None)
    app.add_exception_handler(HTTPException, _on_refused)
    app.add_exception_handler(ClientGoneError, _on_gone)
    app.add_exception_handler(ClientDisconnect, _on_gone)
    app.add_exception_handler(Exception, _on_crash)
    routes = _routes(server)
    for route in routes:
        methods = ["GET", "HEAD"] if route.method == "GET" else [route.method]
        app.add_api_route(route.path, route.endpoint, methods=methods, include_in_schema=False)
    app.mount("/page", _PageFiles(directory=PAGE))
    endpoints = [route.path.split("/{")[0] for route in routes] + ["/page"]
    return Guard(app, settings=server.settings, metrics=server.metrics, endpoints=endpoints)


def _routes(server: Server) -> list[Route]:
    libre, files, own = LibreTranslate(server), Files(server), V1(server)

    async def get_spec(request: Request) -> Response:
        codes = [public_code(code) for code in server.models.codes]  # a reload changes them
        return JSONResponse(spec.openapi(codes, __version__))

    return [
        Route("/translate", "POST", libre.translate),
        Route("/detect", "POST", libre.detect),
        Route("/languages", "GET", libre.languages),
        Route("/frontend/settings", "GET", libre.settings),
        Route("/health", "GET", libre.health),
        Route("/suggest", "POST", libre.suggest),
        Route("/translate_file", "POST", files.translate),
        Route("/download_file/{name}", "GET", files.download),
        Route("/v1/translate", "POST", own.translate),
        Route("/v1/models", "GET", own.models),
        Route("/metrics", "GET", _metrics(server)),
        Route("/", "GET", _file("index.html")),
        Route("/docs", "GET", _file("docs.html")),
        Route("/spec", "GET", get_spec),
    ]


class _PageFiles(StaticFiles):
    """What the page consists of. A new release changes it, so a browser asks whether its own is still the same."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """A file."""
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _file(name: str) -> Endpoint:
    async def get(request: Request) -> Response:
        return FileResponse(PAGE / name, headers={"Cache-Control": "no-cache"})

    return get


def _metrics(server: Server) -> Endpoint:
    async def get(request: Request) -> Response:
        wanted = server.settings.metrics_token
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if wanted and not hmac.compare_digest(given.encode(), wanted.encode()):
            raise Refused(401, "Unauthorized")
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return get


async def _on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error)


async def _on_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)  # nobody reads it


async def _on_crash(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "Internal Server Error"}, status_code=500)
