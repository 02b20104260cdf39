"""A mod for anybody's Flower app: what it trains leaves as `deploy/site/updates.py` protects it, and nothing else leaves.

A SuperNode runs the app that the server sends. A mod that the app names is there because its author wants it; `clientapp` has
every app behind the mod, whatever it names (docs/how-to-beside-other-frameworks.md)."""

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from tacit.deploy.server.client import FOLDER, NO_FOLDER, CallNext
from tacit.deploy.server.messages import refusal
from tacit.deploy.site.updates import Arrays, pay
from tacit.errors import BadInput, BudgetExhausted, Refused

WEIGHT = "num-examples"  # what Flower's strategies weigh by: 1 for every site, so that nothing of its rows is told


def update_mod(message: Message, context: Context, call_next: CallNext, *, site: str | None = None) -> Message:
    """Answers `train` with the received arrays plus a noised update; anything else is refused before the app hears of it. `site`
    is the site's folder, where {key} is of the node's config; else the node's config names it (`tacit-site`). Guarantee: as
    `updates.pay` and `Paid.release`; nothing else that the app returns is sent."""
    folder = context.node_config.get(FOLDER) if site is None else site.format_map(context.node_config)
    if folder is None:
        return refusal(NO_FOLDER, to=message)
    try:
        paid = pay(str(folder), f"flower {context.run_id}", lambda: _asked(message))
        (own,) = message.content.array_records  # before the app, which has the very message
        arrays = paid.release(lambda: _trained(call_next(message, context)))
    except (Refused, BudgetExhausted) as error:
        return refusal(str(error), to=message, kind=error.kind)
    record = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})
    return Message(RecordDict({own: record, "metrics": MetricRecord({WEIGHT: 1})}), reply_to=message)


def clientapp() -> None:
    """Flower's own `flwr-clientapp`, with the app that the server sends behind `update_mod`. A site's SuperNode starts it where it
    is found under that name. Assumes: the app's code, which runs in this process, does not change the process."""
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    runtime: Any = run_clientapp
    loader = runtime.get_load_client_app_fn

    def behind(*options: Any, **more: Any) -> Callable[..., CallNext]:
        load: Callable[..., CallNext] = loader(*options, **more)
        # loaded within the mod: a module that cannot be loaded is a training that fails
        return lambda *app: lambda message, context: update_mod(message, context, lambda m, c: load(*app)(m, c))

    runtime.get_load_client_app_fn = behind
    flwr_clientapp()


def _asked(message: Message) -> tuple[int, Arrays]:
    if message.metadata.message_type != "train":
        raise Refused("This site answers to train alone: what the app says to anything else carries no noise.")
    rounds: list[Any] = [config.get("server-round") for config in message.content.config_records.values()]
    if len(message.content.array_records) != 1 or not rounds or type(rounds[0]) is not int:
        raise Refused("This site answers to one record of arrays with one of config, which has server-round.")
    return rounds[0] - 1, _arrays(message)


def _trained(reply: Message) -> Arrays:
    if reply.has_error():
        raise BadInput("The app's training answered with an error.")
    return _arrays(reply)


def _arrays(message: Message) -> Arrays:
    (record,) = message.content.array_records.values()
    return {name: array.numpy() for name, array in record.items()}
