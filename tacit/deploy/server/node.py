"""A site as a node of Flower's Fleet API: it joins, takes its messages, hands them to the site's own Tacit, and sends the answers.

Flower's own SuperNode would install and run the app that the server sent. Here that app is not even fetched, so a tampered one
cannot reach the rows or pass by the ledger. Every request is signed with the site's key. What the server does not answer, or
answers with an error of its own, is asked again; only its word that this key is unknown ends the site."""

import contextlib
import ctypes
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
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
from flwr.supercore.task_identity import TaskIdentity
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

LOG = logging.getLogger("tacit.deploy.site")
BEAT_SECONDS = 20.0  # Flower takes a node for gone when two of its intervals of 30 s have passed
# From one look for a message to the next, where nothing was answered in between: while a run goes on, and when nothing has come
# for long. The server keeps a look until something comes (superlink.HOLD_SECONDS), so that few looks are short.
LOOK_SECONDS = (0.25, 3.0)
AWAKE_SECONDS = 30.0
COME_SECONDS = 2.0  # for the content of what was announced, before the next look
PART_SECONDS = (0.05, 2.0)  # until a part that is not there is asked for again, longer every time
MOST_FETCHES = 16  # messages whose content is awaited at once
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
    """Has a line go to its server and nowhere else, and read no answer that is packed, or longer than its call can need."""
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
    """What all messages of a site may hold in total; `most()` says how much that is now."""

    most: Callable[[], int]
    held: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Account:
    """What one message holds of the budget, until it was answered or given up."""

    def __init__(self, budget: Budget):
        self.budget, self.most, self.held = budget, budget.most(), 0

    def take(self, count: int) -> None:
        """Raises: ValueError, and takes nothing, where there is no room."""
        with self.budget.lock:
            if self.budget.held + count > self.most:
                raise ValueError(f"it has more than {self.most} bytes, or others that are fetched leave no room for it")
            self.budget.held += count
            self.held += count

    def close(self) -> None:
        with self.budget.lock:
            self.budget.held -= self.held
            self.held = 0

    def charged(self, pull: Callable[[str], bytes]) -> Callable[[str], bytes]:
        """`pull`, whose answers are paid for before they are read; a part that would grow when it is opened raises BadInput."""

        def pulled(name: str) -> bytes:
            _calling.account, _calling.taken = self, 0
            try:
                part = pull(name)
            finally:
                _calling.account = None
            refuse_odd_part(part)
            return part

        return pulled


class NotLetIn(Exception):
    """The server does not take this key: it is not registered, or the server takes another process for the node."""


@dataclass(frozen=True)
class Task:
    message: Message
    name: str
    done: Callable[[], None] = lambda: None  # gives back what it held of the site's budget of bytes


def named(kind: str, group: str) -> str:
    """Its type and its round, which people count from 1 and messages from 0."""
    round_ = group.isascii() and group.isdecimal() and len(group) <= len(str(MOST_ROUNDS))
    return (f"{kind}, round {int(group) + 1}" if round_ else f"{kind} {group}".strip())[:MOST_NAME]


class FleetNode:
    """A node's key and its line to the server. Raises: OSError for files that are missing; BadInput for a key of another kind.

    The server is held to the authority's certificate in the site's folder (`ca.crt`), and every request is signed.
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

        Where the process before this one `died`, its word is taken back first; the pause lets a waiting server see it and ask
        again.
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
        with contextlib.suppress(httpx.HTTPError):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        self._client.close()

    def beat(self) -> None:
        ask = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        if not self._client.SendNodeHeartbeat(ask).success:
            raise NotLetIn("the server does not know the node any more")

    def look(self) -> tuple[int, ObjectTree] | None:
        """The run and the tree of parts of the next message, or None. Raises: httpx.HTTPError, also for an unreadable answer."""
        reply = understood(lambda: self._client.PullMessages(PullMessagesRequest(node=self.node)))
        if not reply.messages_list:
            return None
        return understood(lambda: (reply.messages_list[0].metadata.run_id, reply.message_object_trees[0]))

    def fetch(self, run: int, tree: ObjectTree) -> Task:
        """A message's content, which the server is told was received. Raises: ValueError for one that is too large, and as flwr.

        All messages in total hold at most `UNMET_BYTES` before there is an agreement, and after it twice what the longest request
        of an agreed run needs, or the site's own `most_bytes` if less.
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
                max_time=CONTENT_SECONDS, initial_backoff=PART_SECONDS[0], backoff_cap=PART_SECONDS[1],
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
    """What a call returns. Raises: httpx.HTTPError for whatever a lying server's answer made it raise."""
    try:
        return call()
    except httpx.HTTPError:
        raise
    except Exception as error:  # a lying server answers anything
        raise httpx.RemoteProtocolError(f"its answer cannot be read ({type(error).__name__})") from error


