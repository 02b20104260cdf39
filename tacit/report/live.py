"""`tacit report --live`: the page on localhost, and what is new in the folder since the page last asked.

Listens on 127.0.0.1 only. A request must name this address as its host, so that a web page which points its own name at
127.0.0.1 (DNS rebinding) gets nothing; there is nothing to write to, and no other path than the page and its data.
"""

import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tacit.engine.run_files import STATUS
from tacit.errors import BadInput, TacitError
from tacit.report.page import collect, render, results_of

HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Content-Security-Policy", "frame-ancestors 'none'"),
)
MOST_DIGITS = 9  # of a round's number
WATCHED = ("rounds.jsonl", "summary.json", "clients.json", "ledger.db", STATUS)


class Server(ThreadingHTTPServer):
    """Serves the folders on 127.0.0.1. `port = 0` takes any that is free."""

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], *, port: int = 0):
        self.folders, self.busy = list(folders), threading.Lock()
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:
            raise BadInput(f"Port {port} cannot be used ({error}): choose another --port, or leave it out.") from None
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        return f"http://127.0.0.1:{self.server_port}/"

    def data(self, since: int) -> dict[str, Any]:
        """The page's data, one request at a time: pricing is not for many threads."""
        with self.busy:
            return collect(self.folders, since=since, live=True)

    def mark(self) -> str:
        """Changes when a file of the folders does."""
        paths = [path for folder in self.folders for path in _watched(folder)]
        return "-".join(f"{stat.st_mtime_ns:x}.{stat.st_size:x}" for stat in map(_stat, paths) if stat)


class Handler(BaseHTTPRequestHandler):
    """GET / and GET /data, for this host."""

    server: Any
    server_version, sys_version = "tacit", ""

    def do_GET(self) -> None:
        """Answers with the page or its data, and refuses every other host and path."""
        if self.headers.get("Host") not in self.server.hosts:
            self._answer(HTTPStatus.FORBIDDEN, b"This page is served to 127.0.0.1 alone.\n", "text/plain")
            return
        try:
            url = urlsplit(self.path)
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST, b"This is no address.\n", "text/plain")
            return
        known: dict[str, Callable[[dict[str, list[str]]], None]] = {"/": self._page, "/data": self._data}
        if url.path not in known:
            self._answer(HTTPStatus.NOT_FOUND, b"There is only / and /data here.\n", "text/plain")
            return
        try:
            known[url.path](parse_qs(url.query))
        except TacitError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n".encode(), "text/plain")

    def _page(self, query: dict[str, list[str]]) -> None:
        self._answer(HTTPStatus.OK, render(self.server.data(0)).encode(), "text/html")

    def _data(self, query: dict[str, list[str]]) -> None:
        mark = self.server.mark()
        if query.get("mark") == [mark]:
            self._answer(HTTPStatus.NO_CONTENT, b"", "application/json")
            return
        (since,) = query.get("since", ["0"])[:1]
        counts = since.isascii() and since.isdecimal() and len(since) <= MOST_DIGITS
        data = self.server.data(int(since) if counts else 0)
        self._answer(HTTPStatus.OK, json.dumps(data, allow_nan=False).encode(), "application/json", mark=mark)

    def _answer(self, status: HTTPStatus, body: bytes, kind: str, *, mark: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS:
            self.send_header(name, value)
        if mark:
            self.send_header("X-Tacit-Mark", mark)
        self.end_headers()
        with suppress(ConnectionError):  # the reader may have left
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal is for the person."""


def serve(folders: Sequence[Path], *, port: int, ready: Callable[[str], None]) -> None:
    """Serves until Ctrl-C. Raises BadInput first if the folders cannot be shown."""
    collect(folders, live=True)
    with Server(folders, port=port) as server:
        try:
            ready(server.url)
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return


def _watched(folder: Path) -> list[Path]:
    folder = results_of(folder)
    runs = sorted(folder.glob("runs/*/seed-*")) if (folder / "compare.toml").exists() else [folder]
    return [run / name for run in runs for name in WATCHED]


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
