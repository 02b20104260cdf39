"""Mutated messages to a site or to a server: `python -m redteam.fuzz site --count 100000` (`make fuzz` runs both).

Every message goes over HTTPS: to a site from a server that lies in every layer; to a server's grid from registered nodes through
gateway and SuperLink, and from a SuperLink that lies. What must hold: nothing ends either; nothing left that was not paid for; the
honest node of every gathering is heard; at the end the site answers an honest question.
"""

import argparse
import contextlib
import copy
import json
import logging
import random
import sqlite3
import string
import sys
import tempfile
import threading
import time
import typing
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

import httpx
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.error_pb2 import Error
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from redteam.lying_line import NODE, LyingLine, LyingRuntime
from redteam.lying_server import RUN, Server, experiment
from redteam.real_grid import Pushed, RealGrid, framed, name_of, next_question, push

from tacit.algorithms import finished
from tacit.crypto.grid import Lanes
from tacit.crypto.keys import generate
from tacit.crypto.paillier import Randomisers
from tacit.crypto.reports import Signer
from tacit.crypto.seal import Sealed
from tacit.deploy.server import node as node_line
from tacit.deploy.server.client import respond
from tacit.deploy.server.gather import gather
from tacit.deploy.server.messages import BODY, BYTES, HEAD, KINDS, NONCE, new_nonce, question
from tacit.deploy.server.node import FleetNode
from tacit.deploy.server.registration import declaration
from tacit.deploy.server.server import honest, oddity
from tacit.deploy.server.trainer import attributed, spent_of
from tacit.engine.assemble import build
from tacit.errors import BadInput, TacitError
from tacit.privacy.ledger.disk import QUERY
from tacit.types import Message as Wire
from tacit.types import Shared
from tacit.wire import pack, receive, receive_any, unpack

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


def as_text(head, rng, *, whole):
    """A head as JSON, which may be scrambled."""
    text = json.dumps(head).encode("utf-8", "replace")
    return (text if rng.random() < whole else scrambled(text, rng)).decode("utf-8", "replace")


HEAVY = (b"\x0a\x00" * 20_000, b"\x0a\x0a\x12\x08\xb2\x01\x05\x0a\x03\x01\x01\x01", b"\x0a" + b"\xff" * 20)


def honest_objects(message):
    """A message as Flower's line has it: a tree of named parts, children before their parents."""
    return Pushed(get_object_tree(message), [part.deflate() for part in get_all_nested_objects(message).values()])


def as_objects(message, rng):
    """The parts of a message, of which in one of four messages one is changed, lost, made up or of another kind."""
    honest = honest_objects(message)
    if rng.random() < 0.75:
        return honest
    tree, contents = honest.tree, honest.contents
    place, move = rng.randrange(len(contents)), rng.random()
    kind, _, body = contents[place].partition(b"\x00")
    kind, children = kind.decode().split(" ")[:2]
    children = children.split(",") if children else []
    if move < 0.5:
        other = framed(kind, scrambled(body, rng), children)
    elif move < 0.6:
        other = framed(
            rng.choice(("Message", "RecordDict", "ConfigRecord", "Array", "ArrayChunk", "Context")), body, children
        )
    elif move < 0.7:
        other = framed(kind, body, rng.choice(([], children * 2, [name_of(rng.randbytes(3))])))
    elif move < 0.8:
        other = framed("ConfigRecord", rng.choice(HEAVY))
    elif move < 0.85:
        other = scrambled(contents[place], rng)
    else:
        extra = [ObjectTree(object_id=name_of(rng.randbytes(4))) for _ in range(rng.choice((1, 1, 300)))]
        changed = ObjectTree(object_id=tree.object_id, children=[*tree.children, *extra] if rng.random() < 0.5 else [])
        return Pushed(changed, contents)
    return relinked(tree, contents, place, other)


def relinked(tree, contents, place, other):
    """The parts with one exchanged; whoever names it as a child names the new one."""
    renamed, made = {}, []
    for number, content in enumerate(contents):
        old, new = name_of(content), other if number == place else content
        for before, after in renamed.items():
            new = new.replace(before.encode(), after.encode())
        renamed[old] = name_of(new)
        made.append(new)

    def built(tree):
        return ObjectTree(object_id=renamed.get(tree.object_id, tree.object_id), children=map(built, tree.children))

    return Pushed(built(tree), made)


