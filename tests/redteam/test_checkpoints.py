"""A checkpoint that somebody wrote: it counts no round twice, and ends nothing but in a sentence before anybody pays."""

import contextlib
import math
import shutil
import sqlite3

import pytest
import torch
from redteam.careless_researcher import Killed, Researcher
from safetensors.torch import load_file, save_file

import tacit
from tacit.engine.run_folder import CHECKPOINT
from tacit.errors import BadInput, LedgerError
from tacit.privacy.ledger.ledger import Ledger

OWN = {
    "data": {"own_share": 0.2},
    "personal": {"kind": "mean-regularised", "when": "during", "strength": 0.1},
    "train": {"averaging": 0.5},
    "aggregate": {"rule": "random-effects"},
}


@pytest.fixture
def researcher(tmp_path, monkeypatch):
    return Researcher(tmp_path, monkeypatch)


def edit(folder, **tensors):
    known = load_file(folder / CHECKPOINT)
    edited = known | {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({name: tensor for name, tensor in edited.items() if tensor is not None}, folder / CHECKPOINT)
    return known


def charges(folder):
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as db:
        return db.execute("SELECT COUNT(*), MIN(round) FROM charges").fetchone()


@pytest.mark.parametrize(
    "round",
    [-2, -1, 2**62, 1.5, math.nan, math.inf, [1, 2], [], True],
    ids=lambda value: str(value),
)
def test_a_checkpoint_with_another_number_of_its_round_buys_no_release_beyond_the_seal(researcher, tmp_path, round):
    """Rounds below zero are where queries are charged: what was released there did not count against what was sealed."""
    folder, settings = tmp_path / "run", {"privacy": {"epsilon": 3.0, "noise_multiplier": None}}
    researcher.run(killed_after=0, **settings)
    before = charges(folder)
    edit(folder, round=torch.tensor(round))
    with pytest.raises((BadInput, LedgerError), match=r"checkpoint|knows no charge"):
        researcher.run(resume=True, **settings)
    assert charges(folder) == before


def test_a_ledger_opens_no_round_below_zero(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db", population="p", run="r")
    with pytest.raises(LedgerError, match="no round of the number -1"):
        ledger.open_round(-1, "attempt")
    ledger.close()


@pytest.mark.parametrize(
    "craft",
    [
        lambda known: {"control__own": known["control.own"][:1].clone()},
        lambda known: {"control__own": known["control.own"][:, :3].clone()},
        lambda known: {"control__own": known["control.own"].double()},
        lambda known: {"params": known["params"].double()},
        lambda known: {"average": known["params"][:-1].clone()},
        lambda known: {"memory__horizon": None},  # version 0.1 had none
        lambda known: {"round": None, "next_round": known["round"]},
    ],
    ids=["clients", "parameters", "double", "common", "average", "memory", "earlier"],
)
def test_a_checkpoint_of_other_shapes_or_types_is_refused_before_anybody_pays(researcher, tmp_path, craft):
    folder = tmp_path / "run"
    researcher.run(killed_after=0, **OWN)
    before = charges(folder)
    edit(folder, **craft(load_file(folder / CHECKPOINT)))
    with pytest.raises(
        BadInput, match=r"Nothing was charged|is no checkpoint of this version of Tacit: start again with"
    ):
        researcher.run(resume=True, **OWN)
    assert charges(folder) == before


def test_own_models_that_were_taken_out_of_a_finished_run_are_not_made_anew_of_raw_rows(researcher, tmp_path):
    """They would be told as made of what clients released, with the run's epsilon."""
    researcher.run(**OWN)
    edit(tmp_path / "run", control__own=None)
    with pytest.raises(BadInput, match="Nothing was charged"):
        researcher.run(resume=True, **OWN)


def test_a_checkpoint_as_it_was_written_goes_on(researcher, tmp_path):
    researcher.run(killed_after=0, **OWN)
    assert isinstance(researcher.run(resume=True, **OWN), tacit.History)


TURNS = {
    "data": {"clients": 10, "examples_per_client": 30},
    "train": {"rounds": 6, "clients_per_round": 3, "local_steps": 1, "batch_size": 10},
    "privacy": {"kind": "central", "epsilon": 6.0, "clip": 0.5, "sampler": "cyclic"},
    "run": {"workers": 1, "randomness": "os"},
}


def in_turns(folder, *, resume=False, until=None):
    """A run by noise that goes on over rounds, on a ledger beside its folder; stopped after the round `until`."""

    def observe(record):
        if record["round"] == until:
            raise Killed

    privacy = TURNS["privacy"] | {"ledger": str(folder.parent / "shared.db"), "delta_share": 0.5}
    with contextlib.suppress(Killed):
        experiment = tacit.Experiment(**TURNS | {"privacy": privacy})
        return tacit.run(experiment, out=folder, resume=resume, observe=observe, page=False)


@pytest.mark.parametrize("what", ["memory.past", "params"])
def test_noise_that_goes_on_over_rounds_and_was_edited_in_the_checkpoint_is_refused(tmp_path, what):
    """What a round has to take back of earlier noise would be whatever somebody wrote there, at the price of the true one."""
    in_turns(tmp_path / "run", until=2)
    edit(
        tmp_path / "run", **{what.replace(".", "__"): torch.zeros_like(load_file(tmp_path / "run" / CHECKPOINT)[what])}
    )
    with pytest.raises(LedgerError, match="as something else"):
        in_turns(tmp_path / "run", resume=True)


def test_a_kill_between_checkpoint_and_ledger_lets_no_two_copies_release_a_round_of_noise_that_goes_on(
    tmp_path, monkeypatch
):
    run, copy = tmp_path / "run", tmp_path / "copy"
    in_turns(run, until=1)
    shutil.copytree(run, copy)
    real = Ledger.release

    def killed(self, what, digest):
        if what == "round 2":
            raise Killed
        real(self, what, digest)

    monkeypatch.setattr(Ledger, "release", killed)
    in_turns(run, resume=True)  # its third round is in the checkpoint, and not in the ledger
    monkeypatch.undo()
    in_turns(copy, resume=True, until=2)  # a third round of its own
    with pytest.raises(LedgerError, match="as something else"):
        in_turns(run, resume=True)


def test_a_finished_run_of_noise_that_goes_on_is_finished_again_as_it_was(tmp_path):
    first = in_turns(tmp_path / "run")
    again = in_turns(tmp_path / "run", resume=True)
    assert first.summary["test_accuracy"] == again.summary["test_accuracy"]
    assert first.guarantee.epsilon_max == again.guarantee.epsilon_max


CLIPPED = {
    "data": {"clients": 6, "examples_per_client": 30},
    "train": {"rounds": 3, "local_steps": 1, "batch_size": 10},
    "privacy": {"kind": "central", "epsilon": 60.0, "clip": 0.5, "noise_multiplier": 0.9},
    "run": {"workers": 1},
}


@pytest.mark.parametrize("clip", [7.2e-46, 1e-30, 0.25, 1e12, math.inf, math.nan, -0.5, [0.5, 0.5]])
@pytest.mark.parametrize("quantile", [None, 0.5])
def test_a_clip_that_was_edited_in_the_checkpoint_is_refused_before_anybody_pays(tmp_path, quantile, clip):
    """Among float32's smallest numbers updates are rounded up and noise is rounded to nothing, at the price of noise."""
    if quantile and clip == 0.25:
        pytest.skip("a clip that adapts may be there")
    adapts = {"adaptive_clip": {"quantile": quantile, "count_noise": 5.0}} if quantile else {}
    experiment = tacit.Experiment(**CLIPPED | {"privacy": CLIPPED["privacy"] | adapts})

    def killed(record):
        raise Killed

    with contextlib.suppress(Killed):
        tacit.run(experiment, out=tmp_path / "run", observe=killed, page=False)
    edited = torch.tensor(clip) if isinstance(clip, list) else torch.tensor(clip, dtype=torch.float64)
    edit(tmp_path / "run", memory__clip=edited)
    with pytest.raises(BadInput, match="clip"):
        tacit.run(experiment, out=tmp_path / "run", resume=True, page=False)
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / "ledger.db")) as db:
        assert db.execute("SELECT COUNT(*) FROM everybody").fetchone() == (1,)
