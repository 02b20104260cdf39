"""What a checkpoint holds and which ones are taken."""

import contextlib
import sqlite3

import pytest
import torch
from safetensors.torch import load_file, save_file

import tacit
from tacit.engine.run_folder import CHECKPOINT, open_folder
from tacit.errors import BadInput
from tacit.types import State


def test_a_checkpoint_gives_back_the_memories_apart_and_the_round_whatever_their_names(small, tmp_path):
    folder = open_folder(tmp_path, small(), resume=False, force=False)
    memory = {name: torch.tensor(float(i)) for i, name in enumerate(("v", "optimizer.v", "params", "round"))}
    state = State(torch.ones(3), memory, {"v": torch.tensor(9.0), "memory.v": torch.tensor(8.0)}, torch.zeros(3))
    folder.checkpoint(state, round=7)
    found, round = folder.restore()
    assert (round, found.memory, found.optimizer) == (7, state.memory, state.optimizer)
    assert torch.equal(found.params, state.params)
    assert torch.equal(found.average, state.average)
    folder.close()


def test_a_checkpoint_of_an_earlier_version_is_refused_in_a_sentence(small, tmp_path):
    tacit.run(small(), out=tmp_path, page=False)
    tensors = load_file(tmp_path / CHECKPOINT)
    tensors["next_round"] = tensors.pop("round")
    save_file(tensors, tmp_path / CHECKPOINT)
    with pytest.raises(BadInput, match=r"is no checkpoint of this version of Tacit: start again with --force"):
        tacit.run(small(), out=tmp_path, resume=True)


def count(path):
    with contextlib.closing(sqlite3.connect(path / "ledger.db")) as db:
        return db.execute("SELECT COUNT(*) FROM charges").fetchone()


def test_a_checkpoint_that_lacks_what_rounds_go_on_from_is_refused_before_anybody_pays(small, tmp_path):
    def stop(record):
        if record["round"] == 1:
            raise KeyboardInterrupt

    experiment = small(aggregate={"rule": "random-effects"})
    with pytest.raises(KeyboardInterrupt):
        tacit.run(experiment, out=tmp_path, page=False, observe=stop)
    tensors = load_file(tmp_path / CHECKPOINT)
    del tensors["memory.horizon"]  # version 0.1 had none
    save_file(tensors, tmp_path / CHECKPOINT)
    charged = count(tmp_path)
    with pytest.raises(BadInput, match=r"another version of Tacit.*Nothing was charged"):
        tacit.run(experiment, out=tmp_path, page=False, resume=True)
    assert count(tmp_path) == charged