def site_side(count, seed):
    """Asks a real site mutated questions, over a line of HTTPS at whose other end a server lies."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        asking = Server(
            Path(folder) / "site",
            experiment(
                data={"held_out": 0.3},
                privacy={
                    "epsilon": [9.0, 9.0],
                    "noise_multiplier": 300.0,
                    "query_shares": {"evaluation": 0.1},
                }
                | {"delta_share": 0.5},
            ),
        )
        asking.budget("epsilon = 1.0", "epsilon = 9.0")
        asking.terms["epsilon"] = 9.0
        asking.agree()
        asking.agree(run=OTHER)  # a query ends its run
        terms, roster, text = asking.terms, asking.roster.record(), asking.experiment.toml()
        agree = {"kind": "agree", "run": RUN, "experiment": text, "roster": roster, "terms": terms}
        asks = [
            {"kind": "hello", "experiment": text},
            agree | {"releases": 3},
            agree | {"ranges": {"age": [0, 1]}},
            {"kind": "train", "run": RUN, "round": 1},
            {"kind": "open", "run": RUN, "round": 1, "group": "all"},
            {"kind": "count", "run": OTHER, "query": "evaluation"},
            {"kind": "keep", "run": RUN},
        ]
        asked, body = Asked(count, asks, asking.body(), rng), asking.body()
        with LyingLine(Path(folder) / "server", asking.folder, asked.next, asked.told) as line:
            node = FleetNode(asking.folder, server=line.address)
            node.join(died=False)
            node_line.answer(
                node,
                lambda message: respond(asking.site, message),
                stopped=asked.over,
                idle=lambda: None if asked.number % 100 else paid(asking),
            )
            asking.restart()
            answered = Asked(1, [{"kind": "train", "run": RUN, "round": 2}], body, None)
            line._ask, line._told = answered.next, answered.told
            node_line.answer(node, lambda message: respond(asking.site, message), stopped=answered.over)
            node.leave()
            assert answered.seen["answered"] == 1, "the site does not answer an honest question any more"
        paid(asking)
    return asked.seen


QUIET_SECONDS = 3.0  # after the last question, for its answer


class Asked:
    """What a lying server asks next, and what it is told; honest where `rng` is None."""

    def __init__(self, count, asks, body, rng):
        self.count, self.asks, self.body, self.rng, self.number = count, asks, body, rng, 0
        self.seen, self.last = {"answered": 0, "refused": 0}, 0.0

    def over(self):
        return self.number >= self.count and time.monotonic() - self.last > QUIET_SECONDS

    def told(self, message):
        self.seen["refused" if message.HasField("error") else "answered"] += 1

    def next(self):
        if self.number >= self.count:
            return None
        self.number, self.last = self.number + 1, time.monotonic()
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        if self.rng is None:
            message = question(self.asks[0], self.body, node=NODE, seconds=10, nonce=new_nonce())
            return message, honest_objects(message), 200, bytes
        rng = self.rng
        ask = rng.choice(self.asks)
        sent, raw = (mutated(ask, rng), self.body) if rng.random() < 0.6 else (ask, scrambled(self.body, rng))
        message = as_flower(as_text(sent, rng, whole=0.7), raw, ask["kind"], rng)
        status, spoil = 200, bytes
        if rng.random() < 0.02:
            status, spoil = rng.choice((200, 200, 204, 400, 404, 500, 503)), lambda raw: scrambled(raw, rng)
        if self.number % 1000 == 0:
            print(f"{self.number} {self.seen}", file=sys.stderr, flush=True)
        return message, as_objects(message, rng), status, spoil


def paid(asking):
    """Every answer that is kept was charged."""
    kept = {int(path.stem.removeprefix("round-")) for path in asking.folder.glob("runs/*/round-*.answer")}
    with sqlite3.connect(asking.folder / "ledger.db") as book:
        charged = {round for (round,) in book.execute("SELECT round FROM charges")}
    assert kept <= charged, f"{kept - charged} were answered and never charged"
    assert len(list(asking.folder.glob("runs/*/counted-*/*.answer"))) <= (QUERY in charged), "counts were never charged"


ODD_TIMES = (float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 1e300, 1.8e9, 1e12)
ODD_TEXTS = ("", "x", "\x00", "é" * 300, "f" * 64, "x" * 5000)
ODD_NODES = (0, 1, 2, 77, 2**63, 2**64 - 1)


def odd_envelope(rng):
    """What else may stand around an answer."""
    name, values = rng.choice(
        (("created_at", ODD_TIMES), ("ttl", ODD_TIMES), ("message_id", ODD_TEXTS), ("group_id", ODD_TEXTS),
         ("message_type", ODD_TEXTS), ("delivered_at", ODD_TEXTS), ("src_node_id", ODD_NODES), ("dst_node_id", ODD_NODES),
         ("run_id", ODD_NODES), ("reply_to_message_id", ODD_TEXTS))
    )  # fmt: skip
    return {name: rng.choice(values)}


REAL = 0.02  # of the messages go through gateway and SuperLink, which take a tenth of a second of a core for each
NODES = {RealGrid: 32, LyingRuntime: 128}  # that answer at once


def server_side(count, seed, *, real=REAL, nodes=NODES):
    """Answers a real server over Flower's HTTP grid with mutated greetings, updates and sealed reports.

    A part of them come from registered nodes through gateway and SuperLink, the others from a lying SuperLink. One node of each
    gathering is honest, and has to be heard.
    """
    rng, kinds = random.Random(seed), [Greeting(), Update(), Report()]
    seen = {type(kind).__name__: {"taken": 0, "refused": 0} for kind in kinds} | {"lost": 0}
    with tempfile.TemporaryDirectory() as folder:
        if through := round(real * count):
            with RealGrid(Path(folder) / "federation", sites=nodes[RealGrid]) as line:
                gatherings(line, Liars, through, rng, kinds, seen)
        with LyingRuntime(Path(folder) / "runtime", list(range(1000, 1000 + nodes[LyingRuntime]))) as line:
            TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
            gatherings(line, Handed, count - through, rng, kinds, seen)
    return seen


def gatherings(line, liars, count, rng, kinds, seen):
    """As many gatherings as so many lies take."""
    done = 0
    while done < count:
        lying = liars(line, rng, kinds, number=done)
        heard = lying.gathered()
        honest, *others = line.ids
        assert honest in heard.answers, f"the honest site was not heard: {heard.lost.get(honest)}"
        for node in others:
            assert heard.refusals.get(node, "unnamed").isprintable()
            assert heard.refusals.get(node, "unnamed"), "a refusal says nothing"
            if node in heard.answers or node in heard.refusals:
                kind = lying.kinds[node]
                taken = node in heard.answers and kind.take(*heard.answers[node])
                seen[type(kind).__name__]["taken" if taken else "refused"] += 1
            else:
                seen["lost"] += 1
        done += len(others)
        if done % 1000 < len(others):
            print(f"{done} {seen}", file=sys.stderr, flush=True)


class Over(Exception):
    """Whoever has not spoken yet never will: its answer was not taken."""


class Liars:
    """One gathering: the first node answers honestly, every other one with something mutated."""

    def __init__(self, line, rng, kinds, *, number):
        self._line, self._rng, self._number = line, rng, number
        self.kinds = {node: rng.choice(kinds) for node in line.ids}
        self._done, self._before, self._heard = set(), set(), None
        self._sent = threading.Event()

    def gathered(self):
        line, ask = self._line, {"kind": "train", "run": RUN, "round": self._number}
        with ThreadPoolExecutor(4) as pool:
            made = [self._made(node.node.node_id) for node in line.nodes[1:]]
            tasks = [pool.submit(self._honest, line.nodes[0])]
            tasks += [pool.submit(self._lie, node, *one) for node, one in zip(line.nodes[1:], made, strict=True)]
            line.as_server()
            sending = mock.patch.object(line.grid, "push_messages", partial(self._send, line.grid.push_messages))
            try:
                with sending:
                    heard = gather(
                        line.grid, dict.fromkeys(line.ids, ask), b"", seconds=60.0, again=60.0, tell=self._tell
                    )
            except Over:
                heard = self._heard
            for task in tasks:
                task.result()
        return heard

    def _send(self, push_messages, messages):
        names = push_messages(messages)
        self._sent.set()  # before, a node would look in vain, and each look costs as much as an answer
        return names

    def _tell(self, heard):
        self._heard = heard
        if set(heard.open(dict.fromkeys(self._line.ids))) <= self._before:
            raise Over  # a whole look has come since they were done
        self._before = set(self._done)

    def _asked(self, node):
        self._sent.wait(60.0)
        ends = time.monotonic() + 60.0
        while (found := next_question(node)) is None or found[0].metadata.group_id != str(self._number):
            assert time.monotonic() < ends, "the server asks no more"
            time.sleep(0.02)
        return found[0]

    def _honest(self, node):
        asked = self._asked(node)
        push(node, asked, honest_objects(as_answer(asked, HONEST)))
        self._done.add(node.node.node_id)

    def _made(self, node):
        """A content and what is done to it, made in one thread: what a seed gives is the same every time."""
        rng, kind = self._rng, self.kinds[node]
        head, body = mutated(kind.head, rng) if rng.random() < kind.heads else kind.head, kind.body
        body = body if rng.random() < kind.heads else scrambled(body, rng)
        own = random.Random(rng.random())
        return as_content(as_text(head, rng, whole=0.8), body), own

    def _lie(self, node, content, rng):
        asked = self._asked(node)
        pushed = as_objects(as_answer(asked, content), rng)
        if rng.random() < 0.15:
            pushed.metadata = odd_envelope(rng)
        if rng.random() < 0.05:
            pushed.error = Error(
                code=rng.choice((0, 1, 105, -(2**62), 2**62)), reason="\x1b[2J" + "x" * rng.choice((0, 9, 5000))
            )
        with contextlib.suppress(httpx.HTTPError, ValueError):
            push(node, asked, pushed)
        self._done.add(node.node.node_id)


class Handed(Liars):
    """The same where nothing stands between whoever lies and the server's grid."""

    def gathered(self):
        made = {node: self._made(node) for node in self._line.ids}
        self._line.lie = lambda node, asked: self._handed(node, asked, *made[node])
        ask = {"kind": "train", "run": RUN, "round": self._number}
        try:
            return gather(
                self._line.grid, dict.fromkeys(self._line.ids, ask), b"", seconds=60.0, again=60.0, tell=self._tell
            )
        except Over:
            return self._heard

    def _handed(self, node, asked, content, rng):
        self._done.add(node)
        if node == self._line.ids[0]:
            return honest_objects(as_answer(asked, HONEST))
        return as_objects(as_answer(asked, content), rng)


def as_content(text, body):
    """A head and a body as a site's answer has them."""
    return RecordDict({HEAD: ConfigRecord({"json": text, NONCE: new_nonce(), BYTES: body})})


HONEST = as_content(json.dumps({"said": 1}), b"body")


def as_answer(asked, content):
    """The answer to a question."""
    message = message_from_proto(asked)
    message.metadata.__dict__["_message_id"] = asked.metadata.message_id
    return Message(content, reply_to=message)


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
    began = time.monotonic()
    seen = fuzzed(chosen.side, chosen.count, chosen.seed)
    print(chosen.side, chosen.count, seen, f"{chosen.count / (time.monotonic() - began):.0f} a second")


def fuzzed(side, count, seed, **options):
    """What came of so many messages to a side; no pause of a line is as long as between machines."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    logging.getLogger("tacit").setLevel(logging.CRITICAL)
    quick = {"LOOK_SECONDS": (0.0, 0.0), "RETRY_SECONDS": (0.001, 0.002), "COME_SECONDS": 0.01}
    with mock.patch.multiple(node_line, **quick):
        return {"site": site_side, "server": server_side}[side](count, seed, **options)


if __name__ == "__main__":
    main()
