"""Mutated messages to a site or to a server: `python -m redteam.fuzz site --count 100000` (`make fuzz` runs both).

Every message goes through the code that a real one goes through. What must hold after each: an answer or a refusal came, never
a foreign exception; nothing left that was not paid for; the site still answers an honest question.
"""

import argparse
import copy
import json
import random
import sqlite3
import string
import sys
import tempfile
import typing
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from redteam.lying_server import RUN, Server, experiment

from tacit.algorithms import finished
from tacit.build.parts import build
from tacit.engine.wire import pack, receive, receive_any, unpack
from tacit.errors import BadInput, TacitError
from tacit.federation.flower.client import respond
from tacit.federation.flower.frame import honest, oddity
from tacit.federation.flower.gather import Heard
from tacit.federation.flower.messages import BODY, BYTES, HEAD, KINDS
from tacit.federation.flower.muster import declaration
from tacit.federation.flower.trainer import attributed, spent_of
from tacit.privacy.ledger.tables import QUERY
from tacit.protect.lanes import Lanes
from tacit.protect.randomisers import Randomisers
from tacit.protect.seal import Sealed
from tacit.protect.secret_key import generate
from tacit.protect.signing import Signer
from tacit.types import Message as Wire
from tacit.types import Shared

OTHER = "1" * 32
ODD = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 10**400, 0.5, -0.0, 1e308, float("inf"), float("-inf"), float("nan"),
    "", "a", "\x00", "\ud800", "0", "../..", "é" * 300, [], [[]], [None], {}, {"a": 1}, {"kind": "train"}, [1, 2, 3], "x" * 100_000,
]  # fmt: skip


def mutated(value, rng):
    """A plain value with one thing in it changed."""
    value = copy.deepcopy(value)
    places = list(inner(value))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not places or rng.random() < 0.05:
            return rng.choice(ODD)
        holder, key = rng.choice(places)
        move = rng.random()
        if move < 0.4:
            holder[key] = rng.choice(ODD)
        elif move < 0.5 and isinstance(holder, dict):
            holder.pop(key, None)
        elif move < 0.6 and isinstance(holder, dict):
            holder[rng.choice(("kind", "run", "round", "extra", "terms", "self"))] = rng.choice(ODD)
        elif isinstance(holder, list) and key >= len(holder):
            continue
        elif key in holder or isinstance(holder, list):
            holder[key] = near(holder[key], rng)
    return value


