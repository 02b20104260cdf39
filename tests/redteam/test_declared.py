"""Sites that declare more than is true: an epsilon, or a number of rows, is what a client weighs, and nobody can check it."""

import tomllib
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from federation.flower.conftest import Federation
from hypothesis import given
from hypothesis import strategies as some
from redteam.lying_server import experiment
from trained import same_model

import tacit
from tacit.algorithms.rules import ceiling, share_of
from tacit.deploy.operate.init import init
from tacit.deploy.operate.processes import free_port
from tacit.deploy.server.client import LocalGrid, client_app
from tacit.deploy.server.messages import _content, read
from tacit.deploy.site.consent import proposed
from tacit.deploy.site.limits import read_limits
from tacit.deploy.site.requests import Roster
from tacit.engine.assemble import build
from tacit.engine.malicious import Malice
from tacit.errors import BadInput, Refused, TacitError
from tacit.privacy.wiring import Wiring
from tacit.report import plan

CLIENTS, LIE = 40, 1e6


class Liar(LocalGrid):
    """The first site says something else of itself when it is greeted."""

    def __init__(self, deployed, **lie):
        super().__init__(client_app(), [deployed.site(index) for index in range(len(deployed.names))])
        self.lie = lie

    def push_messages(self, messages):
        names = []
        for sent in messages:
            names += super().push_messages([sent])
            if read(sent)[0]["kind"] == "hello" and sent.metadata.dst_node_id == 1:
                reply = self._replies[names[-1]]
                reply.content = _content(*(read(reply)[0] | self.lie, b"", bytes(16)))
        return names


def test_a_site_that_declares_a_larger_epsilon_than_all_agree_to_is_refused_by_name_and_nobody_pays(tmp_path):
    deployed = Federation(tmp_path, experiment(aggregate={"rule": "pfa"}))
    with pytest.raises(TacitError, match=r"client-0.*epsilon 1e\+06, where the experiment names 1 for it"):
        deployed.run(Liar(deployed, epsilon=LIE))
    assert not list(tmp_path.glob("**/runs/*/agreement.json"))


def test_a_site_refuses_an_experiment_that_names_no_epsilon_for_it():
    for epsilon in ("mixgauss3", {"client-1": 2.0}, [1.0]):
        with pytest.raises(Refused, match="names no epsilon for 'client-7'"):
            proposed(tacit.Experiment(privacy={"kind": "local", "epsilon": epsilon}), "client-7")


@pytest.mark.parametrize("epsilon", ["mixgauss3", 3.0, [1.0, 2.0, 8.0]])
def test_every_sites_epsilon_is_in_the_experiment_that_all_accept_however_it_was_said(tmp_path, epsilon):
    chosen = tacit.Experiment(data={"clients": 3}, privacy={"kind": "local", "epsilon": epsilon})
    made = init(tmp_path / "federation", sites="3", experiment=chosen, host="127.0.0.1", port=free_port())
    for text in (made.app / "tacit_app" / "experiment.toml", made.site("client-1") / "proposal.toml"):
        named = tomllib.loads(text.read_text())["privacy"]["epsilon"]
        assert named == {name: read_limits(made.site(name)).epsilon for name in made.sites}


def test_a_run_that_an_infinite_epsilon_has_stopped_goes_on_once_the_site_has_set_a_limit(tmp_path):
    deployed = Federation(tmp_path, experiment(privacy={"epsilon": [1.0, float("inf")]}))
    with pytest.raises(BadInput, match="client-1 sets no limit"):
        deployed.run()
    budget = deployed.site(1) / "budget.toml"
    budget.write_text(budget.read_text().replace("epsilon = inf", "epsilon = 2.0"))
    assert deployed.run(resume=True).summary["rounds"] == 3


def test_a_rule_that_weighs_by_epsilon_refuses_an_infinite_one_before_sites_agree(tmp_path):
    same = {"epsilon": [1.0, float("inf")], "noise_multiplier": 2.0}
    deployed = Federation(tmp_path, experiment(privacy=same, aggregate={"rule": "weighted"}))
    with pytest.raises(TacitError, match="cannot be weighed by its epsilon"):
        deployed.run()
    assert not list(tmp_path.glob("**/runs/*/agreement.json"))
    budget = deployed.site(1) / "budget.toml"
    budget.write_text(budget.read_text().replace("epsilon = inf", "epsilon = 2.0"))
    assert deployed.run(resume=True).summary["rounds"] >= 1


@dataclass(frozen=True)
class flipped(Malice):
    """Sends the opposite of what it has learned."""

    def update(self, train, params, client, bad, scene):
        return -train(client, params)


