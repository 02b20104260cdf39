"""Sums under masks at sites: the bits of a simulation, three legs a round, and whoever drops out at which leg."""

import json
import re
import sqlite3
from collections import Counter

import pytest
import torch
from federation.flower.conftest import Federation, lost
from trained import changed, same_model, weights

import tacit
from tacit.deploy.operate.init import init
from tacit.deploy.operate.inspect import findings
from tacit.deploy.operate.processes import free_port
from tacit.engine.assemble import build
from tacit.errors import BadInput, TacitError
from tacit.privacy.accounting import price
from tacit.privacy.distributed.mechanism import SharedNoise
from tacit.types import Shared

BASE = {
    "name": "masked",
    "data": {"clients": 4, "examples_per_client": 40},
    "train": {"rounds": 3, "local_steps": 1},
    "privacy": {"kind": "distributed", "epsilon": 8.0, "delta": 1e-3, "fewest_reports": 3},
    "protect": {"kind": "masks"},
    "run": {"workers": 1},
}
RECORDS = {"privacy": {"unit": "record", "epsilon": (1.0, 2.0, 4.0, 9.0)}}
GROUPS = {
    "data": {"clients": 8},
    "privacy": {"groups": 2, "fewest_reports": 6, "epsilon": (1.0, 9.0) * 4},
    "train": {"rounds": 1},
}


SINGLE = re.compile(
    r"Against whoever takes the masks off a single report there is an epsilon per \w+ of at most ([\d.]+) "
)


@pytest.fixture
def federation(tmp_path):
    def make(**changes):
        values = {key: dict(value) if isinstance(value, dict) else value for key, value in BASE.items()}
        if changes.get("privacy", {}).get("unit") == "record":
            values["privacy"]["rate_cap"] = 3.0
        return Federation(tmp_path, changed(values, changes))

    return make


def charges(deployed):
    found = []
    for index in range(len(deployed.names)):
        with sqlite3.connect(deployed.site(index) / "ledger.db") as ledger:
            found.append([round for (round,) in ledger.execute("SELECT round FROM charges ORDER BY round")])
    return found


def log(deployed, index):
    return [json.loads(line) for line in (deployed.site(index) / "log.jsonl").read_text().splitlines()]


def kinds(line):
    return Counter((ask["kind"], ask.get("round")) for ask, _ in line.asked if ask.get("round") is not None)


@pytest.mark.parametrize("changes", [{}, RECORDS, GROUPS], ids=["clients", "records", "two groups"])
def test_sites_reach_the_model_of_a_simulation_whatever_is_summed(federation, tmp_path, changes):
    deployed = federation(**changes)
    history = deployed.run()
    tacit.run(deployed.experiment, out=tmp_path / "simulated")
    assert same_model(tmp_path / "simulated", history.out)
    assert all(record["opened"] == (2 if changes is GROUPS else 1) for record in history.rounds)
    assert all(found == list(range(len(history.rounds))) for found in charges(deployed))
    assert "masks" in history.sentence


@pytest.mark.parametrize("sign", [1, -1], ids=["highest", "lowest"])
@pytest.mark.parametrize("kind", ["masks", "none"])
def test_integers_whose_sum_is_at_the_edge_of_the_modulus_are_opened_as_they_are(
    federation, tmp_path, monkeypatch, sign, kind
):
    """Four reports of a quarter of 2^31 less one each, at sites and in a simulation in clear, where nothing wraps."""
    deployed = federation(train={"rounds": 1})
    largest = build(deployed.experiment).plan.grid.largest
    edge = (2**31 - 1) // 4
    monkeypatch.setattr(SharedNoise, "tail", edge - largest)

    def at_the_edge(self, state, stream, bounded):
        return state, Shared(torch.full((self.dimension,), sign * edge, dtype=torch.int64))

    monkeypatch.setattr(SharedNoise, "noise", at_the_edge)
    history = deployed.run()
    assert history.rounds[0]["opened"] == 1
    tacit.run(changed(BASE, {"train": {"rounds": 1}, "protect": {"kind": kind}}), out=tmp_path / "simulated")
    assert same_model(tmp_path / "simulated", history.out)


@pytest.mark.parametrize("changes", [{}, RECORDS], ids=["clients", "records"])
def test_what_a_site_signs_says_what_its_single_reports_come_to_as_the_servers_sentence_does(federation, changes):
    deployed = federation(**changes, train={"rounds": 2})
    sentence, texts = deployed.run().sentence, []
    for index in range(4):
        (promise,) = deployed.site(index).glob("runs/*/promise.txt")
        texts.append(promise.read_text())
    found = [SINGLE.findall(text) for text in (sentence, *texts)]
    assert all(len(one) == 1 for one in found)
    most, *own = [float(epsilon) for (epsilon,) in found]
    assert max(own) == most  # all rounds were run, so the number of the site with the most is that of everybody
    for index, number in enumerate(own):
        (agreement,) = deployed.site(index).glob("runs/*/agreement.json")
        event = price.from_text(json.loads(agreement.read_text())["terms"]["event"])
        assert number > price.epsilon(price.compose([(event, 2)]), delta=1e-3)  # of the sums
    assert all("one in each of the 2 rounds that were agreed" in text for text in texts)


