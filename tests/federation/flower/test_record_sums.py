"""Sums of records at sites: every site draws at the rate of its own budget and pays for that, whoever adds the noise."""

import json
import sqlite3

import pytest
from federation.flower.conftest import Federation, lost
from trained import changed, same_model

import tacit
from tacit.deploy.operate.init import init
from tacit.deploy.operate.inspect import findings
from tacit.deploy.operate.processes import free_port
from tacit.deploy.server import client
from tacit.deploy.site.limits import read_limits
from tacit.deploy.site.replies import Paid
from tacit.errors import BadInput, TacitError
from tacit.privacy.accounting import price
from tacit.privacy.distributed.records import RecordShare
from tacit.privacy.guarantee import shown

EPSILONS = (1.0, 2.0, 4.0, 9.0)
BASE = {
    "name": "records",
    "data": {"clients": 4, "examples_per_client": 60},
    "train": {"rounds": 2, "local_steps": 1, "learning_rate": 1.0},
    "privacy": {"kind": "central", "unit": "record", "epsilon": EPSILONS, "delta": 1e-3, "rate_cap": 3.0},
    "run": {"workers": 1},
}
PAILLIER = {"privacy": {"kind": "distributed"}, "protect": {"kind": "paillier", "key": {"bits": 2048}}}


@pytest.fixture
def federation(tmp_path):
    def make(**changes):
        return Federation(tmp_path, changed(BASE, changes))

    return make


def charged(deployed, index):
    with sqlite3.connect(deployed.site(index) / "ledger.db") as ledger:
        rows = ledger.execute("SELECT round, text FROM charges JOIN events ON events.id = charges.event ORDER BY round")
        return rows.fetchall()


@pytest.mark.parametrize("changes", [{}, PAILLIER], ids=["central", "paillier"])
def test_a_new_federation_for_it_has_budgets_per_record_and_nothing_is_wrong(tmp_path, changes):
    made = init(
        tmp_path / "made", sites="4", experiment=changed(BASE, changes), host="127.0.0.1", port=free_port(), trial=True
    )
    assert read_limits(made.site("client-0")).unit == "record"
    assert [finding.text for finding in findings(made.folder) if finding.wrong] == []


@pytest.mark.parametrize("changes", [{}, PAILLIER], ids=["central", "paillier"])
def test_sites_reach_the_model_of_a_simulation_and_each_pays_for_its_own_rate(federation, tmp_path, changes):
    deployed = federation(**changes)
    history = deployed.run()
    tacit.run(deployed.experiment, out=tmp_path / "simulated")
    assert same_model(tmp_path / "simulated", history.out)
    rates = set()
    for index, epsilon in enumerate(EPSILONS):
        paid = charged(deployed, index)
        assert [round for round, _ in paid] == [0, 1]
        rates.add(json.dumps(json.loads(paid[0][1]), sort_keys=True))
        assert price.epsilon(price.compose([(price.from_text(text), 1) for _, text in paid]), delta=1e-3) <= epsilon
    assert len(rates) > 1  # budgets differ, and so do rates


def test_a_site_is_told_what_its_rounds_come_to_where_the_cap_on_rates_leaves_part_of_its_budget(federation):
    deployed = federation(privacy={"rate_cap": 1.0})
    deployed.run()
    for index, epsilon in enumerate(EPSILONS):
        rounds = price.compose([(price.from_text(text), 1) for _, text in charged(deployed, index)])
        comes = price.epsilon(rounds, delta=1e-3)
        log = [json.loads(line) for line in (deployed.site(index) / "log.jsonl").read_text().splitlines()]
        (agreed,) = {line["text"] for line in log if line.get("kind") == "agree" and line["verdict"] == "answered"}
        assert (f"Its 2 rounds as planned come to epsilon {shown(comes)} of that." in agreed) == (epsilon > 1.0)


def test_who_does_not_answer_is_in_neither_sum_nor_divisor_and_its_charge_stands(federation):
    deployed = federation()
    history = deployed.run(deployed.grid(change=lost((1, 0)), gone=()), round_seconds=3)
    first, second = history.rounds
    assert list(first["absent"]) == ["client-0"]
    assert first["batch"] < second["batch"]
    assert [len(charged(deployed, index)) for index in range(4)] == [2, 2, 2, 2]


def test_a_site_whose_people_lower_its_budget_draws_no_further_batch(federation):
    deployed = federation()

    def observe(record):
        deployed.edit(0, "epsilon = 1.0", "epsilon = 0.5")

    history = deployed.run(observe=observe)
    assert "asks for epsilon 1; the site allows 0.5" in history.rounds[1]["absent"]["client-0"]
    assert [round for round, _ in charged(deployed, 0)] == [0]


def test_a_site_whose_people_raise_its_budget_goes_on_at_the_rate_that_was_agreed(federation, monkeypatch):
    """Its own file says more than everybody reckoned with: neither its batches nor its price follow it within the run."""
    masks = {"privacy": {"kind": "distributed", "fewest_reports": 3}, "protect": {"kind": "masks"}}
    deployed, drawn, sample = federation(**masks), {}, RecordShare.sample

    def watched(self, state, stream, size):
        drawn.setdefault(self.sampling_rate, []).append(size)
        return sample(self, state, stream, size)

    def observe(record):
        if record["round"] == 0:
            deployed.edit(0, "epsilon = 1.0", "epsilon = 100.0")
            client._site.cache_clear()

    monkeypatch.setattr(RecordShare, "sample", watched)
    deployed.run(observe=observe)
    rates = sorted(drawn)
    assert len(rates) > 1
    assert all(len(sizes) % 2 == 0 for sizes in drawn.values())  # as many clients at each rate in either round
    (_, first), (_, second) = charged(deployed, 0)
    assert first == second
    assert json.loads(second)["sampling_rate"] == rates[0]


def test_a_server_that_asks_for_another_rate_or_less_noise_than_the_site_computes_gets_no_batch(federation):
    deployed = federation()

    def cheaper(message):
        head = json.loads(message.content["tacit"]["json"])
        if head["kind"] == "agree" and message.metadata.dst_node_id == 1:
            event = head["terms"]["event"]
            head["terms"]["event"] = event.replace('"noise_multiplier": ', '"noise_multiplier": 0.00')
            assert head["terms"]["event"] != event
            message.content["tacit"]["json"] = json.dumps(head)

    with pytest.raises(TacitError, match="client-0 does not agree"):
        deployed.run(deployed.grid(see=cheaper))
    assert charged(deployed, 0) == []


def test_the_charge_is_on_the_sites_disk_before_its_batch_is_drawn(federation, monkeypatch):
    deployed, seen, train = federation(train={"rounds": 1}), [], Paid.train

    def watched(self):
        seen.append(len(charged(deployed, self.bound.accepted.client.index)))
        return train(self)

    monkeypatch.setattr(Paid, "train", watched)
    deployed.run()
    assert seen == [1, 1, 1, 1]


def test_a_split_key_by_which_two_sums_of_a_round_could_be_opened_is_refused(tmp_path):
    """Every client knows its own share of the noise, so one counts as colluding although nobody said so."""
    split = changed(BASE, PAILLIER | {"protect": PAILLIER["protect"] | {"threshold": 2}})
    with pytest.raises(BadInput, match=r"Expected protect\.threshold of 3 to 4"):
        tacit.run(split, out=tmp_path / "run")
