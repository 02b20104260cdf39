"""What a cheating site can do to a server, and to the run of all others, by what it says of itself and by what it sends."""

import pytest
import torch
from engine.conftest import SMALL
from engine.flower.conftest import THREE, Federation
from redteam.test_deployed_sums import Line

import tacit
from tacit.engine.wire import pack, unpack
from tacit.types import Message


@pytest.fixture
def federation(tmp_path):
    def make(**changes):
        values = SMALL | THREE | {key: THREE.get(key, SMALL.get(key, {})) | value for key, value in changes.items()}
        values["privacy"] = SMALL["privacy"] | values["privacy"]
        return Federation(tmp_path, tacit.Experiment(**values))

    return make


def cheating(change):
    """The first site sends another answer in every round."""

    def answer(head, said, raw, node):
        del said
        return pack(change(unpack(raw))) if head["kind"] == "train" and node == 1 else None

    return answer


def with_facts(**facts):
    return lambda sent: Message(sent.sender, sent.tensors, sent.facts | facts)


def with_tensors(make):
    return lambda sent: Message(sent.sender, make(sent.tensors["update"]), sent.facts)


ODD = {
    "another weight": with_facts(examples=10**12),
    "less noise": with_facts(noise_std=1e-30),
    "a larger budget": with_facts(epsilon=1e9),
    "a fact of another kind": with_facts(noise_std="none"),
    "a fact more": with_facts(clients=10**6),
    "no facts": lambda sent: Message(sent.sender, sent.tensors, {}),
    "another's name": lambda sent: Message("client-1", sent.tensors, sent.facts),
    "no update": with_tensors(lambda update: {}),
    "another shape": with_tensors(lambda update: {"update": update[:-1]}),
    "another type": with_tensors(lambda update: {"update": update.double()}),
    "a tensor more": with_tensors(lambda update: {"update": update, "coordinates": update.clone()}),
    "not a number": with_tensors(lambda update: {"update": torch.full_like(update, torch.nan)}),
}


@pytest.mark.parametrize("why", ODD)
def test_a_site_that_says_or_sends_what_no_honest_one_could_is_left_out_by_name_and_the_run_goes_on(federation, why):
    deployed = federation(train={"rounds": 2})
    history = deployed.run(Line(deployed, answer=cheating(ODD[why])))
    assert [record["answered"] for record in history.rounds] == [2, 2]
    assert history.summary["sites"]["absent"]["client-0"].startswith("it ")


@pytest.mark.parametrize("rule", ["mean", "random-effects", "pfa", "pfa-plus", "public-only", "inverse-variance"])
def test_an_honest_answer_is_what_the_server_expects_under_every_rule(federation, rule):
    history = federation(train={"rounds": 2}, aggregate={"rule": rule}).run()
    assert [record["answered"] for record in history.rounds] == [3, 3]


@pytest.mark.parametrize("changes", [{"privacy": {"level": "minimum"}}, {"privacy": {"unit": "client", "clip": 0.5}}])
def test_an_honest_site_states_the_budget_that_everybody_knows_not_its_own_limit(federation, changes):
    history = federation(train={"rounds": 2}, **changes).run()
    assert [record["answered"] for record in history.rounds] == [3, 3]
