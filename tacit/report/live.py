"""`tacit report --live`: the page on localhost, and what is new in the folder since the page last asked.

Listens on 127.0.0.1 only, which every user of the machine reaches: so its address holds a secret, which is printed once and
stands in two files of the folder that are for their owner alone. A cookie would not do: browsers send one of 127.0.0.1 to every
port, whoever listens there. A request must also name this address as its host, so that a web page which points its own name at
127.0.0.1 (DNS rebinding) gets nothing; there is nothing to write to, and no other path than the page and its data."""

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tacit import store
from tacit.engine.loop import Observer
from tacit.engine.run_files import STATUS
from tacit.errors import BadInput, TacitError
from tacit.report.page import collect, render, results_of, write_page

HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Content-Security-Policy", "frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
)
TOKEN_BYTES = 16
LINK, PAGE = "live.url", "live.html"  # the address, for scripts and for a browser: a command line is for all to read
HERE = '<!doctype html><meta http-equiv="refresh" content="0; url={url}">\n'
SILENT_SECONDS = 10  # until a connection that asks nothing is closed
MOST_DIGITS = 9  # of a round's number
WATCHED = ("rounds.jsonl", "summary.json", "clients.json", "ledger.db", STATUS)


class Server(ThreadingHTTPServer):
    """Serves the folders on 127.0.0.1. `port = 0` takes any that is free."""

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], *, port: int = 0):
        self.folders, self.busy, self.token = list(folders), threading.Lock(), secrets.token_urlsafe(TOKEN_BYTES)
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:
            raise BadInput(f"Port {port} cannot be used ({error}): choose another --port, or leave it out.") from None
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}
        self.url = f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def data(self, since: int) -> dict[str, Any]:
        """The page's data, one request at a time: pricing is not for many threads."""
        with self.busy:
            return collect(self.folders, since=since, live=True)

    def digest(self) -> str:
        """Changes when a file of the folders does."""
        found = []
        for folder in map(results_of, self.folders):
            runs = sorted(folder.glob("runs/*/seed-*")) if (folder / "compare.toml").exists() else [folder]
            for path in (run / name for run in runs for name in WATCHED):
                with suppress(OSError):
                    stat = path.stat()
                    found.append(f"{stat.st_mtime_ns:x}.{stat.st_size:x}")
        return "-".join(found)


class Handler(BaseHTTPRequestHandler):
    """GET the page and its data, for this host and whoever has the server's secret."""

    server: Any
    timeout = SILENT_SECONDS
    server_version, sys_version = "tacit", ""

    def do_GET(self) -> None:
        """Answers with the page or its data, and refuses every other host, secret and path."""
        try:
            url = urlsplit(self.path)
        except ValueError:
            url = None
        token, _, rest = url.path.removeprefix("/").partition("/") if url else ("", "", "")
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "This page is served to 127.0.0.1 alone.")
        elif url is None:
            self._refuse(HTTPStatus.BAD_REQUEST, "This is no address.")
        elif not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "Open the address that `tacit report --live` has printed.")
        elif rest not in ("", "data"):
            self._refuse(HTTPStatus.NOT_FOUND, "There is only the page and its data here.")
        else:
            try:
                if rest == "data":
                    self._data(parse_qs(url.query))
                else:
                    self._answer(HTTPStatus.OK, render(self.server.data(0)).encode(), "text/html")
            except TacitError as error:
                self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._answer(status, f"{why}\n".encode(), "text/plain")

    def _data(self, query: dict[str, list[str]]) -> None:
        digest = self.server.digest()
        if query.get("mark") == [digest]:
            self._answer(HTTPStatus.NO_CONTENT, b"", "application/json")
            return
        (since,) = query.get("since", ["0"])[:1]
        counts = since.isascii() and since.isdecimal() and len(since) <= MOST_DIGITS
        data = self.server.data(int(since) if counts else 0)
        body = json.dumps(data, allow_nan=False).encode()
        self._answer(HTTPStatus.OK, body, "application/json", ("X-Tacit-Mark", digest))

    def _answer(self, status: HTTPStatus, body: bytes, kind: str, *more: tuple[str, str]) -> None:
        self.send_response(status)
        sizes = (("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(body))))
        for name, value in (*sizes, *HEADERS, *more):
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):  # the reader may have left
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal is for the person."""


def serve(folders: Sequence[Path], *, port: int, ready: Callable[[str, Path], None]) -> None:
    """Serves until Ctrl-C. `ready` is called with the address, and a file (0600) that leads a browser to it. Raises: BadInput
    first if the folders cannot be shown, or the first of them cannot be written to."""
    collect(folders, live=True)
    with Server(folders, port=port) as server, suppress(KeyboardInterrupt):
        link, page = folders[0] / LINK, folders[0] / PAGE
        try:
            store.write(link, f"{server.url}\n".encode(), mode=store.OWNER)
            store.write(page, HERE.format(url=server.url).encode(), mode=store.OWNER)
        except OSError as error:
            raise BadInput(f"{folders[0]} cannot be written to ({error}): --live leaves its address there.") from None
        try:
            ready(server.url, page)
            server.serve_forever(poll_interval=0.2)
        finally:
            link.unlink(missing_ok=True)
            page.unlink(missing_ok=True)


# `report.html` while a run goes on, so that one that is killed has a page: before its first round, after two seconds,
# then every now and then.

FIRST_SECONDS = 2.0  # a shorter run pays for two pages: before its first round, and at its end
EVERY_SECONDS = 20.0  # between two pages, at least
SHARE = 20  # and this many times what the last one took


@contextlib.contextmanager
def page_meanwhile(folder: Path, observe: Observer | None, *, opened: bool = True) -> Iterator[Observer]:
    """An observer that also keeps the folder's page; what raises within leaves a last one. Where the folder is not `opened`
    yet, it may hold another run, and whoever opens it makes the first page (`Pages.begin`)."""
    pages = Pages(folder)
    if opened:
        pages.begin()

    def both(record: dict[str, Any]) -> None:
        if observe:
            observe(record)
        pages.keep()

    try:
        yield both
    except BaseException:
        pages.keep(now=True)
        raise


class Pages:
    """The page of one folder, made again when it is due. One that cannot be made is left out."""

    def __init__(self, folder: Path):
        self._folder, self._due = folder, 0.0

    def begin(self) -> None:
        """Makes the page of a run that is about to go on; the next is due when there is something to see."""
        self._make(FIRST_SECONDS)

    def keep(self, *, now: bool = False) -> None:
        if now or time.monotonic() >= self._due:
            self._make(EVERY_SECONDS)

    def _make(self, least: float) -> None:
        began = time.monotonic()
        with contextlib.suppress(Exception):  # whatever lies in the folder: it is the run that must not be lost
            if (self._folder / "experiment.toml").exists():
                write_page([self._folder], self._folder / "report.html", quick=True)
        ends = time.monotonic()
        self._due = ends + max(least, SHARE * (ends - began))