def attacked(rule, out, *, lie, **aggregate):
    """The accuracy that a run reaches with one client that flips its updates, at an honest epsilon or at a false one."""
    values = {
        "data": {"clients": CLIENTS, "examples_per_client": 30},
        "train": {"rounds": 5, "local_steps": 15, "sampling_rate": 0.5, "learning_rate": 0.5},
        "privacy": {"kind": "local", "epsilon": [9.0] * CLIENTS},
        "aggregate": {"rule": rule} | aggregate,
        "attack": {"kind": "redteam.test_declared:flipped", "clients": 1},
        "run": {"workers": 1},
    }
    parts = build(tacit.Experiment(**values))
    assert parts.attack is not None
    (liar,) = parts.attack[0].malicious
    epsilons = [9.0] * CLIENTS
    epsilons[liar] = lie
    values["privacy"]["epsilon"] = epsilons
    return tacit.run(tacit.Experiment(**values), out=out).summary["metrics"]["accuracy"]


@pytest.mark.parametrize("rule", ["weighted", "pfa"])
def test_flipped_updates_at_a_false_epsilon_do_not_become_the_model(tmp_path, rule):
    alone = attacked(rule, tmp_path / "uncut", lie=LIE, most_share=1.0)["value"]
    cut = attacked(rule, tmp_path / "cut", lie=LIE)["value"]
    assert alone < 0.2, "whoever may weigh what it likes is the model"
    assert cut > 0.45


@given(
    values=some.lists(some.floats(1e-3, 1e9), min_size=1, max_size=30),
    share=some.one_of(some.none(), some.floats(0.01, 1.0)),
)
def test_nobody_counts_for_more_than_its_share_whatever_all_declare_and_only_who_is_above_it_is_cut(values, share):
    most, top = share_of(share, len(values)), ceiling(np.array(values), share)
    counted = np.minimum(values, top)
    assert counted.max() <= most * counted.sum() * (1 + 1e-9)
    if top < max(values) and most > 1 / len(values):  # as high as it may be, and no higher
        assert counted.max() >= most * counted.sum() * (1 - 1e-9)
    if len(values) <= 10 and share is None:
        assert top == np.inf


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": {"kind": "local", "epsilon": [1.0, 1.0, LIE]}, "aggregate": {"rule": "weighted"}},
        {
            "privacy": {"kind": "distributed", "epsilon": [8.0, 8.0, LIE], "clip": 0.5},
            "aggregate": {"rule": "weighted"},
        },
    ],
)
def test_a_deployment_cuts_shares_as_its_simulation_does(tmp_path, changes):
    values = {
        "data": {"clients": 3, "examples_per_client": 60},
        "train": {"rounds": 2},
        "run": {"workers": 1},
    } | changes
    values["aggregate"] = values["aggregate"] | {"most_share": 0.5}
    chosen = tacit.Experiment(**values)
    history = Federation(tmp_path, chosen).run()
    tacit.run(chosen, out=tmp_path / "simulated")
    assert same_model(tmp_path / "simulated", history.out)
    tacit.run(chosen.model_copy(update={"aggregate": uncut(chosen)}), out=tmp_path / "uncut")
    assert not same_model(tmp_path / "uncut", history.out)


def test_a_plan_says_for_how_much_one_client_may_count():
    many = {"data": {"clients": 40, "examples_per_client": 30}, "privacy": {"kind": "local", "epsilon": 9.0}}
    rows = plan.of_experiment(tacit.Experiment(**many))
    assert {row["most_share"] for row in rows} == {0.25}
    assert "counts for at most 25 % of what all declare" in str(plan.table(rows).caption)


def uncut(chosen):
    return chosen.aggregate.model_copy(update={"most_share": 1.0})


def test_a_client_that_declares_a_thousand_times_the_others_rows_counts_for_its_share_alone():
    sizes = [50] * 39 + [50_000]
    statistics = wiring_of(sizes).statistics(np.zeros(40))
    counts = [statistics.facts(size, 1.0)["examples"] for size in sizes]
    assert counts[:39] == sizes[:39]
    assert counts[39] / sum(counts) == pytest.approx(0.25, abs=0.01)


def wiring_of(sizes):
    chosen = tacit.Experiment()
    roster = Roster(tuple(f"site-{place}" for place in range(len(sizes))), tuple(sizes), (1.0,) * len(sizes), 1e-5)
    return Wiring(chosen, roster.population((1,)), torch.nn.Linear(1, 2))
