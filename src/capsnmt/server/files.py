"""POST /translate_file and GET /download_file: a file in, its translation to fetch."""

from __future__ import annotations

import time
from pathlib import PurePath
from urllib.parse import quote

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from capsnmt.server.documents import MEDIA_TYPES, Passage, decode_file, join_parts, read_parts
from capsnmt.server.errors import Refused, missing
from capsnmt.server.fields import read_fields
from capsnmt.server.state import AUTO, Server
from capsnmt.server.translating import Way
from capsnmt.server.waiting import off_the_loop, while_connected


class Files:
    """The endpoints for files."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def translate(self, request: Request) -> Response:
        """POST /translate_file."""
        deadline = time.monotonic() + self.server.limits.file_deadline_s
        fields = await read_fields(request)
        key = self.server.admit(request, fields)
        source, target = fields.string("source"), fields.string("target")
        if fields.file is None:
            raise missing("file")
        for name, value in (("source", source), ("target", target)):
            if not value:
                raise missing(name)
        suffix = PurePath(fields.file.filename or "").suffix.lower()
        if not fields.file.filename:
            raise Refused(400, "Invalid request: empty file")
        if suffix not in MEDIA_TYPES:
            raise Refused(400, f"Invalid request: file format not supported; supported are {', '.join(MEDIA_TYPES)}")
        source = AUTO if source.lower() == AUTO else self.server.known(source)
        target = self.server.known(target)
        content = await self._content(fields.file)
        self.server.downloads.check_room(len(content))  # its translation will be about as large
        text, encoding = decode_file(content)
        self.server.check_file_size(text, key)
        if source == AUTO:
            source = self.server.detect(text, target).language
        way = self.server.way(self.server.path(source, target), deadline)
        translated = await while_connected(request, self._translated(way, suffix, text))
        name = self.server.downloads.put(translated.encode(encoding, "replace"), suffix, MEDIA_TYPES[suffix])
        base = (self.server.settings.public_url or str(request.base_url)).rstrip("/")
        return JSONResponse({"translatedFileUrl": f"{base}/download_file/{quote(name)}"})

    async def _content(self, file: UploadFile) -> bytes:
        most = self.server.limits.file_bytes
        content = await file.read(most + 1)
        if len(content) > most:
            raise Refused(413, f"Invalid request: the file has more than {most} bytes")
        return content

    async def _translated(self, way: Way, suffix: str, text: str) -> str:
        if not way.models:
            return text
        if suffix == ".txt":
            (lines,) = await way.texts([text])
            return "".join(answer.translation.text + end for answer, end in lines)
        if suffix == ".srt":
            way.check_lines([text])
        max_depth = self.server.limits.html_depth
        parts = await off_the_loop(len(text), lambda: read_parts(suffix, text, max_depth=max_depth))
        translations = await way.markups([part.markup for part in parts if isinstance(part, Passage)])
        return await off_the_loop(len(text), lambda: join_parts(parts, translations))

    async def download(self, request: Request, name: str) -> Response:
        """GET /download_file/NAME: an attachment, so that no browser shows a stranger's HTML as a page of ours."""
        file = self.server.downloads.get(name)
        if file is None:
            raise Refused(404, "There is no such file, or its time is over")
        suffix = PurePath(name).suffix
        headers = {"Content-Disposition": f'attachment; filename="translated{suffix}"', "Cache-Control": "no-store"}
        return Response(file.content, media_type=file.media_type, headers=headers)
