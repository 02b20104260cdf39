"""A registered site that answers with what is no answer, over the grid, the SuperLink and the gateway of a deployment."""

import json
import math
import sqlite3
import threading
import time
import tracemalloc

import httpx
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from redteam.real_grid import Answering, Pushed, RealGrid, chain, framed, honest, name_of, next_question, push
from redteam.test_gateway import OBJECT, Server, proof

import tacit
from tacit.crypto.grid import Lanes
from tacit.crypto.keys import generate
from tacit.crypto.paillier import Randomisers
from tacit.crypto.reports import Signer
from tacit.crypto.seal import Sealed
from tacit.deploy.operate.connections import LEAST_BYTES, TIMES
from tacit.deploy.server import gather as gather_module
from tacit.deploy.server import server
from tacit.deploy.server.gather import ANSWER_BYTES, gather, opened
from tacit.deploy.server.messages import BODY, BYTES, HEAD, answer, new_nonce, question
from tacit.engine.assemble import build
from tacit.errors import BadInput
from tacit.training.sgd import Trained
from tacit.types import Raw, Shared
from tacit.wire import pack

ASK = {"kind": "train", "run": "0" * 32, "round": 0}


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    with RealGrid(tmp_path_factory.mktemp("line") / "federation") as made:
        yield made


def asked(line, liar, *, seconds=60.0, body=b"", ask=ASK, **options):
    """What a server hears that asks a liar, which comes first, and an honest site, which answers when the liar has."""
    cheat, other = line.nodes
    lied = threading.Event()

    def lies(node, asked, tree):
        try:
            liar(node, asked, tree)
        finally:
            lied.set()

    def answers(node, asked, tree):
        lied.wait(seconds)
        honest(node, asked, fair)

    line.as_server()
    with Answering(cheat, lies), Answering(other, answers):
        return gather(line.grid, dict.fromkeys(line.ids, ask), body, seconds=seconds, **options)


def fair(message):
    return answer({"said": 1}, b"body", to=message)


def pushing(make):
    """A liar that pushes what `make` makes of the question's name."""
    return lambda node, asked, tree: push(node, asked, make(asked.metadata.message_id))


NOT_JSON = framed("RecordDict", b"\xff{")
NO_RECORD = framed("ConfigRecord", b"\xff\xff\xff")
LOST = "ab" * 32
BAD = {
    "a child that is no JSON": lambda name: chain(NOT_JSON, framed("Message", b"", [name_of(NOT_JSON)])),
    "a root that is none": lambda name: chain(framed("RecordDict", b"{}" + name.encode())),
    "a child that was never named": lambda name: chain(framed("Message", name.encode(), [LOST])),
    "no message": lambda name: chain(framed("Message", name.encode())),
    "a record that is none": lambda name: chain(NO_RECORD, framed("Message", b"", [name_of(NO_RECORD)])),
}


@pytest.mark.parametrize("lie", BAD)
def test_a_message_of_300_bytes_from_a_registered_site_neither_ends_the_round_nor_goes_unnamed(line, lie):
    cheat, other = line.ids
    heard = asked(line, pushing(BAD[lie]))
    assert heard.answers == {other: ({"said": 1}, b"body")}
    assert "cannot be read" in heard.refusals[cheat]


def test_an_answer_that_is_announced_and_never_sent_keeps_nobody_from_the_others(line):
    cheat, other = line.ids
    never = chain(framed("ConfigRecord", b"1"), framed("Message", b"2"))
    heard = asked(line, lambda node, asked, tree: push(node, asked, Pushed(never.tree)), enough=1)
    assert list(heard.answers) == [other]
    assert heard.lost[cheat] == "its answer has not arrived whole"


def many(count, size):
    """An answer of so many records, each of so many bytes."""
    records = [framed("ConfigRecord", place.to_bytes(8, "big") + bytes(size)) for place in range(count)]
    root = framed("Message", b"", [name_of(record) for record in records])
    children = [ObjectTree(object_id=name_of(record)) for record in records]
    return Pushed(ObjectTree(object_id=name_of(root), children=children), [*records, root])


def stored(line):
    """How many bytes Flower's store holds."""
    with sqlite3.connect(line.federation.server / "superlink.db") as book:
        return book.execute("SELECT coalesce(sum(length(content)), 0) FROM objects").fetchone()[0]


def test_an_answer_of_many_times_the_honest_bytes_is_refused_by_name_before_it_is_pulled_and_deleted(line, monkeypatch):
    cheat, other = line.ids
    pulled, client = [], line.grid._runtime_client
    pull = client.PullObject

    def counted(ask):
        reply = pull(ask)
        pulled.append(len(reply.object_content))
        return reply

    monkeypatch.setattr(client, "PullObject", counted)
    heard = asked(line, lambda node, asked, tree: push(node, asked, many(3, 1 << 20)))
    assert heard.refusals[cheat] == "its answer has more than the 1048576 bytes of an honest one"
    assert list(heard.answers) == [other]
    assert sum(pulled) < (3 << 20)
    assert stored(line) < (2 << 20)


