"""The gateway's connections, counted from the moment they are accepted, before TLS and before a byte is read.

A connection is a stranger's until a request on it is signed by a registered key. Strangers share one room, each key has its
own, and a full room ends its oldest connection: who keeps still keeps nobody out."""

import asyncio
import base64
import binascii
import contextlib
import datetime
import re
import socket
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tacit.errors import BadInput

# One HTTP/1.1 head, read strictly: what may be understood in two ways is refused.

HEAD_BYTES = 16 << 10  # a signed request of Flower's has about one kilobyte
MOST_HEADERS = 64
NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # token, RFC 9110, 5.6.2
VALUE = re.compile(rb"[\t\x20-\x7e]*")
LENGTH = re.compile(rb"[0-9]{1,12}")
END = b"\r\n\r\n"


class BadHead(Exception):
    """A head that is not understood, or not allowed; `status` is what its sender is told, the message what the log has."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Head:
    """The first line's three words and the headers in their order, names in lower case."""

    first: tuple[bytes, bytes, bytes]
    headers: tuple[tuple[bytes, bytes], ...]

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a header, whose name is in lower case: one that stands twice is seen twice."""
        return [value for key, value in self.headers if key == name]


def parse(raw: bytes) -> Head:
    """A head as it came, with its empty line. Raises: BadHead (400, or 431 for more than `MOST_HEADERS`).

    Guarantee: what passes can be understood in one way: lines end in CRLF, none is folded, names are tokens (RFC 9110, 5.6.2) and
    directly followed by a colon, values are printable ASCII without spaces around them.
    """
    if not raw.endswith(END):
        raise BadHead(400, "it does not end")
    first, *lines = raw[: -len(END)].split(b"\r\n")
    words = first.split(b" ", 2)
    if len(words) != 3 or not VALUE.fullmatch(first):
        raise BadHead(400, "its first line is not one of HTTP")
    if len(lines) > MOST_HEADERS:
        raise BadHead(431, f"it has more than {MOST_HEADERS} headers")
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        if not colon or not NAME.fullmatch(name) or not VALUE.fullmatch(value):
            raise BadHead(400, "a header is not one of HTTP")
        headers.append((name.lower(), value))
    return Head((words[0], words[1], words[2]), tuple(headers))


def body_length(head: Head, *, most: int) -> int:
    """A body's length by its one Content-Length. Raises: BadHead where a proxy and a server could see two ends (RFC 9112, 6.3)."""
    lengths = head.all(b"content-length")
    if head.all(b"transfer-encoding"):
        raise BadHead(501, "it has a Transfer-Encoding")
    if len(lengths) != 1 or not LENGTH.fullmatch(lengths[0]):
        raise BadHead(411 if not lengths else 400, "it needs one Content-Length")
    if int(lengths[0]) > most:
        raise BadHead(413, f"its body is longer than {most} bytes")
    return int(lengths[0])