def patient(call: Callable[..., T], ask: object) -> T:
    """Calls again while the server cannot be reached or fails, for at most `PUSH_SECONDS`. Raises: the last httpx.HTTPError."""
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
    """Whether an error is the network's or within the server ("database is locked"), and may be gone the next time."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500
    return "certificate" not in str(error).lower()


# The loop that answers for a site, in one process.


def answer(
    node: FleetNode,
    reply: Callable[[Message], Message],
    *,
    stopped: Callable[[], bool] = lambda: False,
    idle: Callable[[], None] = lambda: None,
) -> None:
    """Answers one message after the other until `stopped()`; between two looks it calls `idle`. No message ends it.

    Each content is fetched by a thread of its own, at most `MOST_FETCHES` at once: what a killed server announced and never sends
    keeps the site from nothing. Raises: NotLetIn; httpx.HTTPError for an error that will not pass.
    """
    heart, ready = _Heart(node), SimpleQueue[Task]()
    heart.start()
    last, failures, fetching = time.monotonic(), 0, list[threading.Thread]()
    try:
        while not stopped() and not heart.unknown:
            began, fetching = time.monotonic(), [thread for thread in fetching if thread.is_alive()]
            try:
                announced, failures = node.look() if len(fetching) < MOST_FETCHES else None, 0
            except httpx.HTTPError as error:
                failures = _endure(error, failures)
                continue
            if announced:
                fetching.append(threading.Thread(target=_fetch, args=(node, *announced, ready), daemon=True))
                fetching[-1].start()
                last = time.monotonic()
            with contextlib.suppress(Empty):
                pause = COME_SECONDS if announced else _pause(time.monotonic() - began, idle=time.monotonic() - last)
                _answer(node, reply, ready.get(timeout=pause))
                last = time.monotonic()
            idle()
        if heart.unknown:
            raise NotLetIn("the server does not know the node any more")
    finally:
        heart.ended.set()


def _pause(took: float, *, idle: float) -> float:
    return max(0.0, LOOK_SECONDS[idle > AWAKE_SECONDS] - took)


def _endure(error: httpx.HTTPError, failures: int) -> int:
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.UNAUTHORIZED:
        raise NotLetIn(error.response.text) from None
    if not passing(error) and not isinstance(error, httpx.HTTPStatusError):
        raise error
    if not failures:
        LOG.info("the server does not answer (%s); asking again", error)
    time.sleep(min(RETRY_SECONDS[0] * 2**failures, RETRY_SECONDS[1]) * random.uniform(0.5, 1.0))
    return min(failures + 1, 10)


def _fetch(node: FleetNode, run: int, tree: ObjectTree, ready: "SimpleQueue[Task]") -> None:
    try:
        ready.put(node.fetch(run, tree))
    except Exception as error:  # noqa: BLE001 - whatever the server sent, the site goes on
        LOG.info("a message could not be had: %s: %s", type(error).__name__, error)


def _answer(node: FleetNode, reply: Callable[[Message], Message], task: Task) -> None:
    TaskIdentity.run_id, TaskIdentity.task_id = task.message.metadata.run_id, 1
    TaskIdentity.node_id = node.node.node_id
    LOG.info("asked: %s", task.name)
    try:
        node.push(reply(task.message))
        LOG.info("sent: %s", task.name)
    except Exception as error:  # noqa: BLE001 - the answer is kept: the server asks again and gets the same bytes
        LOG.info("an answer could not be sent: %s: %s", type(error).__name__, error)
    finally:
        task.done()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


class _Heart(threading.Thread):
    def __init__(self, node: FleetNode):
        super().__init__(daemon=True)
        self._node, self.ended, self.unknown = node, threading.Event(), False

    def run(self) -> None:
        pause = BEAT_SECONDS
        while not self.ended.wait(pause * random.uniform(0.8, 1.0)):
            try:
                self._node.beat()
                pause = BEAT_SECONDS
            except NotLetIn:
                self.unknown = True
                return
            except Exception as error:  # noqa: BLE001 - a heart that stops would take the node offline
                LOG.info("a heartbeat failed: %s: %s", type(error).__name__, error)
                self.unknown = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 401
                # soon at first, then less and less, as an error may say that the server has too much to do
                pause = RETRY_SECONDS[0] if pause == BEAT_SECONDS else min(2 * pause, RETRY_SECONDS[1] - 1)
