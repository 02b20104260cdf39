"""One HTTP/1.1 head, read strictly: what may be understood in two ways is refused.

A proxy and the server behind it must agree on where a request ends, or one request can be smuggled inside another
(RFC 9112, 11.2). So a body has one Content-Length and nothing else, a name and a value have no odd characters, lines end
in CRLF and are never folded, and what goes on is written anew from what was understood.
"""

import re
from dataclasses import dataclass

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
    """A head as it came, with its empty line.

    Guarantee: what passes can be understood in one way: lines end in CRLF, none is folded, names are tokens (RFC 9110, 5.6.2) and
    directly followed by a colon, values are printable ASCII without spaces around them.

    Raises: BadHead (400, or 431 for more than `MOST_HEADERS`).

    >>> parse(b"GET /health HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n").all(b"host")
    [b'a']
    """
    if not raw.endswith(END):
        raise BadHead(400, "it does not end")
    first, *lines = raw[: -len(END)].split(b"\r\n")
    words = first.split(b" ", 2)
    if len(words) != 3 or not VALUE.fullmatch(first):
        raise BadHead(400, "its first line is not one of HTTP")
    if len(lines) > MOST_HEADERS:
        raise BadHead(431, f"it has more than {MOST_HEADERS} headers")
    return Head((words[0], words[1], words[2]), tuple(_header(line) for line in lines))


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    if not colon or not NAME.fullmatch(name) or not VALUE.fullmatch(value):
        raise BadHead(400, "a header is not one of HTTP")
    return name.lower(), value


def body_length(head: Head, *, most: int) -> int:
    """How long a request's body is, by its one Content-Length.

    Raises: BadHead for a Transfer-Encoding (501), for no length (411), two of them or one that is no number (400), and for more
    than `most` bytes (413): the places where a proxy and a server could see two different ends (RFC 9112, 6.3).
    """
    lengths = head.all(b"content-length")
    if head.all(b"transfer-encoding"):
        raise BadHead(501, "it has a Transfer-Encoding")
    if len(lengths) != 1 or not LENGTH.fullmatch(lengths[0]):
        raise BadHead(411 if not lengths else 400, "it needs one Content-Length")
    if int(lengths[0]) > most:
        raise BadHead(413, f"its body is longer than {most} bytes")
    return int(lengths[0])


def dumps(first: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """A head as it is sent, with its empty line. Assumes: `first` and `headers` come from `parse`, or are the program's own."""
    return b"\r\n".join([first, *(name + b": " + value for name, value in headers)]) + END
