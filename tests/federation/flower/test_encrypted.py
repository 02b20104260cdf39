"""Encrypted sums at sites: the server adds what it cannot read, and one site opens each round."""

import json
import sqlite3

import pytest
from federation.flower.conftest import lost
from trained import same_model

import tacit
from tacit.deploy.server.messages import _content, new_nonce, read
from tacit.deploy.site.site import Site
from tacit.errors import TacitError
from tacit.types import Message
from tacit.wire import pack, unpack

ENCRYPTED = {
    "privacy": {"kind": "distributed", "epsilon": 8.0, "clip": 0.5, "bits": 12, "fewest_reports": 2},
    "protect": {"kind": "paillier", "key": {"bits": 2048}},
}


def openings(deployed):
    found = []
    for index in range(3):
        for path in deployed.site(index).glob("openings-*.db"):
            with sqlite3.connect(path) as book:
                found += [(round, deployed.names[index]) for (round,) in book.execute("SELECT round FROM openings")]
    return sorted(found)


@pytest.mark.parametrize("protect", [ENCRYPTED["protect"], {"kind": "none"}], ids=["encrypted", "in the clear"])
def test_integer_sums_at_sites_give_the_simulators_model_bit_for_bit(federation, tmp_path, protect):
    deployed = federation(privacy=ENCRYPTED["privacy"], protect=protect)
    tacit.run(deployed.experiment, out=tmp_path / "simulated")
    history = deployed.run()
    assert same_model(tmp_path / "simulated", history.out)
    assert [round for round, _ in openings(deployed)] == ([0, 1, 2] if "key" in protect else [])
    assert not list((deployed.folder / "server").rglob("*secret*"))
    assert not list((deployed.folder / "server").rglob("*signing*"))


def test_a_second_opening_is_refused_by_the_site_and_a_repeated_question_gets_the_same_bytes(federation):
    deployed = federation(**ENCRYPTED, train={"rounds": 1})
    deployed.run()
    (asked,) = (deployed.folder / "sites").rglob("opened-*/round-*.answer")
    opener = next(index for index in range(3) if deployed.site(index) in asked.parents)
    site = Site(deployed.site(opener))
    run = json.loads((deployed.folder / "out" / "run.json").read_text())["run"]
    ask = {"kind": "open", "run": run, "round": 0, "group": asked.parent.name.removeprefix("opened-")}
    with pytest.raises(TacitError, match="answered already: another answer to it would be a second release"):
        site.answer(ask, b"another sum")
    with pytest.raises(TacitError, match="1 rounds were agreed"):
        site.answer(ask | {"round": 1}, b"")
    asked.unlink()  # even where the kept answer is gone, the opener's own book refuses
    with pytest.raises(TacitError):
        site.answer(ask, b"another sum")
    assert len(openings(deployed)) == 1


def test_a_server_cannot_have_one_report_opened(federation):
    def alone(message):
        ask, body = read(message)
        if ask["kind"] == "open":
            tensors = unpack(body).tensors
            message.content = _content(ask, pack(Message("server", {min(tensors): tensors[min(tensors)]})), new_nonce())

    deployed = federation(**ENCRYPTED)
    with pytest.raises(TacitError, match=r"could not be opened by .*1 whole reports arrived and 2 are needed"):
        deployed.run(deployed.grid(see=alone))
    assert openings(deployed) == []


def test_a_run_whose_opening_was_lost_is_resumed_with_the_same_opening(federation, tmp_path):
    deployed = federation(**ENCRYPTED)
    with pytest.raises(TacitError, match=r"Round 1 could not be opened by .*did not answer in 0\.2 s.*--resume"):
        deployed.run(deployed.grid(change=lost(*((node, 0) for node in (1, 2, 3)), kinds=("open",))), round_seconds=0.2)
    assert len(openings(deployed)) == 1
    history = deployed.run(resume=True)
    tacit.run(deployed.experiment, out=tmp_path / "whole")
    assert same_model(tmp_path / "whole", history.out)
    assert len(openings(deployed)) == 3


def test_a_round_with_too_few_reports_is_not_opened_and_the_run_goes_on(federation):
    deployed = federation(**ENCRYPTED)
    line = deployed.grid(change=lost((2, 1), (3, 1)))
    history = deployed.run(line, round_seconds=0.4)
    assert [record["opened"] for record in history.rounds] == [1, 0, 1]
    assert [round for round, _ in openings(deployed)] == [0, 2]
