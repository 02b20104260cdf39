"""A cheating site under masks that would hold the run up: with shares that nobody can read, or by what it does not sign."""

import pytest
from federation.flower.conftest import Federation, lost
from federation.flower.test_masked import BASE, charges
from trained import changed

from tacit.crypto.masks import setup_bytes
from tacit.errors import TacitError


def garbled(ask, node, reply):
    """The second site gives a setup whose key and commitments are signed, and whose envelopes nobody can open; silent after."""
    if node == 2 and ask["kind"] == "prepare":
        record = reply.content["tacit"]
        record["bytes"] = record["bytes"][: setup_bytes(0)] + bytes(len(record["bytes"]) - setup_bytes(0))
    return None if node == 2 and ask["kind"] == "train" else reply


def silent(ask, node, reply):
    return None if node == 2 and ask["kind"] in ("prepare", "train") else reply


def test_a_site_whose_shares_nobody_can_read_does_not_hold_the_run_up_once_it_is_gone(tmp_path):
    deployed = Federation(tmp_path, changed(BASE, {"train": {"rounds": 1}}))
    with pytest.raises(TacitError, match="'client-1' sent cannot be read"):
        deployed.run(deployed.grid(change=garbled), round_seconds=2)
    assert [charges(deployed)[k] for k in (0, 2, 3)] == [[], [], []]
    assert deployed.run(deployed.grid(change=silent), round_seconds=2, resume=True).rounds[0]["opened"] == 1


def test_a_question_whose_answers_were_lost_is_asked_again_as_it_was(tmp_path):
    deployed = Federation(tmp_path, changed(BASE, {"train": {"rounds": 1}}))
    with pytest.raises(TacitError, match="got 0 answers"):
        deployed.run(deployed.grid(change=lost(*((node, 0) for node in range(1, 5)))), round_seconds=2)
    gone = deployed.grid(change=lost((4, 0), kinds=("prepare", "train", "sign", "unmask")))
    assert deployed.run(gone, round_seconds=2, resume=True).rounds[0]["opened"] == 1
    assert charges(deployed) == [[0]] * 4


def test_a_site_that_reports_and_then_never_signs_costs_one_sum_and_not_the_run(tmp_path):
    deployed, away = Federation(tmp_path, changed(BASE, {"train": {"rounds": 2}})), lost((4, 0))

    def reports_only(ask, node, reply):
        return None if node == 2 and ask["kind"] == "sign" else away(ask, node, reply)

    with pytest.raises(TacitError, match="if they stay away, the run then leaves this sum out"):
        deployed.run(deployed.grid(change=reports_only), round_seconds=2)
    gone = deployed.grid(change=lambda ask, node, reply: None if node == 2 else reply)
    history = deployed.run(gone, round_seconds=2, resume=True)
    assert [record["opened"] for record in history.rounds] == [0, 1]
    assert "its sum stays closed" in history.rounds[0]["refused"]["the sum of group all"]
    assert charges(deployed)[0] == [0, 1]
