"""A Grid within one process: every message is answered at once by a ClientApp. For tests and first trials, without Ray."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from tacit.federation.flower.client import FOLDER


class LocalGrid(Grid):
    """A Grid whose nodes 1, 2, ... are the given site folders, each behind the same ClientApp, under the folder's name.

    A message is answered while it is pushed, so nothing is ever awaited and nobody is ever away. There is no network, no TLS
    and no authentication: what the sites decide and pay is real, the way to them is not.
    """

    def __init__(self, app: ClientApp, folders: Iterable[Path]):
        self._app = app
        numbered = dict(enumerate(folders, start=1))
        self._names = {node: folder.name for node, folder in numbered.items()}
        self._contexts = {node: _context(node, folder) for node, folder in numbered.items()}
        self._replies: dict[str, Message] = {}
        self._count = 0
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # a Message asks who makes it

    def get_node_ids(self) -> Iterable[int]:
        """All of them: nobody is ever away."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Has every message answered at once, one after the other, in the caller's own thread."""
        names = []
        for message in messages:
            self._count += 1
            names.append(str(self._count))
            message.metadata.__dict__["_message_id"] = names[-1]
            self._replies[names[-1]] = self._app(message, self._contexts[message.metadata.dst_node_id])
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers to these messages, each handed out once."""
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Both of the above, which is how Flower's own strategies ask; no time is waited, so none runs out."""
        del timeout
        return self.pull_messages(self.push_messages(messages))

    def set_run(self, run: Any) -> None:
        """Nothing: there is one run."""
        del run

    @property
    def run(self) -> Any:
        """None: nobody submitted it."""
        return None

    def get_nodes(self) -> Any:
        """Every node with its folder's name, as if its key had been registered under it."""
        return [NodeInfo(node_id=node, name=self._names[node]) for node in self.get_node_ids()]

    def create_message(self, *args: Any, **options: Any) -> Message:
        """A message, as Flower makes it."""
        return Message(*args, **options)


def _context(node: int, folder: Path) -> Context:
    return Context(run_id=1, node_id=node, node_config={FOLDER: str(folder)}, state=RecordDict(), run_config={})
