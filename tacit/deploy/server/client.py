"""The ClientApp: a Flower message in, the site's answer out. The site's folder comes from its own node config.

Started by Flower's own SuperNode, this is code that the server sent; a site that wants its limits to hold against a
tampered app runs `tacit site`, which calls the same functions from the site's own installation."""

import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from tacit import wire
from tacit.deploy.server.messages import QUERIES, answer, read, refusal
from tacit.deploy.site.layout import discreet, note
from tacit.deploy.site.requests import sent
from tacit.deploy.site.site import UNSAID, Site
from tacit.errors import BadInput, BudgetExhausted, Refusal, Refused
from tacit.random import Stream
from tacit.training.flat import blocks
from tacit.training.sgd import Trained, Workspace
from tacit.types import Client, Raw
from tacit.wire import unpack

FOLDER = "tacit-site"  # the node config's key: the path of the site's folder
NO_FOLDER = f"This node has no {FOLDER} in its node config, so it has no limits and no ledger."


def client_app() -> ClientApp:
    """A ClientApp that answers for the site whose folder the node config names (`tacit-site`), also to Flower's own strategies.

    Started by Flower's own SuperNode, the site trusts whoever sent the app; see above.
    """

    def handle(message: Message, context: Context) -> Message:
        folder = context.node_config.get(FOLDER)
        if folder is None:
            return refusal(NO_FOLDER, to=message)
        site = _site(str(folder))
        # Flower's own strategies send records named `arrays` and `config`
        plain = message.has_content() and "arrays" in message.content and "config" in message.content
        return respond_plain(site, message, context) if plain else respond(site, message)

    app = ClientApp()
    app.train()(handle)
    return _hearing(app, handle)


@lru_cache(maxsize=64)
def _site(folder: str) -> Site:
    return Site(Path(folder))


def _hearing(app: ClientApp, handle: Callable[[Message, Context], Message]) -> ClientApp:
    for action in QUERIES:
        app.query(action)(handle)
    return app


def respond(site: Site, message: Message) -> Message:
    """The site's answer as a Flower message, whatever the message was; nothing is raised, and the site's log has a line of it."""
    return _replied(site, message, lambda: answer(*site.answer(*read(message)), to=message))


def _replied(site: Site, message: Message, reply: Callable[[], Message]) -> Message:
    try:
        return reply()
    except (Refused, BudgetExhausted) as error:
        return refusal(str(error), to=message, kind=error.kind)
    except BadInput as error:  # somebody else's message: the site's people want to know of it too
        note(site.folder, verdict="refused", text=str(error))
        return refusal(str(error), to=message)
    except Exception as error:  # noqa: BLE001 - no message ends a site
        note(site.folder, verdict="failed", text=discreet(error))
        return refusal(UNSAID, to=message, kind=Refusal.LATER)


# Tacit's client under somebody else's server: plain arrays in, plain arrays out, under Flower's own strategies.


def respond_plain(site: Site, message: Message, context: Context) -> Message:
    """One round for a Flower strategy: the server's arrays plus the noised update, and `num-examples`, or a refusal.

    The round is held against the site's own experiment, paid for and noised like any other. Assumes: the strategy sends what trains
    of the model, in its order, and counts rounds from 1.
    """

    def reply() -> Message:
        tensors, round = _read(message)
        theta = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
        run = hashlib.sha256(f"flower {context.run_id}".encode()).hexdigest()[:32]
        site.alone(run=run)
        _, raw = site.answer({"kind": "train", "run": run, "round": round}, sent(theta))
        answer = unpack(raw)
        if "update" not in answer.tensors:
            raise BadInput("The site's rule sends coordinates, which only Tacit's own server understands.")
        parts = (theta + answer.tensors["update"]).split([tensor.numel() for tensor in tensors.values()])
        new = zip(tensors.items(), parts, strict=True)
        arrays = ArrayRecord({name: Array(part.reshape(old.shape).numpy()) for (name, old), part in new})
        metrics = MetricRecord({"num-examples": int(answer.facts["examples"])})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return _replied(site, message, reply)


