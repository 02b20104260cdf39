"""`tacit_mod`: a plain Flower client in a Tacit run. It trains as it always did; Tacit bounds, pays and answers.

    app = ClientApp(mods=[tacit_mod])
    greet(app)

    @app.train()
    def train(message, context): ...   # arrays in, arrays and num-examples out, as for any Flower strategy

The arrays are what trains of the model; what is frozen the app has itself.

The site's folder (node config `tacit-site`) holds its limits and its ledger; `site.toml` says `examples = 600`, because
Tacit never sees the rows.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from tacit.errors import BadInput
from tacit.federation.flower.client import FOLDER, respond
from tacit.federation.flower.messages import refusal
from tacit.federation.site.log import discreet, note
from tacit.federation.site.site import Site
from tacit.random import Stream
from tacit.train.flat import blocks
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Raw

CallNext = Callable[[Message, Context], Message]


def tacit_mod(message: Message, context: Context, call_next: CallNext) -> Message:
    """Answers Tacit's questions for the app behind it; only `train` reaches the app, as plain arrays.

    Guarantee: what the app returns leaves the site only after the algorithm has bounded it and the site's ledger was charged;
    where the app fails, or returns other shapes, a zero update takes its place, so a failure tells the server nothing of the
    rows.

    Assumes: the promise is one that is made after training, on whole updates: one that is made in Tacit's own training (DP-SGD)
    is refused. How many examples the app has is what `site.toml` declares, not what the app says.
    """
    folder = context.node_config.get(FOLDER)
    if folder is None:
        return refusal(f"This node has no {FOLDER} in its node config, so it has no limits and no ledger.", to=message)
    site = Site(str(folder), local=partial(_train, message, context, call_next))
    return respond(site, message)


def greet(app: ClientApp) -> ClientApp:
    """Lets an app hear Tacit's other questions, which the mod answers, and returns it.

    Without it, Flower would refuse greetings and proposals before the mod sees them; without the mod, the app refuses them
    itself.
    """
    for action in ("hello", "agree", "open", "count", "keep"):
        app.query(action)(_unreachable)
    return app


def _unreachable(message: Message, context: Context) -> Message:
    del context
    return refusal("This app was not made with mods=[tacit_mod].", to=message)


def _train(
    message: Message,
    context: Context,
    call_next: CallNext,
    work: Workspace,
    theta: torch.Tensor,
    client: Client,
    stream: Stream,
) -> Trained:
    """Hands the model to the app's own training and takes the difference."""
    del client, stream
    parts = {b.name: Array(theta[b.start : b.stop].reshape(b.shape).numpy()) for b in blocks(work.model)}
    config = ConfigRecord({"server-round": int(message.metadata.group_id or 0) + 1})
    asked = Message(RecordDict({"arrays": ArrayRecord(parts), "config": config}), reply_to=message)
    asked.metadata.__dict__.update(message.metadata.__dict__)
    try:
        reply = call_next(asked, context)
        if reply.has_error():
            raise BadInput(f"The client's own training failed: {reply.error.reason}")
        trained = flat(reply.content.array_records["arrays"], work)
    except Exception as error:  # it may depend on the rows: the algorithm sends a zero, and only the log tells
        note(Path(str(context.node_config[FOLDER])), verdict="failed", text=discreet(error))
        raise BadInput("The client's own training failed.") from error
    return Trained(Raw(trained - theta))


def flat(arrays: ArrayRecord, work: Workspace) -> torch.Tensor:
    """Arrays in the model's order as one float32 vector. Raises: BadInput where their number or shapes are not the model's."""
    parts = [torch.from_numpy(array.numpy().copy()) for array in arrays.values()]
    wanted = [tuple(b.shape) for b in blocks(work.model)]
    if [tuple(part.shape) for part in parts] != wanted:
        raise BadInput(
            f"The client's own training returned arrays of shapes {[list(p.shape) for p in parts]}, not {wanted}."
        )
    return torch.cat([part.reshape(-1).to(torch.float32) for part in parts])
