"""The gateway's connections to the SuperLink on loopback, and what comes back on them."""

import asyncio
import contextlib
import ssl
import time
from pathlib import Path

from tacit.federation.operate.http import END, HEAD_BYTES, BadHead, Head, dumps, parse

PIECE = 64 << 10
FRESH_SECONDS = 3.0  # uvicorn ends a connection that was idle for five
ANSWER_SECONDS = 120.0  # a SuperLink with many sites can be slow
KEPT_BACK = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"trailer", b"upgrade", b"server"))

Read = asyncio.StreamReader
Write = asyncio.StreamWriter


async def copy(reader: Read, writer: Write, length: int, *, seconds: float) -> None:
    """Passes on so many bytes, piece by piece, and no more; the slower side sets the pace.

    Raises: EOFError where fewer come; TimeoutError where a piece takes longer than `seconds`.
    """
    while length:
        async with asyncio.timeout(seconds):
            piece = await reader.read(min(PIECE, length))
            if not piece:
                raise EOFError
            writer.write(piece)
            await writer.drain()
        length -= len(piece)
    await writer.drain()


class Line:
    """One connection to the SuperLink, used for one request at a time; `since` is when it was used last."""

    def __init__(self, reader: Read, writer: Write):
        self.reader, self.writer, self.since = reader, writer, time.monotonic()

    async def answer(self, to: Write) -> bool:
        """Passes one answer on; whether the connection can be used again.

        An error within the SuperLink (500) goes on as one that passes (503): Flower's nodes end at the first and wait at the
        second.

        Raises: BadHead (502) for what is no answer, or none in `ANSWER_SECONDS`; EOFError, TimeoutError or OSError where it
        breaks off in the middle. The connection is then of no use.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                head = parse(await self.reader.readuntil(END))
        except (BadHead, EOFError, asyncio.LimitOverrunError, TimeoutError, OSError):
            raise BadHead(502, "the SuperLink did not answer") from None
        headers = [(name, value) for name, value in head.headers if name not in KEPT_BACK]
        chunked, lengths = head.all(b"transfer-encoding") == [b"chunked"], head.all(b"content-length")
        if chunked:
            headers = [(name, value) for name, value in headers if name != b"content-length"]
            headers.append((b"transfer-encoding", b"chunked"))
        elif len(lengths) != 1 or not lengths[0].isdigit():
            raise BadHead(502, "the SuperLink's answer has no length")
        to.write(dumps(b" ".join(_as_passing(head.first)), headers))
        if chunked:
            await self._chunks(to)
        else:
            await copy(self.reader, to, int(lengths[0]), seconds=ANSWER_SECONDS)
        return not _closes(head)

    async def _chunks(self, to: Write) -> None:
        while True:
            size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
            to.write(b"%x\r\n" % size)
            await copy(self.reader, to, size, seconds=ANSWER_SECONDS)
            if await self.reader.readexactly(2) != b"\r\n":
                raise EOFError
            to.write(b"\r\n")
            if not size:
                await to.drain()
                return

    def close(self) -> None:
        """Ends the connection; one that is broken already is no error."""
        with contextlib.suppress(OSError, ssl.SSLError):
            self.writer.close()


class Upstream:
    """The SuperLink, and the connections to it that are idle; the last used is used first."""

    def __init__(self, address: str, port: int, *, authority: Path):
        self._address = (address, port)
        self._context = ssl.create_default_context(cafile=str(authority))
        self._idle: list[Line] = []
        self.host = f"{address}:{port}".encode()

    async def take(self) -> Line | None:
        """A connection, idle for less than `FRESH_SECONDS` or new; None where the SuperLink cannot be reached.

        A new one is held to the authority's certificate.
        """
        while self._idle:
            line = self._idle.pop()
            if time.monotonic() - line.since < FRESH_SECONDS and not line.reader.at_eof():
                return line
            line.close()
        try:
            return Line(*await asyncio.open_connection(*self._address, ssl=self._context, limit=HEAD_BYTES))
        except (OSError, ssl.SSLError):
            return None

    def give(self, line: Line, *, keep: bool) -> None:
        """Takes a connection back after its answer; without `keep` it is closed."""
        line.since = time.monotonic()
        if keep:
            self._idle.append(line)
        else:
            line.close()


def _as_passing(first: tuple[bytes, bytes, bytes]) -> tuple[bytes, bytes, bytes]:
    """An error within the SuperLink ("database is locked") as one that passes: Flower's nodes end at 500, and wait at 503."""
    return (first[0], b"503", b"Service Unavailable") if first[1] == b"500" else first


def _closes(head: Head) -> bool:
    return any(value.lower() == b"close" for value in head.all(b"connection")) or head.first[0] != b"HTTP/1.1"