def dumps(first: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """A head as it is sent, of what `parse` understood or the program's own."""
    return b"\r\n".join([first, *(name + b": " + value for name, value in headers)]) + END


MOST_STRANGERS = 256  # who is honest is one for some milliseconds
MOST_OF_KEY = 16  # a site has a few, and those of its process before this one
TLS_SECONDS = 5.0  # for a handshake, and for a goodbye

Task = asyncio.Task[Any]


class Connections:
    """The tasks that serve connections: at most `MOST_STRANGERS` strangers' and `MOST_OF_KEY` of a key are left."""

    def __init__(self) -> None:
        self._strangers: dict[Task, str] = {}  # and their addresses, the oldest first
        self._keys: defaultdict[str, dict[Task, None]] = defaultdict(dict)

    def add(self, task: Task, address: str) -> None:
        self._strangers[task] = address
        if len(self._strangers) > MOST_STRANGERS:
            self.make_room()

    def make_room(self) -> None:
        """Ends the oldest of the strangers' connections from the address that has the most; with none, nothing."""
        for address, _ in Counter(self._strangers.values()).most_common(1):
            oldest = next(task for task, other in self._strangers.items() if other == address)
            del self._strangers[oldest]
            oldest.cancel()

    def prove(self, task: Task, name: str) -> None:
        """Takes a connection for a site's from now on."""
        if self._strangers.pop(task, None) is not None:
            own = self._keys[name]
            own[task] = None
            if len(own) > MOST_OF_KEY:
                oldest = next(iter(own))
                del own[oldest]
                oldest.cancel()

    def drop(self, task: Task) -> None:
        self._strangers.pop(task, None)
        for own in self._keys.values():
            own.pop(task, None)


async def secure(sock: socket.socket, context: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An accepted connection's two streams within TLS. Raises: OSError, also where that takes longer than `TLS_SECONDS`."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=HEAD_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, sock, ssl=context, ssl_handshake_timeout=TLS_SECONDS, ssl_shutdown_timeout=TLS_SECONDS
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


# Whose request it is, by its headers alone: a registered key, the time, and the key's signature over it.

KEY, TIME, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
EARLY_SECONDS, LATE_SECONDS = 5.0, 305.0  # as the SuperLink has them
PEM = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

Keys = dict[bytes, tuple[str, ec.EllipticCurvePublicKey]]  # by what a request's header shows: its site and itself


def load_keys(files: dict[str, Path]) -> Keys:
    """The sites' public keys, from files in OpenSSH's format. Raises: BadInput for one that cannot be read, or is none."""
    keys: Keys = {}
    for name, path in files.items():
        try:
            key = serialization.load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError) as error:
            raise BadInput(f"{path} cannot be read as the public key of {name} ({error}).") from None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise BadInput(f"{path} is not a key as `tacit deploy init` makes them.")
        keys[base64.b64encode(key.public_bytes(*PEM))] = name, key
    return keys


def signer(head: Head, keys: Keys) -> str:
    """The site that signed a request. Raises: BadHead (401).

    Guarantee: the key stands in `keys`, the signature over the time is the key's, and the time is at most `LATE_SECONDS` past and
    `EARLY_SECONDS` ahead. The signature covers neither path nor body: TLS holds them.
    """
    if any(len(head.all(name)) != 1 for name in (KEY, TIME, SIGNATURE)):
        raise BadHead(401, "it is not signed")
    (shown,), (time,), (signature,) = (head.all(name) for name in (KEY, TIME, SIGNATURE))
    if shown not in keys:
        raise BadHead(401, "its key is not registered")
    name, key = keys[shown]
    try:
        age = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(time.decode())).total_seconds()
        if not -EARLY_SECONDS < age < LATE_SECONDS:
            raise BadHead(401, f"the clock of {name} differs by {age:.0f} s")
        key.verify(base64.b64decode(signature, validate=True), time, ec.ECDSA(hashes.SHA256()))
    except (ValueError, TypeError, OverflowError, binascii.Error, InvalidSignature):
        raise BadHead(401, f"it shows the key of {name} and is not signed with it") from None
    return name


# How much a site may store at the SuperLink until it is asked again: its answer, a few times over, and not a disk full.

STORING = frozenset((b"/v1/fleet/push-messages", b"/v1/fleet/push-object"))
ASKED = b"/v1/fleet/pull-messages"
FILE = "answer-bytes"  # in the server's folder: how many an honest answer of its run has, written before anybody trains
LEAST_BYTES = 1 << 20  # of an answer: before a run has begun
TIMES = 4  # an answer whose line broke is sent again


class Account:
    """What each site has stored since the SuperLink handed it a question; only who has stored something stands in it."""

    def __init__(self, folder: Path):
        self._file = folder / FILE
        self._stored: dict[str, int] = {}

    def store(self, key: str, path: bytes, length: int) -> None:
        """Counts a request's body. Raises: BadHead (413) beyond `TIMES` honest answers."""
        if path not in STORING:
            return
        answer = LEAST_BYTES
        with contextlib.suppress(OSError, ValueError):
            answer = max(answer, int(self._file.read_text("ascii")))
        stored, most = self._stored.get(key, 0) + length, TIMES * answer
        if stored > most:
            raise BadHead(413, f"it has stored more than {most} bytes since it was asked")
        self._stored[key] = stored

    def handed(self, key: str, path: bytes, length: int) -> None:
        if path == ASKED and length:
            self._stored.pop(key, None)


def announce(folder: Path, most: int) -> None:
    """Tells the gateway how long an honest answer of this run may be, where the folder is a gateway's."""
    if (folder / "server.pem").is_file():
        (folder / FILE).write_text(str(most), "ascii")
