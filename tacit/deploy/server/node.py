"""A site as a node of Flower's Fleet API: joining, looking for messages, fetching them, sending answers.

Every request is signed with the site's key. What the server does not answer, or answers with an error of its own, is asked
again; only its word that this key is unknown ends the site."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from tacit.deploy.operate.processes import closed
from tacit.deploy.server.messages import refuse_odd_part
from tacit.deploy.site.agreement import longest_question
from tacit.deploy.site.agreement import read as read_agreement
from tacit.deploy.site.layout import runs
from tacit.deploy.site.limits import read_limits
from tacit.deploy.site.requests import MOST_ROUNDS
from tacit.errors import BadInput, TacitError

RETRY_SECONDS = (1.0, 20.0)  # after an error, longer every time
CONTENT_SECONDS = 60.0  # for the content of a message that the server has announced
PUSH_SECONDS = 120.0  # for an answer to get through; after that the server asks again, and gets the same bytes
SEEN_SECONDS = 3.0  # a server looks every 2 s (gather.LOOK_SECONDS) at who is connected
MOST_OBJECTS = 4096  # in one message; Flower cuts an array into pieces of 5 MiB
MOST_NAME = 80

T = TypeVar("T")


# How much of a server's answers a site holds: a lying one sends bytes without end, or few bytes that become many.

UNMET_BYTES = 1 << 20  # of all that is held before there is an agreement: a greeting and a proposal
PIECE_BYTES = 5 << 20  # of Flower's pieces of an array
SMALL_BYTES = 64 << 10  # of an answer that says yes or no; parsed, empty messages become some 40 times their bytes
MOST_BYTES = {  # of the calls whose answers are longer
    "/v1/fleet/pull-messages": 256 << 10,  # the names of a message's parts
    "/v1/fleet/push-messages": 256 << 10,  # those of an answer's parts
    "/v1/fleet/pull-object": PIECE_BYTES + SMALL_BYTES,
}
_calling = threading.local()  # whose message a thread fetches a part of: httpx does not say


def guard(line: httpx.Client) -> None:
    """Has a line go to its server and nowhere else: a redirection would carry an answer into the site's own network.

    An answer that is compressed, that does not say exactly one length, or a longer one than its call can need, raises
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
        """`pull`, whose answers are paid for before they are read; a part that would grow when it is opened raises BadInput."""

        def pulled(name: str) -> bytes:
            with _charging(self):
                part = pull(name)
            refuse_odd_part(part)
            return part

        return pulled


@contextmanager
def _charging(account: Account) -> Iterator[None]:
    _calling.account, _calling.taken = account, 0
    try:
        yield
    finally:
        _calling.account = None


class NotLetIn(Exception):
    """The server does not take this key: it is not registered, or the server takes another process for the node."""


@dataclass(frozen=True)
class Task:
    """A message whose content is here, and its name for the log: type and round."""

    message: Message
    name: str
    done: Callable[[], None] = lambda: None  # gives back what it held of the site's budget of bytes


def named(kind: str, group: str) -> str:
    """A message in the words of a log: its type and its round, which people count from 1 and messages from 0.

    A group that is no round was not written by Tacit, and stays as it is.

    >>> named("train", "0"), named("query.hello", ""), named("train", "x")
    ('train, round 1', 'query.hello', 'train x')
    """
    round_ = group.isascii() and group.isdecimal() and len(group) <= len(str(MOST_ROUNDS))
    return (f"{kind}, round {int(group) + 1}" if round_ else f"{kind} {group}".strip())[:MOST_NAME]


