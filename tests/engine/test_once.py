"""Messages are gone over once: the loop takes each from the trainer, the wire reads it, and the server's part adds it."""

import sqlite3
import weakref
from pathlib import Path

import foreign_rules
import pytest
import torch
from trained import weights

import tacit
from tacit.engine import evaluate, trainers
from tacit.engine.run_folder import CHECKPOINT
from tacit.errors import BadInput, PartFailed


def by(name):
    return {"aggregate": {"rule": f"foreign_rules:{name}"}, "run": {"workers": 1}}


def test_a_rule_of_sums_that_goes_over_the_messages_again_is_refused_by_name_and_no_further_round_is_charged(
    small, tmp_path
):
    with pytest.raises(BadInput, match=r"The rule twice went over the messages twice: .* sees = \"rows\""):
        tacit.run(small(**by("twice")), out=tmp_path)
    with sqlite3.connect(tmp_path / "ledger.db") as book:
        charged = book.execute("SELECT round, client FROM charges").fetchall()
    assert sorted(charged) == [(0, f"client-{i}") for i in range(6)]
    assert not (tmp_path / CHECKPOINT).exists()


def test_a_rule_of_rows_may_go_over_them_as_often_as_it_likes(small, tmp_path):
    whole = {"privacy": {"kind": "none", "epsilon": None}, "train": {"sampling_rate": 1.0}}  # whole batches
    histories = [
        tacit.run(small(**by(name), **whole), out=tmp_path / name, page=False) for name in ("rows_once", "rows_twice")
    ]
    once, twice = (weights(tmp_path / name) for name in ("rows_once", "rows_twice"))
    assert all(torch.allclose(once[name], twice[name], atol=1e-5) for name in once)
    assert all(record["update_norm"] > 0 for history in histories for record in history.rounds)


def test_a_rule_that_does_not_say_how_it_combines_is_refused_before_anything_is_charged(small, tmp_path):
    with pytest.raises(BadInput, match=r"speechless, which \[aggregate\] names, cannot be made .*apply"):
        tacit.run(small(**by("speechless")), out=tmp_path)
    assert not (tmp_path / "ledger.db").exists()


def test_a_rule_of_sums_that_gives_no_weight_is_refused_by_name(small, tmp_path):
    with pytest.raises(BadInput, match=r"The rule weightless sees sums but does not say of what"):
        tacit.run(small(**by("weightless")), out=tmp_path)


def test_a_mistake_in_somebodys_rule_is_one_sentence_with_its_round_and_line_and_the_checkpoint_is_kept(
    small, tmp_path
):
    with pytest.raises(PartFailed) as caught:
        tacit.run(small(**by("mistaken")), out=tmp_path)
    said = str(caught.value)
    assert said.startswith("The rule foreign_rules:mistaken failed in round 2 (KeyError: 'weigths', ")
    line = 1 + Path(foreign_rules.__file__).read_text("utf-8").split("\n").index(
        '            raise KeyError("weigths")'
    )
    assert f"foreign_rules.py, line {line}). What the round cost stays charged, and the last checkpoint is kept" in said
    assert "`tacit --debug`" in said
    assert "\n" not in said
    assert isinstance(caught.value.__cause__, KeyError)
    assert (tmp_path / CHECKPOINT).exists()


def test_a_mistake_that_shows_in_a_library_names_the_line_of_the_rule(small, tmp_path):
    with pytest.raises(PartFailed, match=r"failed in round 1 \(ValueError: .*foreign_rules\.py, line \d+\)"):
        tacit.run(small(**by("given_to_another")), out=tmp_path)


def test_the_loop_trains_one_client_adds_its_message_and_applies_the_rule_after_the_last(small, tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_rules, "NOTES", notes := [])
    real = trainers.OneByOne

    def noted(train):
        def task(received, question, round, index):
            notes.append(f"trained client-{index}")
            return train(received, question, round, index)

        return real(task)

    monkeypatch.setattr(trainers, "OneByOne", noted)
    tacit.run(small(**by("noting"), train={"rounds": 1}), out=tmp_path, page=False)
    pairs = [(f"trained client-{i}", f"added client-{i}") for i in range(6)]
    assert notes == [note for pair in pairs for note in pair] + ["applied"]


@pytest.mark.parametrize(
    "privacy",
    [{"kind": "local"}, {"kind": "none", "epsilon": None}, {"kind": "central", "epsilon": 8.0}],
    ids=lambda privacy: privacy["kind"],
)
def test_a_round_of_many_clients_holds_a_few_updates_at_a_time(small, tmp_path, monkeypatch, privacy):
    privacy = {"epsilon": 3.0} | privacy
    alive, most = set(), []

    def counted(real):
        def receive(*raw, **place):
            message = real(*raw, **place)
            key = len(most)
            alive.add(key)
            weakref.finalize(message.tensors["update"], alive.discard, key)
            most.append(len(alive))
            return message

        return receive

    for name in ("receive", "receive_any"):
        monkeypatch.setattr(evaluate, name, counted(getattr(evaluate, name)))
    many = {"data": {"clients": 40, "examples_per_client": 5}, "train": {"rounds": 1, "clients_per_round": 40}}
    tacit.run(small(**many, privacy=privacy, run={"workers": 1}), out=tmp_path, page=False)
    assert len(most) > 10
    assert max(most) <= 2