def test_of_some_clients_a_round_those_are_asked_for_setups_that_were_not_in_the_round_before(federation, tmp_path):
    deployed = federation(data={"clients": 5}, train={"clients_per_round": 4})
    line = deployed.grid(see=lambda message: None)
    history = deployed.run(line)
    tacit.run(deployed.experiment, out=tmp_path / "simulated")
    assert same_model(tmp_path / "simulated", history.out)
    asked = kinds(line)
    assert asked["prepare", 0] == 4
    assert asked["prepare", 1] + asked["prepare", 2] <= 2
    assert all(asked[kind, round] == 4 for kind in ("train", "sign", "unmask") for round in range(3))


def test_a_round_has_three_legs_for_setups_ride_on_the_reports_before(federation):
    deployed = federation()
    line = deployed.grid(see=lambda message: None)
    deployed.run(line)
    asked = kinds(line)
    assert asked["prepare", 0] == 4
    assert ("prepare", 1) not in asked
    assert ("prepare", 2) not in asked
    assert all(asked[kind, round] == 4 for kind in ("train", "sign", "unmask") for round in range(3))


@pytest.mark.parametrize("kind", ["prepare", "train", "sign", "unmask"])
def test_a_site_that_is_lost_at_any_leg_is_in_the_next_round_again_and_the_sum_is_that_of_who_reported(
    federation, kind
):
    deployed = federation(train={"rounds": 2})
    history = deployed.run(deployed.grid(change=lost((1, 0), kinds=(kind,))), round_seconds=3)
    first, second = history.rounds
    assert first["opened"] == second["opened"] == 1
    assert ("client-0" in first["absent"]) == (kind in ("prepare", "train"))
    assert second["absent"] == {}
    # who was not told of the round has not paid for it; who reported has, whether its report came or not
    assert charges(deployed)[0] == ([1] if kind == "prepare" else [0, 1])
    assert charges(deployed)[1:] == [[0, 1]] * 3


def test_fewer_reports_than_the_noise_was_made_for_are_not_unmasked_and_the_run_goes_on(federation):
    deployed = federation(train={"rounds": 2})
    history = deployed.run(deployed.grid(change=lost((1, 0), (2, 0))), round_seconds=3)
    assert [record["opened"] for record in history.rounds] == [0, 1]
    assert "2 reports arrived and 3 are needed" in history.rounds[0]["refused"]["the sum of group all"]
    assert history.rounds[0]["update_norm"] == 0.0
    assert charges(deployed) == [[0, 1]] * 4


@pytest.mark.parametrize("kind", ["train", "sign", "unmask"])
def test_a_server_that_dies_at_any_leg_goes_on_with_the_same_list_to_the_same_bits(federation, tmp_path, kind):
    deployed = federation(train={"rounds": 2})
    seen = Counter()

    def dies(ask, node, reply):
        if (ask["kind"], ask.get("round")) == (kind, 1):
            seen["asked"] += 1
            if seen["asked"] == 2:
                raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        deployed.run(deployed.grid(change=dies))
    history = deployed.run(resume=True)
    tacit.run(deployed.experiment, out=tmp_path / "simulated")
    assert same_model(tmp_path / "simulated", history.out)
    assert charges(deployed) == [[0, 1]] * 4


def test_a_list_that_was_signed_is_the_one_that_is_opened_also_when_others_are_back(federation):
    """The first start heard three; the fourth's report is there when the server goes on, and stays out of the sum."""
    deployed = federation(train={"rounds": 1})

    def dies(ask, node, reply):
        if ask["kind"] == "train" and node == 4:
            return None
        if ask["kind"] == "unmask":
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        deployed.run(deployed.grid(change=dies), round_seconds=3)
    history = deployed.run(resume=True)
    (record,) = history.rounds
    assert set(record["absent"]) == {"client-3"}
    assert "not on the list" in record["absent"]["client-3"]
    assert (record["cohort"], record["answered"], record["opened"]) == (4, 3, 1)
    asked = json.loads((history.out / "status.json").read_text())["asked"]
    assert (asked["answered"], set(asked["silent"])) == (["client-0", "client-1", "client-2"], {"client-3"})
    signed = [any(line["kind"] == "sign" for line in log(deployed, index)) for index in range(4)]
    assert signed == [True, True, True, False]
    assert all("again" not in line["text"] for line in log(deployed, 3) if line["kind"] == "unmask")


