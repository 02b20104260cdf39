"""The gateway of a federation's server: TLS ends here, and nothing passes but what its sites ask of Flower's Fleet API.

Flower 1.41 serves its Fleet API (sites) and its Control API (whoever reaches the port may list runs, register nodes and start
programs on the server) on one port, and reads and parses a whole body before it looks whose it is. So the SuperLink listens on
loopback, and this passes on the Fleet API's requests, by an exact list of paths with a size each, signed by a registered key,
and written anew from what was understood. All else gets a refusal and a line in the log:
`python -m tacit.deploy.operate.gateway LISTEN UPSTREAM FOLDER NAME=KEY.pub...`, each of the first two as host:port."""

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import ssl
import sys
import time
from collections import Counter
from email.utils import formatdate
from pathlib import Path
from typing import Any

from tacit.deploy.operate import connections

# The gateway's connections to the SuperLink on loopback, and what comes back on them.

PIECE = 64 << 10
FRESH_SECONDS = 3.0  # uvicorn ends a connection that was idle for five
ANSWER_SECONDS = 120.0  # a SuperLink with many sites can be slow
KEPT_BACK = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"trailer", b"upgrade", b"server"))

Read = asyncio.StreamReader
Write = asyncio.StreamWriter


async def copy(reader: Read, writer: Write, length: int, *, seconds: float) -> None:
    """Passes on so many bytes and no more; the slower side sets the pace. Raises: EOFError for fewer; TimeoutError."""
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
    """One connection to the SuperLink, used for one request at a time."""

    def __init__(self, reader: Read, writer: Write):
        self.reader, self.writer, self.since = reader, writer, time.monotonic()
        self.at_work = False  # whether the SuperLink has a whole request and has not begun to answer it

    async def answer(self, to: Write) -> tuple[int, bool]:
        """Passes one answer on. Returns the length of what it grants, 0 for a refusal, and whether the connection lasts.
        Raises: BadHead (502).

        An error within the SuperLink (500) goes on as one that passes (503): Flower's nodes end at the first and wait at the
        second.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                head = connections.parse(await self.reader.readuntil(connections.END))
        except (connections.BadHead, EOFError, asyncio.LimitOverrunError, TimeoutError, OSError):
            self.at_work = False
            raise connections.BadHead(502, "the SuperLink did not answer") from None
        self.at_work = False
        lengths = head.all(b"content-length")
        if head.all(b"transfer-encoding") or len(lengths) != 1 or not lengths[0].isdigit():
            raise connections.BadHead(502, "the SuperLink's answer has no length")
        version, status, words = head.first
        first = (version, b"503", b"Service Unavailable") if status == b"500" else (version, status, words)
        to.write(connections.dumps(b" ".join(first), [each for each in head.headers if each[0] not in KEPT_BACK]))
        await copy(self.reader, to, int(lengths[0]), seconds=ANSWER_SECONDS)
        ends = any(value.lower() == b"close" for value in head.all(b"connection")) or version != b"HTTP/1.1"
        return int(lengths[0]) if status == b"200" else 0, not ends

    async def ended(self, turn: asyncio.Semaphore) -> None:
        """Waits for the answer that nobody hears any more, and gives the turn back."""
        with contextlib.suppress(EOFError, asyncio.LimitOverrunError, TimeoutError, OSError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.reader.readuntil(connections.END)
        self.close()
        turn.release()

    def close(self) -> None:
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
        """A connection, idle for less than `FRESH_SECONDS` or new and held to the authority's certificate; None where there is
        none.
        """
        while self._idle:
            line = self._idle.pop()
            if time.monotonic() - line.since < FRESH_SECONDS and not line.reader.at_eof():
                return line
            line.close()
        try:
            return Line(*await asyncio.open_connection(*self._address, ssl=self._context, limit=connections.HEAD_BYTES))
        except (OSError, ssl.SSLError):
            return None

    def give(self, line: Line, *, keep: bool) -> None:
        line.since = time.monotonic()
        if keep:
            self._idle.append(line)
        else:
            line.close()


NAMES_BYTES = 1 << 10  # of a request that names a node, a run and an object: 50 to 300
TREE_BYTES = 24 << 10  # of an announced answer: 70 for each part (`superlink.MOST_PARTS`), and its metadata
PIECE_BYTES = (5 << 20) + (64 << 10)  # Flower cuts arrays into pieces of 5 MiB, Tacit keeps other bodies below that
LIMITS = dict.fromkeys(  # no (un)register-node: the server's people do that
    (b"activate-node", b"deactivate-node", b"send-node-heartbeat", b"pull-messages", b"get-run", b"get-fab",
     b"pull-object", b"confirm-message-received"), NAMES_BYTES,
) | {b"push-messages": TREE_BYTES, b"push-object": PIECE_BYTES}  # fmt: skip
PATHS = {b"/v1/fleet/" + name: most for name, most in LIMITS.items()}
HEALTH = (b"GET", b"/health", b"HTTP/1.1")
PASSED = frozenset(  # what the Fleet API reads; any other header stays here
    b"content-type accept flwr-public-key flwr-signature flwr-timestamp "
    b"flwr-package-name flwr-package-version flwr-component-name".split()
)
PIECES_OF_KEY = 4  # on their way to or from the SuperLink at once; Flower sends two, and the next waits unread
# Of other calls one at a time: most of them write, and who waits for SQLite's lock has no turn. Sixteen announcements of one site
# at once have kept another site's look waiting for half a minute.
PIECES = frozenset((b"/v1/fleet/push-object", b"/v1/fleet/pull-object"))
FIRST_SECONDS = 5.0  # for a connection's first head,
IDLE_SECONDS = 75.0  # and for a further one, from the end of the request before
BODY_SECONDS = 30.0  # for the next piece of a body
LINGER_SECONDS = 1.0
FULL_SECONDS = 0.1  # before another connection is accepted where that failed
WORDS = {400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 411: "Length Required", 413: "Content Too Large",
         431: "Too Large", 501: "Not Implemented", 502: "Bad Gateway"}  # fmt: skip
REFUSAL = "This server passes on what its sites ask, and nothing else.\n"
TEXTS = {
    401: "This server does not take this key: it is not registered here, or its machine's clock is more than 5 minutes off.\n",
    502: "The SuperLink does not answer.\n",
}
LOGGED_A_MINUTE = 60  # lines about others, and as many about itself; the rest are counted
SELF = "gateway"


class Gateway:
    """Passes the requests of many connections on to one server.

    Guarantee: nothing reaches the server, and no body is read, but POSTs to `PATHS`, signed by a registered key, with a body of
    known length up to the path's own limit, written anew with the headers of `PASSED` only, in time and piece by piece.
    """

    def __init__(
        self, upstream: Upstream, keys: connections.Keys, context: ssl.SSLContext, account: connections.Account
    ):
        self.upstream, self._keys, self._context, self._account = upstream, keys, context, account
        self._connections = connections.Connections()
        self._turns: dict[tuple[str, bytes], asyncio.Semaphore] = {}  # by site and path, of which there are few
        self._endings: set[asyncio.Task[None]] = set()
        self._logged, self._minute = Counter[bool](), 0

    async def accept(self, listening: socket.socket) -> None:
        """Accepts connections for ever. Where none can be, as every file of the process is in use, a stranger's is ended for it."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listening)
            except ConnectionError:
                continue  # it has gone again
            except OSError as error:
                self.log(SELF, f"no connection can be accepted ({error.strerror})")
                self._connections.make_room()
                await asyncio.sleep(FULL_SECONDS)
                continue
            peer = str(address[0])
            self._connections.add(loop.create_task(self._serve(sock, peer)), peer)

    async def _serve(self, sock: socket.socket, peer: str) -> None:
        task: Any = asyncio.current_task()
        try:
            reader, writer = await connections.secure(sock, self._context)
            try:
                seconds = FIRST_SECONDS
                try:
                    while await self._request(reader, writer, task, seconds):
                        seconds = IDLE_SECONDS
                except connections.BadHead as error:
                    self.log(peer, f"refused ({error.status}): {error}")
                    await _refuse(reader, writer, error.status)
                writer.close()
                await writer.wait_closed()
            finally:
                writer.transport.abort()
        except (OSError, EOFError, TimeoutError):
            pass  # the connection has gone, was too slow, or never spoke TLS
        finally:
            self._connections.drop(task)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    async def _request(self, reader: Read, writer: Write, task: connections.Task, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                head = connections.parse(await reader.readuntil(connections.END))
        except asyncio.LimitOverrunError:
            raise connections.BadHead(431, f"its head is longer than {connections.HEAD_BYTES} bytes") from None
        if head.first == HEALTH and not head.all(b"content-length") and not head.all(b"transfer-encoding"):
            writer.write(_answer(200, b"ok\n"))
            await writer.drain()
            return False
        length, name = _allowed(head), connections.signer(head, self._keys)
        self._connections.prove(task, name)
        self._account.store(name, head.first[1], length)
        headers = [(header, value) for header, value in head.headers if header in PASSED]
        headers += [(b"host", self.upstream.host), (b"content-length", b"%d" % length)]
        target = head.first[1]
        turn = self._turns.setdefault((name, target), asyncio.Semaphore(PIECES_OF_KEY if target in PIECES else 1))
        await turn.acquire()
        line = None
        try:
            line = await self.upstream.take()
            if line is None:
                raise connections.BadHead(502, "the SuperLink cannot be reached")
            line.writer.write(connections.dumps(b"POST " + target + b" HTTP/1.1", headers))
            await copy(reader, line.writer, length, seconds=BODY_SECONDS)
            line.at_work = True
            answered, keep = await line.answer(writer)
            self._account.handed(name, target, answered)
            self.upstream.give(line, keep=keep)
        finally:
            if line is not None and line.at_work:  # who hung up keeps its turn until the SuperLink is done with it
                ending = asyncio.create_task(line.ended(turn))
                self._endings.add(ending)
                ending.add_done_callback(self._endings.discard)
            else:
                turn.release()
                if sys.exc_info()[0] is not None and line is not None:
                    line.close()
        return keep and [value.lower() for value in head.all(b"connection")] in ([], [b"keep-alive"])

    def log(self, who: str, text: str) -> None:
        """Prints a line about `SELF` or an address; after `LOGGED_A_MINUTE` in a minute, about either, the rest are counted."""
        minute, kind = int(time.monotonic() // 60), who == SELF
        if minute != self._minute:
            more = sum(max(0, count - LOGGED_A_MINUTE) for count in self._logged.values())
            if more:
                print(f"... and {more} more lines", flush=True)
            self._logged, self._minute = Counter(), minute
        self._logged[kind] += 1
        if self._logged[kind] <= LOGGED_A_MINUTE:
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {who}  {text}", flush=True)


def _allowed(head: connections.Head) -> int:
    method, target, version = head.first
    if method != b"POST" or target not in PATHS or version != b"HTTP/1.1":
        raise connections.BadHead(403, f"{b' '.join(head.first)[:120]!r} is nothing that sites ask")
    if any(head.all(name) for name in (b"upgrade", b"expect", b"te", b"trailer")):
        raise connections.BadHead(403, "it asks for another protocol")
    return connections.body_length(head, most=PATHS[target])


def _answer(status: int, text: bytes) -> bytes:
    headers = [(b"date", formatdate(usegmt=True).encode()), (b"content-type", b"text/plain")]
    headers += [(b"content-length", b"%d" % len(text)), (b"connection", b"close")]
    return connections.dumps(b"HTTP/1.1 %d %s" % (status, WORDS.get(status, "OK").encode()), headers) + text


async def _refuse(reader: Read, writer: Write, status: int) -> None:
    writer.write(_answer(status, TEXTS.get(status, REFUSAL).encode()))
    async with asyncio.timeout(connections.TLS_SECONDS):
        await writer.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):  # an unread body would cut the answer off
            await reader.read(connections.HEAD_BYTES)


async def run(listen: tuple[str, int], upstream: Upstream, certificates: Path, keys: connections.Keys) -> None:
    """Listens, over TLS 1.2 or newer with the certificate of the folder, until SIGTERM or SIGINT."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    gateway = Gateway(upstream, keys, context, connections.Account(certificates))
    loop.set_exception_handler(lambda _, what: gateway.log(SELF, str(what.get("exception") or what["message"])))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
    with socket.create_server(listen, family=family, backlog=512) as listening:
        listening.setblocking(False)
        print(f"The gateway listens on {listen[0]}:{listen[1]}.", flush=True)
        accepting = asyncio.create_task(gateway.accept(listening))
        await asyncio.wait((accepting, asyncio.create_task(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
        if accepting.done():
            accepting.result()


def endpoint(text: str) -> tuple[str, int]:
    """The address and port of "address:port"; IPv6 addresses stand in brackets. Raises: ValueError, also for a host's name."""
    host, _, port = text.rpartition(":")
    return str(ipaddress.ip_address(host.strip("[]"))), int(port)


if __name__ == "__main__":
    os.umask(0o077)
    own = Path(sys.argv[3])
    known = connections.load_keys({name: Path(key) for name, _, key in (word.partition("=") for word in sys.argv[4:])})
    asyncio.run(run(endpoint(sys.argv[1]), Upstream(*endpoint(sys.argv[2]), authority=own / "ca.crt"), own, known))