class FleetNode:
    """A node's key and its line to the server. Raises: OSError for files that are missing; BadInput for a key of another kind.

    Guarantee: the server is held to the authority's certificate in the site's folder (`ca.crt`), every request is signed with the
    site's key, no redirection is followed, and answers are within limits.
    """

    def __init__(self, folder: Path, *, server: str):
        key = load_ssh_private_key((folder / "node.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise BadInput(f"{folder / 'node.key'} is not a key as `tacit deploy init` makes them.")
        proofs = [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(key, key.public_key())]
        self._client = FleetHttpClient.from_server_address(server, False, (folder / "ca.crt").read_bytes(), proofs)
        guard(self._client._client)
        self._folder, self._fetched = folder, Budget(lambda: self._most())
        self._key, self._last_node = public_key_to_bytes(key.public_key()), folder / ".node"
        self.node, self._agreed = Node(), dict[str, int]()

    def join(self, *, died: bool) -> None:
        """Tells the server that the node is here. Raises: NotLetIn where it refuses the node; httpx.HTTPError where it fails.

        Where the process before this one is known to be dead (`lock_folder`), its word is taken back first. The pause lets a
        server that waits for an answer see that the node was gone, so that it asks again at once what the dead one was asked.
        """
        if died and self._last_node.exists():
            with contextlib.suppress(httpx.HTTPError, ValueError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=int(self._last_node.read_text())))
                time.sleep(SEEN_SECONDS)
        ask = ActivateNodeRequest(public_key=self._key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            reply = understood(lambda: self._client.ActivateNode(ask))
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= 500:
                raise
            raise NotLetIn(error.response.text) from None
        self.node = Node(node_id=reply.node_id)
        with closed():
            self._last_node.write_text(str(reply.node_id))

    def leave(self) -> None:
        """Tells the server that the node goes, if it can be reached, and closes the line."""
        with contextlib.suppress(httpx.HTTPError):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        self._client.close()

    def beat(self) -> None:
        """Says that the node is alive. Raises: NotLetIn where the server does not know the node any more; httpx.HTTPError."""
        ask = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        if not self._client.SendNodeHeartbeat(ask).success:
            raise NotLetIn("the server does not know the node any more")

    def look(self) -> tuple[int, ObjectTree] | None:
        """The run and the tree of parts of the next message, or None; its content is not fetched.

        Raises: httpx.HTTPError, also for an answer that cannot be read.
        """
        reply = understood(lambda: self._client.PullMessages(PullMessagesRequest(node=self.node)))
        if not reply.messages_list:
            return None
        return understood(lambda: (reply.messages_list[0].metadata.run_id, reply.message_object_trees[0]))

    def fetch(self, run: int, tree: ObjectTree) -> Task:
        """A message's content, which the server is told was received. Raises: ValueError for one that is too large, and as flwr.

        Guarantee: at most `MOST_OBJECTS` parts are asked for; all messages together hold at most `UNMET_BYTES` before there is an
        agreement, and after it twice what the longest question of an agreed run needs, or the site's own `most_bytes` if less.
        """
        if sum(1 for _ in iterate_object_tree(tree)) > MOST_OBJECTS:
            raise ValueError(f"it has more than {MOST_OBJECTS} parts")
        client, account = self._client, Account(self._fetched)
        pull = make_pull_object_fn_protobuf(lambda ask: patient(client.PullObject, ask), self.node, run)
        try:
            message = pull_and_inflate_object_from_tree(
                tree,
                account.charged(pull),
                make_confirm_message_received_fn_protobuf(lambda ask: patient(client.ConfirmMessageReceived, ask), self.node, run),
                return_type=Message,
                max_time=CONTENT_SECONDS,
            )  # fmt: skip
        except BaseException:
            account.close()
            raise
        message.metadata.__dict__["_message_id"] = tree.object_id
        return Task(message, named(message.metadata.message_type, message.metadata.group_id), account.close)

    def _most(self) -> int:
        for run in set(runs(self._folder)) - set(self._agreed):
            try:
                agreed = read_agreement(self._folder, run)
                self._agreed[run] = 0 if agreed is None else longest_question(agreed)
            except TacitError:  # one that is damaged is said when it is asked about, and is no reason to hear nothing
                self._agreed[run] = 0
        longest = 2 * max(self._agreed.values(), default=0)  # one, and another that a dead server has begun to send
        return UNMET_BYTES + min(longest, read_limits(self._folder).most_bytes)

    def push(self, message: Message) -> None:
        """Sends an answer, whole, and tries again while the server cannot be reached. Raises: httpx.HTTPError, as `patient`."""
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute():
            ask = PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
                clientapp_runtime_list=[0.0],  # how long an answer took is not told
            )
            reply, run = patient(self._client.PushMessages, ask), message.metadata.run_id
            push = make_push_object_fn_protobuf(
                lambda piece: patient(self._client.PushObject, piece), self.node, run, reply.session_id
            )
            push_objects(get_all_nested_objects(message), push, object_ids_to_push=set(reply.objects_to_push))


def understood(call: Callable[[], T]) -> T:
    """What a call returns. Raises: httpx.HTTPError, also in the place of whatever else a lying server's answer made it raise."""
    try:
        return call()
    except httpx.HTTPError:
        raise
    except Exception as error:  # a lying server answers anything
        raise httpx.RemoteProtocolError(f"its answer cannot be read ({type(error).__name__})") from error


def patient(call: Callable[..., T], ask: object) -> T:
    """Calls again while the server cannot be reached or fails, with pauses that double, for at most `PUSH_SECONDS`.

    Raises: the last httpx.HTTPError, and at once one that will not pass (`passing`).
    """
    ends, pause = time.monotonic() + PUSH_SECONDS, RETRY_SECONDS[0]
    while True:
        try:
            return call(ask)
        except httpx.HTTPError as error:
            if not passing(error) or time.monotonic() + pause > ends:
                raise
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, RETRY_SECONDS[1])


def passing(error: httpx.HTTPError) -> bool:
    """Whether an error is the network's or within the server ("database is locked"), and may be gone the next time.

    A status below 500 will not pass, nor will a certificate that is not accepted.

    >>> passing(httpx.ConnectError("connection refused")), passing(httpx.ConnectError("certificate verify failed"))
    (True, False)
    """
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500
    return "certificate" not in str(error).lower()