def test_a_site_that_is_gone_after_it_signed_the_list_is_in_the_record_of_the_sum_that_it_is_in(federation):
    """The server dies beside it, and goes on with the other three."""
    deployed = federation(train={"rounds": 1})

    def dies(ask, node, reply):
        if ask["kind"] == "unmask":
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        deployed.run(deployed.grid(change=dies))
    history = deployed.run(deployed.grid(gone=(3,)), resume=True, join_seconds=3, round_seconds=3)
    (record,) = history.rounds
    assert (record["cohort"], record["answered"], record["opened"]) == (4, 4, 1)
    assert record["absent"] == {}
    assert charges(deployed) == [[0]] * 4


def test_a_site_that_restarts_between_any_two_legs_still_takes_the_next(federation, monkeypatch):
    """Every question goes to a new process's view of the folder."""
    from tacit.deploy.server import client

    deployed = federation(**RECORDS, train={"rounds": 2})
    line = deployed.grid(see=lambda message: client._site.cache_clear())
    history = deployed.run(line)
    assert [record["opened"] for record in history.rounds] == [1, 1]
    assert charges(deployed) == [[0, 1]] * 4


def test_a_site_whose_answer_was_lost_before_it_was_kept_pays_again_and_sends_one_report(federation, monkeypatch):
    from tacit.deploy.site import replies

    deployed, keep, died = federation(train={"rounds": 1}), replies.keep, []

    def dies(slot, question, answer):
        if slot.folder.parent.name == "runs" and not died:
            died.append(slot)
            raise KeyboardInterrupt  # between the draw and the disk
        return keep(slot, question, answer)

    monkeypatch.setattr(replies, "keep", dies)
    with pytest.raises(KeyboardInterrupt):
        deployed.run()
    history = deployed.run(resume=True)
    assert history.rounds[0]["opened"] == 1
    assert [record["opened"] for record in history.rounds] == [1]


def test_too_few_sites_that_are_ready_stop_the_run_before_anybody_pays(federation):
    deployed = federation(train={"rounds": 1})
    gone = deployed.grid(change=lost((1, 0), (2, 0), kinds=("prepare",)))
    with pytest.raises(TacitError, match="2 sites are ready for its sum"):
        deployed.run(gone, round_seconds=2)
    assert charges(deployed) == [[]] * 4
    assert deployed.run(resume=True).rounds[0]["opened"] == 1


def test_a_site_that_gives_false_shares_or_false_signatures_is_looked_past(federation):
    deployed = federation(train={"rounds": 1})

    def false(ask, node, reply):
        if node == 2 and ask["kind"] in ("sign", "unmask"):
            record = reply.content["tacit"]
            record["bytes"] = bytes(len(record["bytes"]))
        return reply

    clear = weights(tacit.run(deployed.experiment, out=deployed.folder / "simulated").out)
    history = deployed.run(deployed.grid(change=false))
    assert history.rounds[0]["opened"] == 1
    assert all((weights(history.out)[name] == value).all() for name, value in clear.items())
    assert "its signature is on another list" in history.rounds[0]["refused"]["the share of client-1"]


def test_a_new_federation_under_masks_has_keys_for_everybody_and_nothing_is_wrong(tmp_path):
    made = init(
        tmp_path / "made", sites="4", experiment=changed(BASE, {}), host="127.0.0.1", port=free_port(), trial=True
    )
    said = list(findings(made.folder))
    assert [finding.text for finding in said if finding.wrong] == []
    assert "Sums are unmasked by 3 of 4 sites together; each has its own signing key" in [one.text for one in said]
    assert {path.name for path in (made.server / "keys").iterdir()} == {f"client-{k}.member.json" for k in range(4)}
    own = [finding.text for finding in findings(made.site("client-1")) if "member" in finding.text]
    assert own == ["A signing key of its own, 4 members"]
    assert "3 of the 4 sites together" in (made.folder / "README.md").read_text()
    other = made.site("client-2") / "keys" / "client-1.member.json"
    other.write_bytes((made.server / "keys" / "client-3.member.json").read_bytes().replace(b"client-3", b"client-1"))
    assert any("client-2" in finding.text for finding in findings(made.folder) if finding.wrong)


def test_masks_by_which_two_sums_could_be_opened_are_refused_before_a_folder_is_made(tmp_path):
    few = changed(BASE, {"privacy": {"fewest_reports": 2}})
    with pytest.raises(BadInput, match=r"set privacy\.fewest_reports there, got 2"):
        init(tmp_path / "made", sites="4", experiment=few, host="127.0.0.1", port=free_port(), trial=True)
    assert not (tmp_path / "made").exists()
