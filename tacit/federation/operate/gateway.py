"""The only door of a federation's server: TLS ends here, and nothing passes but what SuperNodes ask of the Fleet API.

Flower 1.41 serves its Fleet API (sites, each proved by its node key) and its Control API (whoever reaches the port may list
runs, register nodes and start programs on the server) on one port. So the SuperLink listens on loopback, and this passes on
the Fleet API's requests, by an exact list of paths, each written anew from what was understood. All else gets 403 and a
line in the log: `python -m tacit.federation.operate.gateway LISTEN UPSTREAM FOLDER`, each of the first two as host:port.
"""

import asyncio
import contextlib
import ipaddress
import os
import signal
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable
from email.utils import formatdate
from pathlib import Path
from typing import Any, TypeVar

from tacit.federation.operate.http import END, HEAD_BYTES, BadHead, Head, body_length, dumps, parse
from tacit.federation.operate.upstream import Upstream, copy

FLEET = ("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
         "push-object", "pull-object", "confirm-message-received")  # fmt: skip
PATHS = frozenset(f"/v1/fleet/{name}".encode() for name in FLEET)  # no (un)register-node: the server's people do that
HEALTH = (b"GET", b"/health", b"HTTP/1.1")
PASSED = frozenset(  # what the Fleet API reads; any other header stays here
    b"content-type accept flwr-public-key flwr-signature flwr-timestamp "
    b"flwr-package-name flwr-package-version flwr-component-name".split()
)
MOST_BYTES = 64 << 20  # of a request; Flower cuts arrays into pieces of 5 MiB, Tacit keeps other bodies below that
MOST_LINES = 1024  # connections at once,
MOST_FROM_ONE = 256  # and from one address
IDLE_SECONDS = 75.0  # for a whole head, from the end of the request before
BODY_SECONDS = 30.0  # for the next piece of a body
LINGER_SECONDS = 1.0
WORDS = {400: "Bad Request", 403: "Forbidden", 411: "Length Required", 413: "Content Too Large", 431: "Too Large",
         501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable"}  # fmt: skip
LOGGED_A_MINUTE = 60  # refusals; the rest are counted

Read = asyncio.StreamReader
Write = asyncio.StreamWriter
T = TypeVar("T")


class Gateway:
    """Passes the requests of many connections on to one server.

    Guarantee: nothing reaches the server but POSTs to the paths of `PATHS` with a body of known length up to `MOST_BYTES`,
    written anew with the headers of `PASSED` only. It holds one piece of a body at a time and at most `MOST_LINES` connections,
    `MOST_FROM_ONE` from one address; a head, and every piece of a body, has to come in time.

    Assumes: who a site is the server finds out, by the signature in the headers; the gateway only looks at what is asked.
    """

    def __init__(self, upstream: Upstream):
        self.upstream = upstream
        self._lines: Counter[str] = Counter()
        self._logged, self._minute = 0, 0

    async def serve(self, reader: Read, writer: Write) -> None:
        """Serves one connection, request after request, until either side ends it.

        Guarantee: nothing is raised, whatever comes. A request that is refused gets its status, a line in the log, and is the
        connection's last, since nobody can know where the next one would begin.
        """
        peer = str(writer.get_extra_info("peername", ("?",))[0])
        self._lines[peer] += 1
        try:
            if self._lines.total() > MOST_LINES or self._lines[peer] > MOST_FROM_ONE:
                raise BadHead(503, "there are too many connections")
            while await self._request(reader, writer, peer):
                pass
        except BadHead as error:
            self.log(peer, f"refused ({error.status}): {error}")
            await _refuse(reader, writer, error.status)
        except (OSError, EOFError, TimeoutError, ssl.SSLError, asyncio.CancelledError):
            pass  # the connection has gone, or was too slow, or the gateway ends
        finally:
            self._lines[peer] -= 1
            if not self._lines[peer]:
                del self._lines[peer]
            with contextlib.suppress(OSError, ssl.SSLError):
                writer.close()

    async def _request(self, reader: Read, writer: Write, peer: str) -> bool:
        """One request; whether another may follow on the connection."""
        head = parse(await _in_time(_head(reader), IDLE_SECONDS))
        if head.first == HEALTH and not head.all(b"content-length") and not head.all(b"transfer-encoding"):
            writer.write(_answer(200, b"ok\n"))
            await writer.drain()
            return True
        length = self._allowed(head)
        headers = [(name, value) for name, value in head.headers if name in PASSED]
        headers += [(b"host", self.upstream.host), (b"content-length", b"%d" % length)]
        line = await self.upstream.take()
        if line is None:
            self.log(peer, "the SuperLink cannot be reached")
            writer.write(_answer(502, b"The SuperLink cannot be reached.\n"))
            await writer.drain()
            return False
        try:
            line.writer.write(dumps(b"POST " + head.first[1] + b" HTTP/1.1", headers))
            await copy(reader, line.writer, length, seconds=BODY_SECONDS)
            keep = await line.answer(writer)
        except BaseException:
            line.close()
            raise
        self.upstream.give(line, keep=keep)
        return keep and [value.lower() for value in head.all(b"connection")] in ([], [b"keep-alive"])

    def _allowed(self, head: Head) -> int:
        """The length of an allowed request's body. Raises BadHead for any other."""
        method, target, version = head.first
        if method != b"POST" or target not in PATHS or version != b"HTTP/1.1":
            raise BadHead(403, f"{b' '.join(head.first)[:120]!r} is nothing that sites ask")
        if any(head.all(name) for name in (b"upgrade", b"expect", b"te", b"trailer")):
            raise BadHead(403, "it asks for another protocol")
        return body_length(head, most=MOST_BYTES)

    def log(self, peer: str, text: str) -> None:
        """Prints a line with the time and who it was; after `LOGGED_A_MINUTE` of them in a minute the rest are counted."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            if self._logged > LOGGED_A_MINUTE:
                print(f"... and {self._logged - LOGGED_A_MINUTE} more refusals", flush=True)
            self._logged, self._minute = 0, minute
        self._logged += 1
        if self._logged <= LOGGED_A_MINUTE:
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {peer}  {text}", flush=True)


async def _head(reader: Read) -> bytes:
    try:
        return await reader.readuntil(END)
    except asyncio.LimitOverrunError:
        raise BadHead(431, f"its head is longer than {HEAD_BYTES} bytes") from None


async def _in_time(what: Awaitable[T], seconds: float) -> T:
    async with asyncio.timeout(seconds):
        return await what


def _answer(status: int, text: bytes) -> bytes:
    headers = [(b"date", formatdate(usegmt=True).encode()), (b"content-type", b"text/plain")]
    headers += [(b"content-length", b"%d" % len(text))]
    headers += [(b"connection", b"close")] if status != 200 else []
    return dumps(b"HTTP/1.1 %d %s" % (status, WORDS.get(status, "OK").encode()), headers) + text


async def _refuse(reader: Read, writer: Write, status: int) -> None:
    with contextlib.suppress(OSError, EOFError, ssl.SSLError, TimeoutError):
        writer.write(_answer(status, b"This server passes on what its sites ask, and nothing else.\n"))
        await _in_time(writer.drain(), BODY_SECONDS)
        await _in_time(reader.read(HEAD_BYTES), LINGER_SECONDS)  # an unread body would cut the answer off


async def run(listen: tuple[str, int], upstream: Upstream, certificates: Path) -> None:
    """Listens, over TLS 1.2 or newer with the certificate of the folder, until SIGTERM or SIGINT. Raises: OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    gateway, stop, loop = Gateway(upstream), asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    options: dict[str, Any] = {
        "ssl": context,
        "limit": HEAD_BYTES,
        "ssl_handshake_timeout": BODY_SECONDS,
        "backlog": 512,
    }
    server = await asyncio.start_server(gateway.serve, *listen, **options)
    print(f"The gateway listens on {listen[0]}:{listen[1]}.", flush=True)
    async with server:
        await stop.wait()


def endpoint(text: str) -> tuple[str, int]:
    """The address and port of "address:port"; IPv6 addresses stand in brackets. Raises: ValueError, also for a host's name.

    >>> endpoint("127.0.0.1:8443"), endpoint("[::1]:8443")
    (('127.0.0.1', 8443), ('::1', 8443))
    """
    host, _, port = text.rpartition(":")
    return str(ipaddress.ip_address(host.strip("[]"))), int(port)


if __name__ == "__main__":
    os.umask(0o077)
    own = Path(sys.argv[3])
    asyncio.run(run(endpoint(sys.argv[1]), Upstream(*endpoint(sys.argv[2]), authority=own / "ca.crt"), own))
