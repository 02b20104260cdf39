"""A site as a node of Flower's Fleet API: joining, looking for messages, fetching them, sending answers.

Every request is signed with the site's key. What the server does not answer, or answers with an error of its own, is asked
again; only its word that this key is unknown ends the site.
"""

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
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

from tacit.errors import BadInput
from tacit.federation.operate.private import closed
from tacit.federation.site.limits import read_limits

RETRY_SECONDS = (1.0, 20.0)  # after an error, longer every time
CONTENT_SECONDS = 60.0  # for the content of a message that the server has announced
PUSH_SECONDS = 120.0  # for an answer to get through; after that the server asks again, and gets the same bytes
SEEN_SECONDS = 3.0  # a server looks every 2 s (gather.LOOK_SECONDS) at who is connected
MOST_OBJECTS = 4096  # in one message; Flower cuts an array into pieces of 5 MiB
MOST_ANSWER = 64 << 20  # bytes of one answer: a piece has 5 MiB
ROOM_BYTES = 1 << 20  # for what is around a question's body
MOST_NAME = 80

T = TypeVar("T")


class NotLetIn(Exception):
    """The server does not take this key: it is not registered, or it takes another process for the node."""


@dataclass(frozen=True)
class Task:
    """A message that is here, and what is needed to answer it."""

    message: Message
    name: str


class FleetNode:
    """A node's key and its line to the server."""

    def __init__(self, folder: Path, *, server: str):
        key = load_ssh_private_key((folder / "node.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise BadInput(f"{folder / 'node.key'} is not a key as `tacit deploy init` makes them.")
        proofs = [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(key, key.public_key())]
        self._client = FleetHttpClient.from_server_address(server, False, (folder / "ca.crt").read_bytes(), proofs)
        guard(self._client._client)
        self._folder = folder
        self._key, self._kept = public_key_to_bytes(key.public_key()), folder / ".node"
        self.node = Node()

    def join(self, *, died: bool) -> None:
        """Tells the server that the node is here. Raises NotLetIn, or httpx.HTTPError where the server cannot be reached.

        Where the process before this one is known to be dead, its word is taken back first: the server would take the node
        for online for another minute. The pause lets a server that waits for an answer see that the node was gone, so that it
        asks again at once what the dead process was asked.
        """
        if died and self._kept.exists():
            with contextlib.suppress(httpx.HTTPError, ValueError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=int(self._kept.read_text())))
                time.sleep(SEEN_SECONDS)
        ask = ActivateNodeRequest(public_key=self._key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            found = understood(lambda: self._client.ActivateNode(ask))
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= 500:
                raise
            raise NotLetIn(error.response.text) from None
        self.node = Node(node_id=found.node_id)
        with closed():
            self._kept.write_text(str(found.node_id))

    def leave(self) -> None:
        """Tells the server that the node goes."""
        with contextlib.suppress(httpx.HTTPError):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        self._client.close()

    def beat(self) -> None:
        """Says that the node is alive. Raises httpx.HTTPError; NotLetIn where the server does not know the node any more."""
        ask = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        if not self._client.SendNodeHeartbeat(ask).success:
            raise NotLetIn("the server does not know the node any more")

    def look(self) -> tuple[int, ObjectTree] | None:
        """The run and the name of the next message, if there is one."""
        found = understood(lambda: self._client.PullMessages(PullMessagesRequest(node=self.node)))
        if not found.messages_list:
            return None
        return understood(lambda: (found.messages_list[0].metadata.run_id, found.message_object_trees[0]))

    def fetch(self, run: int, tree: ObjectTree) -> Task:
        """A message's content. Raises ValueError for one that is larger than a question may be."""
        if sum(1 for _ in iterate_object_tree(tree)) > MOST_OBJECTS:
            raise ValueError(f"it has more than {MOST_OBJECTS} parts")
        client, most = self._client, read_limits(self._folder).most_bytes + ROOM_BYTES
        pull = make_pull_object_fn_protobuf(lambda ask: patient(client.PullObject, ask), self.node, run)
        message = pull_and_inflate_object_from_tree(
            tree,
            counted(pull, most=most),
            make_confirm_message_received_fn_protobuf(lambda ask: patient(client.ConfirmMessageReceived, ask), self.node, run),
            return_type=Message,
            max_time=CONTENT_SECONDS,
        )  # fmt: skip
        message.metadata.__dict__["_message_id"] = tree.object_id
        return Task(message, f"{message.metadata.message_type} {message.metadata.group_id}".strip()[:MOST_NAME])

    def push(self, message: Message) -> None:
        """Sends an answer."""
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute():
            ask = PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
                clientapp_runtime_list=[0.0],  # how long an answer took is not told
            )
            said, run = patient(self._client.PushMessages, ask), message.metadata.run_id
            push = make_push_object_fn_protobuf(
                lambda piece: patient(self._client.PushObject, piece), self.node, run, said.session_id
            )
            push_objects(get_all_nested_objects(message), push, object_ids_to_push=set(said.objects_to_push))


def guard(line: httpx.Client) -> None:
    """Has a line go to its server and nowhere else, and answers that are larger than they look refused.

    Followed, a redirection would carry an answer, and whatever it holds, to any address within the site's own network.
    """
    line.follow_redirects = False
    line.event_hooks = {"response": [_refuse_packed]}


def _refuse_packed(response: httpx.Response) -> None:
    length = response.headers.get("content-length", "0")
    if "content-encoding" in response.headers or not length.isdecimal() or int(length[:20]) > MOST_ANSWER:
        raise httpx.RemoteProtocolError("its answer is packed, or too long")


def understood(call: Callable[[], T]) -> T:
    """What a call returns. Raises httpx.HTTPError, also for an answer that is none: whatever came, it may pass."""
    try:
        return call()
    except httpx.HTTPError:
        raise
    except Exception as error:  # a lying server answers anything
        raise httpx.RemoteProtocolError(f"its answer cannot be read ({type(error).__name__})") from error


def counted(pull: Callable[[str], bytes], *, most: int) -> Callable[[str], bytes]:
    """`pull`, until more than `most` bytes have come. Raises ValueError from then on."""
    total = 0

    def pulled(name: str) -> bytes:
        nonlocal total
        found = pull(name) if total <= most else b""
        total += len(found)
        if total > most:
            raise ValueError(f"it has more than {most} bytes")
        return found

    return pulled


def patient(call: Callable[..., T], ask: object) -> T:
    """Calls again while the server cannot be reached or fails, for a while. Raises httpx.HTTPError."""
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