def _read(message: Message) -> tuple[dict[str, torch.Tensor], int]:
    try:
        arrays: Any = message.content["arrays"]
        tensors = {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
        config: Any = message.content["config"]
        round = wire.whole(config["server-round"], what="Its server-round", least=1) - 1
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError, EOFError) as error:
        raise BadInput(f"A message of a Flower strategy cannot be read ({type(error).__name__}).") from None
    if not tensors or any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        raise BadInput("A message of a Flower strategy does not hold the parameters as 32-bit numbers.")
    return tensors, round


# A plain Flower client in a Tacit run: it trains as it always did, and Tacit bounds, pays and answers.

CallNext = Callable[[Message, Context], Message]


def tacit_mod(message: Message, context: Context, call_next: CallNext) -> Message:
    """Answers Tacit's requests for the app behind it; only `train` reaches the app, as plain arrays.

    What the app returns is bounded and paid for before it leaves; where the app fails, a zero update takes its place, so that a
    failure tells nothing of the rows. A promise that is made in Tacit's own training (DP-SGD) is refused.
    """
    folder = context.node_config.get(FOLDER)
    if folder is None:
        return refusal(NO_FOLDER, to=message)
    return respond(Site(str(folder), local=partial(_train, message, context, call_next)), message)


def greet(app: ClientApp) -> ClientApp:
    """Lets an app hear Tacit's other requests, which the mod answers, and returns it; Flower would refuse them before the mod."""
    return _hearing(app, lambda message, context: refusal("This app was not made with mods=[tacit_mod].", to=message))


def _train(
    message: Message,
    context: Context,
    call_next: CallNext,
    work: Workspace,
    theta: torch.Tensor,
    client: Client,
    stream: Stream,
) -> Trained:
    del client, stream
    parts = {b.name: Array(theta[b.start : b.stop].reshape(b.shape).numpy()) for b in blocks(work.model)}
    config = ConfigRecord({"server-round": int(message.metadata.group_id or 0) + 1})
    asked = Message(RecordDict({"arrays": ArrayRecord(parts), "config": config}), reply_to=message)
    asked.metadata.__dict__.update(message.metadata.__dict__)
    try:
        reply = call_next(asked, context)
        if reply.has_error():
            raise BadInput(f"The client's own training failed: {reply.error.reason}")
        arrays = reply.content.array_records["arrays"].values()
        tensors = [torch.from_numpy(array.numpy().copy()) for array in arrays]
        found, wanted = [tuple(tensor.shape) for tensor in tensors], [tuple(b.shape) for b in blocks(work.model)]
        if found != wanted:
            raise BadInput(f"The client's training returned arrays of shapes {list(map(list, found))}, not {wanted}.")
        trained = torch.cat([tensor.reshape(-1).to(torch.float32) for tensor in tensors])
    except Exception as error:  # it may depend on the rows: the algorithm sends a zero, and only the log tells
        note(Path(str(context.node_config[FOLDER])), verdict="failed", text=discreet(error))
        raise BadInput("The client's own training failed.") from error
    return Trained(Raw(trained - theta))


class LocalGrid(Grid):
    """A Grid within one process, whose nodes 1, 2, ... are the given site folders, each under the folder's name.

    A message is answered while it is pushed, so nobody is ever away. What the sites decide and pay is real, the way to them is not:
    there is no network, no TLS and no authentication.
    """

    run: Any = None  # nobody submitted it

    def __init__(self, app: ClientApp, folders: Iterable[Path]):
        self._app = app
        numbered = dict(enumerate(folders, start=1))
        self._names = {node: folder.name for node, folder in numbered.items()}
        self._contexts = {
            node: Context(1, node, node_config={FOLDER: str(folder)}, state=RecordDict(), run_config={})
            for node, folder in numbered.items()
        }
        self._replies: dict[str, Message] = {}
        self._count = 0
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # a Message asks who makes it

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            self._count += 1
            names.append(str(self._count))
            message.metadata.__dict__["_message_id"] = names[-1]
            self._replies[names[-1]] = self._app(message, self._contexts[message.metadata.dst_node_id])
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        del timeout
        return self.pull_messages(self.push_messages(messages))

    def set_run(self, run: Any) -> None:
        del run

    def get_nodes(self) -> Any:
        return [NodeInfo(node_id=node, name=self._names[node]) for node in self.get_node_ids()]

    def create_message(self, *args: Any, **options: Any) -> Message:
        return Message(*args, **options)