def test_an_answer_of_many_parts_is_refused_by_name_before_one_is_pulled(line, monkeypatch):
    cheat, other = line.ids
    pulled, client = [], line.grid._runtime_client
    pull = client.PullObject
    monkeypatch.setattr(client, "PullObject", lambda ask: pulled.append(ask) or pull(ask))
    heard = asked(line, lambda node, asked, tree: push(node, asked, Pushed(many(200, 1).tree)))
    assert heard.refusals[cheat] == "its answer has more than the 4 parts of an honest one"
    assert list(heard.answers) == [other]
    assert len(pulled) < 10


@pytest.mark.parametrize("envelope", [{"created_at": math.nan}, {"created_at": math.inf, "ttl": math.nan}])
def test_an_answer_without_a_time_at_which_flower_fails_keeps_nobody_from_the_others(line, envelope):
    """Flower's store makes no number of it, and its SuperLink then fails at every look for all answers together."""
    cheat, other = line.ids
    lie = chain(framed("ConfigRecord", b""), framed("Message", b""))
    lie.metadata = envelope
    heard = asked(line, lambda node, asked, tree: push(node, asked, lie), enough=1)
    assert list(heard.answers) == [other]
    assert cheat not in heard.refusals


HEAVY = {
    "empty items": b"\x0a\x00" * 50_000,
    "a list of numbers": b"\x0a\x0a\x12\x08\xb2\x01\x05\x0a\x03\x01\x01\x01",
    "a value of many values": b"\x0a\x06\x12\x04\x2a\x00\x2a\x00",
    "a length beyond the end": b"\x0a\x7f\x00",
    "a number without an end": b"\x0a" + b"\xff" * 20,
    "a number where a text belongs": b"\x08\x01",
}


@pytest.mark.parametrize("what", HEAVY)
def test_a_record_that_would_become_many_times_its_bytes_is_not_opened(what):
    content = framed("ConfigRecord", HEAVY[what])
    with pytest.raises(BadInput, match="cannot be read"):
        opened(name_of(content), {name_of(content): content})


def unheard(line, node):
    """A question to a node, whose answer the server does not look for."""
    line.as_server()
    line.grid.push_messages([question(ASK, b"", node=node.node.node_id, seconds=60, nonce=new_nonce())])
    while (found := next_question(node)) is None:
        time.sleep(0.05)
    return found[0]


def register(line, node, name):
    """Answers honestly, and registers as a part of the answer a name with a child that is not its own."""
    asked = unheard(line, node)
    message = message_from_proto(asked)
    message.metadata.__dict__["_message_id"] = asked.metadata.message_id
    said = fair(message)
    contents = [part.deflate() for part in get_all_nested_objects(said).values()]
    tree = get_object_tree(said)
    tree.children.append(ObjectTree(object_id=name, children=[ObjectTree(object_id=LOST)]))
    push(node, asked, Pushed(tree, contents))
    with pytest.raises(httpx.HTTPStatusError, match="400"):  # nor is there a second tree for the same answer
        push(node, asked, Pushed(tree.children[-1], message=said.object_id))


def fair_too(node, asked, tree):
    honest(node, asked, fair)


def test_a_site_that_registers_its_own_next_question_with_false_children_does_not_end_the_next_round(line):
    line.as_server()
    next_ask = ASK | {"round": 1}
    register(line, line.nodes[0], question(next_ask, b"", node=1, seconds=9, nonce=new_nonce()).content[HEAD].object_id)
    assert set(asked(line, fair_too, ask=next_ask).answers) == set(line.ids)


def test_a_site_cannot_register_the_answer_that_another_will_give(line):
    """What an honest site answers to most questions is known to everybody."""
    line.as_server()
    message = question(ASK, b"", node=line.ids[0], seconds=9, nonce=b"")
    message.metadata.__dict__["_message_id"] = "1"
    register(line, line.nodes[0], fair(message).content[HEAD].object_id)
    assert set(asked(line, fair_too).answers) == set(line.ids)


def test_a_question_that_cannot_be_sent_to_one_site_reaches_the_others_and_names_it(line, monkeypatch):
    cheat, other = line.ids
    line.as_server()
    next_ask = ASK | {"round": 7, "to": cheat}
    monkeypatch.setattr(gather_module, "new_nonce", lambda: b"known beforehand")
    guess = question(next_ask, b"", node=cheat, seconds=9, nonce=b"known beforehand").content[HEAD].object_id
    register(line, line.nodes[0], guess)
    with Answering(line.nodes[1], fair_too):
        heard = gather(line.grid, {cheat: next_ask, other: ASK}, b"", seconds=60.0, enough=1)
    assert list(heard.answers) == [other]
    assert "could not be asked" in heard.lost[cheat]


