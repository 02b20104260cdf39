"""Tacit's client under somebody else's server: plain arrays in, plain arrays out, under Flower's own strategies.

Such a server knows nothing of Tacit, so the site brings its own experiment (`experiment.toml` in its folder): its noise, its
rounds and its budget. Every round is paid in the site's ledger before it trains.
"""

import hashlib
from dataclasses import asdict

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from tacit.engine.flower.records import refusal
from tacit.engine.wire import pack, unpack
from tacit.errors import BudgetExhausted, Refused
from tacit.site.site import Site
from tacit.types import Message as Wire


def is_plain(message: Message) -> bool:
    """Whether a message is one of Flower's own strategies."""
    return message.has_content() and "arrays" in message.content and "config" in message.content


def respond_plain(site: Site, message: Message, context: Context) -> Message:
    """One round for a Flower strategy: the new arrays and `num-examples`."""
    arrays = message.content.array_records["arrays"]
    tensors = {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
    theta = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
    try:
        terms, run = site.alone(run=hashlib.sha256(f"flower {context.run_id}".encode()).hexdigest()[:32])
        round = int(message.content.config_records["config"]["server-round"]) - 1  # type: ignore[arg-type]
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


def _shaped(theta: torch.Tensor, like: dict[str, torch.Tensor]) -> ArrayRecord:
    sizes = [tensor.numel() for tensor in like.values()]
    parts = zip(like.items(), theta.split(sizes), strict=True)
    return ArrayRecord({name: Array(part.reshape(old.shape).numpy()) for (name, old), part in parts})
