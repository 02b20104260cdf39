"""Tacit's client under somebody else's server: plain arrays in, plain arrays out, under Flower's own strategies.

Such a server knows nothing of Tacit, so the site brings its own experiment (`experiment.toml` in its folder): its noise, its
rounds and its budget. Every round is paid in the site's ledger before it trains.
"""

import hashlib
from dataclasses import asdict
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from tacit import parse
from tacit.engine.wire import pack, unpack
from tacit.errors import BadInput, BudgetExhausted, Refused
from tacit.federation.flower.messages import refusal
from tacit.federation.site.log import note
from tacit.federation.site.site import Site
from tacit.types import Message as Wire


def is_plain(message: Message) -> bool:
    """Whether a message is one of Flower's own strategies': it has records named `arrays` and `config`."""
    return message.has_content() and "arrays" in message.content and "config" in message.content


def respond_plain(site: Site, message: Message, context: Context) -> Message:
    """One round for a Flower strategy: the new arrays and `num-examples`, or a refusal.

    Guarantee: the round is held against the site's own experiment, paid for in its ledger and noised like any other before
    anything leaves; what leaves are the server's arrays plus the noised update. A run is Flower's run, so its rounds share one
    agreement.

    Assumes: the strategy sends what trains of the model, in the model's own order, as 32-bit floats, and counts rounds from 1.
    """
    try:
        tensors, round = _read(message)
    except BadInput as error:
        note(site.folder, verdict="refused", text=str(error))
        return refusal(str(error), to=message)
    try:
        theta = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
        terms, run = site.alone(run=hashlib.sha256(f"flower {context.run_id}".encode()).hexdigest()[:32])
        ask = {"kind": "train", "run": run, "round": round, "terms": asdict(terms)}
        _, raw = site.answer(ask, pack(Wire("server", {"params": theta})))
    except (Refused, BudgetExhausted) as error:
        return refusal(str(error), to=message)
    answer = unpack(raw)
    if "update" not in answer.tensors:
        return refusal("The site's rule sends coordinates, which only Tacit's own server understands.", to=message)
    records: dict[str, ArrayRecord | MetricRecord] = {"arrays": _shaped(theta + answer.tensors["update"], tensors)}
    records["metrics"] = MetricRecord({"num-examples": int(answer.facts["examples"])})
    return Message(RecordDict(records), reply_to=message)  # pyright: ignore[reportArgumentType]


def _read(message: Message) -> tuple[dict[str, torch.Tensor], int]:
    """The arrays of a strategy's question, as float32 tensors, and its round. Raises BadInput for anything else."""
    try:
        arrays: Any = message.content["arrays"]
        tensors = {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
        config: Any = message.content["config"]
        round = parse.whole(config["server-round"], what="Its server-round", least=1) - 1
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError, EOFError) as error:
        raise BadInput(f"A message of a Flower strategy cannot be read ({type(error).__name__}).") from None
    if not tensors or any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        raise BadInput("A message of a Flower strategy does not hold the parameters as 32-bit numbers.")
    return tensors, round


def _shaped(theta: torch.Tensor, like: dict[str, torch.Tensor]) -> ArrayRecord:
    sizes = [tensor.numel() for tensor in like.values()]
    parts = zip(like.items(), theta.split(sizes), strict=True)
    return ArrayRecord({name: Array(part.reshape(old.shape).numpy()) for (name, old), part in parts})
