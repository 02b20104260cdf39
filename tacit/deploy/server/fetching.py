"""How much of a server's answers a site holds: a lying one sends bytes without end, or few bytes that become many.

Every answer says its one length, which is held against what its call can need before a byte of the body is read. What is fetched of
messages is taken from one budget for the whole site: little before there is an agreement, and what agreed runs can ask after it."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_type_from_object_content

from tacit.deploy.server.messages import WHOLE_BYTES

UNMET_BYTES = 1 << 20  # of all that is held before there is an agreement: a greeting and a proposal
PIECE_BYTES = 5 << 20  # of Flower's pieces of an array
SMALL_BYTES = 64 << 10  # of an answer that says yes or no; parsed, empty messages become some 40 times their bytes
MOST_BYTES = {  # of the calls whose answers are longer
    "/v1/fleet/pull-messages": 256 << 10,  # the names of a message's parts
    "/v1/fleet/push-messages": 256 << 10,  # those of an answer's parts
    "/v1/fleet/pull-object": PIECE_BYTES + SMALL_BYTES,
}


def guard(line: httpx.Client) -> None:
    """Has a line go to its server and nowhere else, and refuses answers that are larger than they look.

    Followed, a redirection would carry an answer, and whatever it holds, to any address within the site's own network. An answer
    that is compressed, that does not say exactly one length, or a longer one than its call can need, raises
    httpx.RemoteProtocolError before its body is read; one that a message has no room for raises ValueError.
    """
    line.follow_redirects = False
    line.event_hooks = {"response": [_refuse_long]}


def _refuse_long(response: httpx.Response) -> None:
    lengths = response.headers.get_list("content-length")
    packed = {"content-encoding", "transfer-encoding"} & set(response.headers)
    if packed or len(lengths) != 1 or not lengths[0].isascii() or not lengths[0].isdecimal():
        raise httpx.RemoteProtocolError("its answer is packed, or does not say its one length")
    length = int(lengths[0][:20])
    if length > MOST_BYTES.get(response.request.url.path, SMALL_BYTES):
        raise httpx.RemoteProtocolError(f"its answer is too long ({length} bytes)")
    if (account := getattr(_calling, "account", None)) is not None:
        account.take(length - _calling.taken)
        _calling.taken = length  # a call that is repeated holds one answer


_calling = (
    threading.local()
)  # whose message a thread fetches a part of: httpx does not say which call a response belongs to


@dataclass
class Budget:
    """What all messages of a site may hold together; `most()` says how much that is now."""

    most: Callable[[], int]
    held: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Account:
    """What one message holds of the budget, until it was answered or given up."""

    budget: Budget
    most: int = 0
    held: int = 0
    small: int = 0  # of it, what Flower parses

    def __post_init__(self) -> None:
        self.most = self.budget.most()

    def take(self, count: int) -> None:
        """Raises: ValueError, and takes nothing, where there is no room; what has come is of no use then."""
        with self.budget.lock:
            if self.budget.held + count > self.most:
                raise ValueError(f"it has more than {self.most} bytes, or others that are fetched leave no room for it")
            self.budget.held += count
            self.held += count

    def close(self) -> None:
        """Gives all of it back."""
        with self.budget.lock:
            self.budget.held -= self.held
            self.held = 0

    def charged(self, pull: Callable[[str], bytes]) -> Callable[[str], bytes]:
        """`pull`, whose answers are paid for before they are read; a part that would grow when it is opened raises ValueError."""

        def pulled(name: str) -> bytes:
            with _charging(self):
                part = pull(name)
            self._refuse_growing(part)
            return part

        return pulled

    def _refuse_growing(self, part: bytes) -> None:
        kind = get_object_type_from_object_content(part)
        if kind == "ArrayChunk":
            return
        with self.budget.lock:
            self.small += len(part)
        if self.small > WHOLE_BYTES + UNMET_BYTES:
            raise ValueError(f"it has more than {WHOLE_BYTES + UNMET_BYTES} bytes beside the pieces of its body")
        if kind == "Array":  # it lists its pieces, and may list one a million times
            if len(part) > SMALL_BYTES:
                raise ValueError("its body has too many pieces")
            pieces = len(json.loads(get_object_body(part, Array))["arraychunk_ids"])
            if pieces * PIECE_BYTES > self.most + PIECE_BYTES:
                raise ValueError(f"its body has {pieces} pieces, more than {self.most} bytes have")


@contextmanager
def _charging(account: Account) -> Iterator[None]:
    _calling.account, _calling.taken = account, 0
    try:
        yield
    finally:
        _calling.account = None
