"""A site that cheats under local DP: whatever it answers costs it the round, by its own name, and nobody else."""

import copy
import re
from dataclasses import replace

import pytest
import torch
from engine.conftest import SMALL
from engine.flower.conftest import THREE, Federation

import tacit
from tacit.engine.flower.client import client_app
from tacit.engine.flower.local import LocalGrid
from tacit.engine.flower.records import _content, read
from tacit.engine.wire import pack, unpack
from tacit.errors import TacitError
from tacit.types import Message


@pytest.fixture
def federation(tmp_path):
    values = SMALL | {"data": THREE["data"], "privacy": {"kind": "local", "epsilon": [1.0, 2.0, 8.0]}}

    def make(**changes):
        return Federation(tmp_path, tacit.Experiment(**values | {"train": SMALL["train"] | {"rounds": 1}} | changes))

    return make


class Cheated(LocalGrid):
    """The first site's answers of one kind are replaced on the way."""

    def __init__(self, deployed, kind, answer):
        super().__init__(client_app(), [deployed.site(index) for index in range(3)])
        self.kind, self.answer = kind, answer

    def push_messages(self, messages):
        names = []
        for sent in messages:
            head, _ = read(sent)
            names += super().push_messages([sent])
            reply = self._replies[names[-1]]
            if head["kind"] == self.kind and sent.metadata.dst_node_id == 1:
                reply.content = _content(*self.answer(*read(reply)))
        return names


def altered(**changes):
    def answer(head, body):
        message = unpack(body)
        facts = {key: value for key, value in (message.facts | changes.get("facts", {})).items() if value != "gone"}
        tensors = changes.get("tensors", lambda update: {"update": update})(message.tensors["update"])
        return head, pack(replace(message, sender=changes.get("sender", message.sender), tensors=tensors, facts=facts))

    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda head, body: (head, b""), "could not be read"),
        (lambda head, body: (head, b"\xff" * 4096), "could not be read"),
        (lambda head, body: (head, pack(Message("client-0", {}, {}))), "it sent nothing where update"),
        (altered(sender="client-1"), "it answered in another's name"),
        (altered(facts={"epsilon": 1e6}), "other facts about itself than were agreed"),
        (altered(facts={"examples": 10**9}), "other facts"),
        (altered(facts={"examples": float("nan")}), "other facts"),
        (altered(facts={"noise_std": 1e-9}), "other facts"),
        (altered(facts={"noise_std": "gone"}), "other facts"),
        (altered(facts={"group": "public"}), "other facts"),
        (altered(tensors=lambda update: {"update": update * float("nan")}), "an? update that is not finite"),
        (altered(tensors=lambda update: {"update": update * 1e30}), "larger than any honest one"),
        (altered(tensors=lambda update: {"update": update[:-1]}), "where update of"),
        (altered(tensors=lambda update: {"update": update.double()}), "where update of"),
        (altered(tensors=lambda update: {"update": update, "more": update.clone()}), "where update of"),
        (altered(tensors=lambda update: {"coordinates": torch.zeros(1, 1)}), "where update of"),
    ],
)
def test_an_answer_that_no_honest_site_could_give_costs_its_sender_the_round_and_nobody_else(federation, answer, words):
    deployed = federation()
    history = deployed.run(Cheated(deployed, "train", answer))
    assert history.rounds[0]["answered"] == 2
    assert list(history.summary["sites"]["absent"]) == ["client-0"]

    assert re.search(words, history.summary["sites"]["absent"]["client-0"])


@pytest.mark.parametrize("rule", ["pfa", "pfa-plus", "random-effects", "mean", "robust"])
def test_honest_answers_are_in_order_whatever_the_rule(federation, rule):
    deployed = federation(aggregate={"rule": rule}, train=SMALL["train"] | {"rounds": 3})
    history = deployed.run()
    assert [record["answered"] for record in history.rounds] == [3, 3, 3]
    assert history.summary["sites"]["absent"] == {}


@pytest.mark.parametrize(
    "change",
    [
        {"site": 7},
        {"examples": "60"},
        {"examples": float("inf")},
        {"examples": -1},
        {"epsilon": None},
        {"epsilon": float("nan")},
        {"epsilon": 10**400},
        {"shape": [[]]},
        {"classes": True},
        {"unit": []},
        {"tacit": {"a": 1}},
        {"extra": 1},
    ],
)
def test_a_crafted_declaration_is_refused_and_ends_nothing_in_a_traceback(federation, change):
    deployed = federation()

    def answer(head, body):
        return copy.deepcopy(head) | change, body

    with pytest.raises(TacitError, match=r"did not join \(client-0\).*declares what cannot be read"):
        deployed.run(Cheated(deployed, "hello", answer), join_seconds=3)