def inner(value):
    """Every place in a plain value."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from inner(value[key])


def near(value, rng):
    """Something close to a value."""
    if isinstance(value, bool) or value is None:
        return rng.choice(ODD)
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 10, -10, 10**6))
    if isinstance(value, float):
        return value * rng.choice((0.999, 1.001, -1, 1e300))
    if isinstance(value, str):
        return scrambled(value.encode("utf-8", "replace"), rng).decode("utf-8", "replace")
    return rng.choice(ODD)


def scrambled(raw, rng):
    """Bytes with some of them changed, cut, doubled or moved."""
    raw, move = bytearray(raw), rng.random()
    if not raw or move < 0.05:
        return bytes(rng.randbytes(rng.randrange(200)))
    at = rng.randrange(len(raw))
    if move < 0.5:
        for _ in range(rng.choice((1, 1, 2, 8))):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    elif move < 0.65:
        del raw[at:]
    elif move < 0.8:
        del raw[at : at + rng.randrange(1, 20)]
    elif move < 0.9:
        raw[at:at] = raw[at : at + rng.randrange(1, 50)]
    else:
        raw[at:at] = rng.choice((b"[" * 5000, b"{" * 5000, b"\xff" * 9, b"1e999", string.printable.encode()))
    return bytes(raw)


def as_flower(head, body, kind, rng):
    """A Flower message that holds a head (a text, or anything) and a body."""
    record = (
        ConfigRecord({"json": head}) if isinstance(head, str) else ConfigRecord({"json": rng.choice((1, 1.5, b"x"))})
    )
    records = {HEAD: record}
    if body:
        records[BODY] = ConfigRecord({BYTES: body})
    message = Message(RecordDict(records), 1, KINDS.get(kind, "train"), ttl=10)
    message.metadata.__dict__["_message_id"] = "1"
    return message


def site_side(count, seed):
    """Asks a real site mutated questions."""
    rng = random.Random(seed)
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    with tempfile.TemporaryDirectory() as folder:
        asking = Server(
            Path(folder) / "site",
            experiment(
                data={"held_out": 0.3},
                privacy={"epsilon": [9.0, 9.0], "noise_multiplier": 300.0, "accountant": "rdp", "evaluation_share": 0.1}
                | {"delta_share": 0.5},
            ),
        )
        asking.budget("epsilon = 1.0", "epsilon = 9.0")
        asking.terms["epsilon"] = 9.0
        asking.agree()
        asking.agree(run=OTHER)  # a query ends its run
        terms, roster, text = asking.terms, asking.roster.record(), asking.experiment.toml()
        asks = [
            {"kind": "hello", "experiment": text},
            {"kind": "agree", "run": RUN, "experiment": text, "roster": roster, "terms": terms, "releases": 3},
            {
                "kind": "agree",
                "run": RUN,
                "experiment": text,
                "roster": roster,
                "terms": terms,
                "ranges": {"age": [0, 1]},
            },
            {"kind": "train", "run": RUN, "round": 1, "terms": terms},
            {"kind": "open", "run": RUN, "round": 1, "group": "all"},
            {"kind": "count", "run": OTHER, "query": "evaluation"},
            {"kind": "keep", "run": RUN},
        ]
        body, seen = asking.body(), {"answered": 0, "refused": 0}
        for number in range(count):
            ask = rng.choice(asks)
            sent, raw = (mutated(ask, rng), body) if rng.random() < 0.6 else (ask, scrambled(body, rng))
            head = (
                json.dumps(sent)
                if rng.random() < 0.7
                else scrambled(json.dumps(sent).encode("utf-8", "replace"), rng).decode("utf-8", "replace")
            )
            reply = respond(asking.site, as_flower(head, raw, ask["kind"], rng))
            seen["refused" if reply.has_error() else "answered"] += 1
            if number % 5000 == 0:
                paid(asking)
                print(f"{number} {seen}", file=sys.stderr, flush=True)
        paid(asking)
        asking.restart()
        asking.train(2)
    return seen


def paid(asking):
    """Every answer that is kept was charged."""
    kept = {int(path.stem.removeprefix("round-")) for path in asking.folder.glob("runs/*/round-*.answer")}
    with sqlite3.connect(asking.folder / "ledger.db") as book:
        charged = {round for (round,) in book.execute("SELECT round FROM charges")}
    assert kept <= charged, f"{kept - charged} were answered and never charged"
    assert len(list(asking.folder.glob("runs/*/counted-*/*.answer"))) <= (QUERY in charged), "counts were never charged"


def server_side(count, seed):
    """Answers a real server with mutated greetings, updates and sealed reports."""
    rng = random.Random(seed)
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    kinds = [Greeting(), Update(), Report()]
    seen = {type(kind).__name__: {"taken": 0, "refused": 0} for kind in kinds}
    for number in range(count):
        kind = rng.choice(kinds)
        head, body = mutated(kind.head, rng) if rng.random() < kind.heads else kind.head, kind.body
        body = body if rng.random() < kind.heads else scrambled(body, rng)
        text = (
            json.dumps(head)
            if rng.random() < 0.8
            else scrambled(json.dumps(head).encode("utf-8", "replace"), rng).decode("utf-8", "replace")
        )
        heard = Heard()
        heard.take(1, as_flower(text, body, "train", rng))
        taken = 1 in heard.answers and kind.take(*heard.answers[1])
        seen[type(kind).__name__]["taken" if taken else "refused"] += 1
        if number % 5000 == 0:
            print(f"{number} {seen}", file=sys.stderr, flush=True)
    return seen


class Greeting:
    """What a site declares."""

    heads, body = 1.0, b""
    head: typing.ClassVar = {
        "site": "client-0",
        "examples": 60,
        "shape": [1, 8, 8],
        "classes": 10,
        "epsilon": 1.0,
        "unit": "record",
    } | dict.fromkeys(("tacit", "torch"), "0")

    def take(self, head, body):
        try:
            return bool(declaration(head))
        except BadInput:
            return False


class Update:
    """A noised update under local DP, on its way into the model."""

    heads, head = 0.3, {"again": False, "epsilon": 1.0}

    def __init__(self):
        self.parts = build(experiment())
        self.state = self.parts.algorithm.init(self.parts.params)
        client = self.parts.population[0]
        self.received = self.parts.algorithm.broadcast(self.state, [client], round=0)
        self.body = pack(honest(self.parts, client, self.received))

    def take(self, head, body):
        spent_of(head)
        if oddity(self.parts, self.received, 0, body):
            return False
        collecting = self.parts.algorithm.collect(self.state, round=0)
        moved, _ = finished(collecting, [receive(body, round=0)], lambda *place: None)
        assert bool(moved.params.isfinite().all()), "a number that is none reached the model"
        return True


class Report:
    """A sealed report, on its way into a sum."""

    heads, head = 0.2, {"again": False, "epsilon": 1.0}

    def __init__(self):
        key, lanes = generate(bits=2048), Lanes(50, 100, 3, 2046)
        signer = Signer("client-0", Ed25519PrivateKey.generate())
        stock = Randomisers(key.public, expected=10, workers=1)
        self.seal = Sealed(lanes, key.public, "run", "roster", {"client-0": signer.public}, {"client-0": signer}, stock)
        self.sent = Shared(torch.arange(50))
        self.body = pack(Wire("client-0", self.seal.report(self.sent, client="client-0", round=0)))
        self.key, self.honest = key, unpack(self.body)

    def take(self, head, body):
        message, sums = receive_any(attributed(body, "client-0")), self.seal.collect(round=0)
        try:
            sums.accept(message)
        except TacitError:
            return False
        if sums.settle():
            return False
        same = all(torch.equal(self.honest.tensors[name], tensor) for name, tensor in message.tensors.items())
        assert same, "a report that nobody signed is in the sum"
        return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("site", "server"))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    sides = {"site": site_side, "server": server_side}
    print(chosen.side, chosen.count, sides[chosen.side](chosen.count, chosen.seed))


if __name__ == "__main__":
    main()