def test_a_site_that_leaves_and_comes_back_all_the_time_is_not_sent_the_model_every_two_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(gather_module.time, "monotonic", lambda: now[0])

    class Coming:
        def get_node_ids(self):
            return [7] if now[0] // gather_module.LOOK_SECONDS % 2 else []

    turns, asked = gather_module.Turns(Coming(), 30.0), []
    for _ in range(600):
        asked += [now[0]] if turns.due([7]) else []
        now[0] += 1.0
    assert len(asked) <= 10


def test_a_key_stores_no_more_between_two_questions_than_a_few_honest_answers(line):
    """What it pushes beyond that is refused at the gateway, before it is read; the next question is answered again."""
    cheat, node = line.ids[0], line.nodes[0]
    question_to = unheard(line, node)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        push(node, question_to, many(2 * TIMES, LEAST_BYTES))
    assert caught.value.response.status_code == 413
    assert stored(line) < (TIMES + 2) * LEAST_BYTES
    assert "stored more than" in (line.federation.server / "gateway.log").read_text()
    assert cheat in asked(line, fair_too).answers


def test_a_key_does_not_store_without_end_by_asking_what_is_refused(line):
    """Whoever is asked may store anew; a refusal is as long as a question, and asks nothing."""
    node, cheat = line.nodes[0], line.federation.site(line.federation.sites[0])
    question_to = unheard(line, node)
    with pytest.raises(httpx.HTTPStatusError):
        push(node, question_to, many(2 * TIMES, LEAST_BYTES))
    gateway = Server(line.federation, line.processes)
    for body in (b"\xff" * 40, b"", PullMessagesRequest(node={"node_id": 7}).SerializeToString()):
        assert gateway.post("pull-messages", body, proof=proof(cheat)) in (400, 401, 422)
    assert gateway.post(OBJECT, bytes(LEAST_BYTES), proof=proof(cheat)) == 413


def test_one_piece_that_a_table_names_many_times_is_refused_by_name_and_takes_no_memory(line):
    cheat, other = line.ids

    def lie(node, asked, tree):
        head, piece = ConfigRecord({"json": "{}"}).deflate(), ConfigRecord({BYTES: bytes(900_000)}).deflate()
        names = {HEAD: name_of(head), BODY: name_of(piece)}
        names |= {f"{BODY}-{place}": name_of(piece) for place in range(1, 600)}
        table = framed("RecordDict", json.dumps(names).encode(), [name_of(head), name_of(piece)])
        message = message_from_proto(asked)
        message.metadata.__dict__["_message_id"] = asked.metadata.message_id
        root = fair(message).deflate()
        root = framed("Message", root.partition(b"\x00")[2], [name_of(table)])
        leaves = [ObjectTree(object_id=name_of(part)) for part in (head, piece)]
        tree = ObjectTree(object_id=name_of(root), children=[ObjectTree(object_id=name_of(table), children=leaves)])
        push(node, asked, Pushed(tree, [head, piece, table, root]))

    tracemalloc.start()
    heard = asked(line, lie, most=8 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(heard.answers) == [other]
    assert "names one record twice" in heard.refusals[cheat]
    assert peak < 100 << 20


@pytest.mark.parametrize("kind", ["local", "central", "none"])
def test_no_honest_answer_reaches_the_limit_of_its_run(kind):
    experiment = tacit.Experiment(
        name="long", data={"clients": 3, "examples_per_client": 60}, privacy={"kind": kind, "epsilon": 1.0}
    )
    parts = build(experiment)
    client, state = parts.population[0], parts.algorithm.init(parts.params)
    received = parts.algorithm.broadcast(state, [client], round=0)
    zeros = Trained(Raw(torch.zeros_like(parts.params)))
    sent = server.honest(parts, client, received) or parts.algorithm.release(zeros, client, received)
    assert len(pack(sent)) + ANSWER_BYTES // 2 < server.answer_bytes(parts)


def test_no_honest_sealed_report_reaches_the_limit_of_its_run():
    key, signer = generate(bits=2048), Signer("a", Ed25519PrivateKey.generate())
    lanes, stock = Lanes(50, 100, 3, 2046), Randomisers(key.public, expected=10, workers=1)
    seal = Sealed(lanes, key.public, "run", "roster", {"a": signer.public}, {"a": signer}, stock)
    sent = seal.report(Shared(torch.zeros(50, dtype=torch.int64)), client="a", round=0)
    assert sum(tensor.numel() for tensor in sent.values()) <= seal.report_bytes
