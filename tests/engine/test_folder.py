"""What a checkpoint holds and which ones are taken."""

import torch

from tacit.engine.run_folder import open_folder
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
