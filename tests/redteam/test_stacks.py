"""Clients that train at once: what one of them holds moves no other, and a run's folder cannot be talked into a second release."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import tacit
from tacit import simulation
from tacit.engine.assemble import build
from tacit.engine.stacked import Stacked
from tacit.engine.trainers import OneByOne, task
from tacit.errors import BadInput, TacitError
from tacit.parts.losses import cross_entropy
from tacit.training.flat import flatten
from tacit.training.independence import Unsupported
from tacit.training.layers import Table
from tacit.training.sgd import clipped_sum_slow, workspace
from tacit.training.stacked import stack_of
from tacit.wire import pack, unpack

WORDS, TIME, CLIP = 10, 4, 1.0


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(WORDS, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.table(x).mean(1))


@pytest.mark.parametrize("outside", [WORDS, WORDS + 3, 3 * WORDS, -1, -WORDS - 1, 1 << 40])
@pytest.mark.parametrize("place", [(0, 0), (1, 2), (2, 2)])
def test_a_token_that_is_in_no_table_counts_as_nothing_and_touches_no_other_client_or_record(outside, place):
    torch.manual_seed(0)
    model = Reader()
    x, y = torch.randint(0, WORDS, (3, 3, TIME)), torch.randint(0, 3, (3, 3))
    stack = stack_of(model, x[0], y[0], cross_entropy)
    theta, mask = stack.rows(flatten(model), 3), torch.ones(3, 3)
    without = mask.clone()
    without[place] = 0
    expected = stack.clipped_sums(theta, x, y, without, clip=CLIP)[0]
    x[place][1] = outside
    assert torch.allclose(stack.clipped_sums(theta, x, y, mask, clip=CLIP)[0], expected, atol=1e-6)
    gradients, _ = stack.gradients(stack.cut(theta), x, y, mask)
    for client in {0, 1, 2} - {place[0]}:
        assert all(bool(block[client].isfinite().all()) for block in gradients)


def test_a_place_outside_a_table_is_added_to_no_other_examples_gradient():
    table = Table(torch.tensor([[WORDS], [0]]), torch.ones(2, 1, 3), rows=WORDS)
    assert table.squared_norms().tolist() == [3.0, 3.0]
    out = torch.zeros(WORDS, 3)
    table.add_weighted(torch.tensor([0.0, 1.0]), out)
    assert out[0].tolist() == [1.0, 1.0, 1.0]
    assert float(out.sum()) == 3.0


def test_tokens_are_stacked_as_a_graph_or_not_at_all():
    class Untraced(Reader):
        def forward(self, x):
            return super().forward(x) * len(set(range(2))) if x.shape[1] > 1 else x

    with pytest.raises(Unsupported):
        stack_of(Untraced(), torch.zeros(3, TIME, dtype=torch.long), torch.zeros(3, dtype=torch.long), cross_entropy)


class Fragile(nn.Module):
    """Raises at some rows, as code that checks its input does: in a frozen part, so that it is no business of a stacked layer."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(17, 4), nn.Linear(4, 10)
        self.table.requires_grad_(False)

    def forward(self, x):
        return self.last(self.table(x.flatten(1).round().long() + 8).mean(1))


def fragile(*, input_shape, classes):
    return Fragile()


@pytest.mark.parametrize("privacy", [{"kind": "local"}, {"kind": "local", "unit": "client"}, {"kind": "central"}])
def test_a_row_at_which_the_model_raises_is_answered_as_one_by_one(privacy):
    parts = build(
        tacit.Experiment(
            data={"clients": 4},
            model={"name": "redteam.test_stacks:fragile"},
            train={"rounds": 1, "local_steps": 2, "batch_size": 400},
            privacy=privacy | {"epsilon": 8.0},
        )
    )
    parts.population.x[0] = 40.0  # far outside the table
    work = workspace(parts.model, clip=parts.plan.training_clip, physical_batch=256)
    raw = pack(parts.algorithm.broadcast(parts.algorithm.init(parts.params), [parts.population[0]], round=0))
    known = (parts.algorithm, work, parts.population, parts.derive)
    single, stacked = OneByOne(task(*known)), Stacked(*known, chunk=4)
    for (a, _), (b, _) in zip(single(raw, 0, [0, 1, 2]), stacked(raw, 0, [0, 1, 2]), strict=True):
        first, second = unpack(a), unpack(b)
        assert first.sender == second.sender
        assert torch.allclose(first.tensors["update"], second.tensors["update"], atol=2e-5)


IN_PLACE = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(inplace=True), nn.Linear(16, 10)),
    "by itself": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), Overwrites(), nn.Linear(16, 10)),
    "conv without bias": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 10)
    ),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 10)
    ),
}


class Overwrites(nn.Module):
    """Overwrites in place without any module that says so."""

    def forward(self, x):
        return x.relu_()


def sums_as_alone(model, x, y, clip):
    stack = stack_of(model, x[0], y[0], cross_entropy)
    sums = stack.clipped_sums(stack.rows(flatten(model), 2), x, y, torch.ones(2, 4), clip=clip)[0]
    alone = torch.stack([clipped_sum_slow(model, x[k], y[k], clip=clip) for k in range(2)])
    return torch.allclose(sums.float(), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", IN_PLACE)
def test_layers_in_front_of_what_overwrites_in_place_train_as_they_do_alone(name):
    torch.manual_seed(0)
    assert sums_as_alone(IN_PLACE[name](), torch.randn(2, 4, 1, 8, 8), torch.randint(0, 10, (2, 4)), CLIP)


@pytest.mark.parametrize("padding", [None, 0])
def test_tokens_whose_vectors_are_overwritten_in_place_are_stacked(padding):
    class Overwritten(Reader):
        def forward(self, x):
            return self.last(self.table(x).relu_().mean(1))

    torch.manual_seed(0)
    model = Overwritten()
    model.table = nn.Embedding(WORDS, 8, padding_idx=padding)
    assert sums_as_alone(model, torch.randint(0, WORDS, (2, 4, TIME)), torch.randint(0, 3, (2, 4)), 0.1)


def begun(out, **privacy):
    """A run that was interrupted after its first round."""
    asked = tacit.Experiment(
        data={"clients": 12},
        train={"rounds": 4, "local_steps": 1, "batch_size": 10, "clients_per_round": 6},
        privacy={"kind": "central", "epsilon": 4.0, **privacy},
        run={"workers": 1},
    )

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacit.run(asked, out=out, observe=stop, page=False)
    return asked


@pytest.mark.parametrize("at_once", [1, 7, 12])
@pytest.mark.parametrize("kind", ["central", "local"])
def test_a_number_of_clients_at_once_that_was_written_into_a_folder_is_refused(tmp_path, kind, at_once):
    asked = begun(tmp_path / "run", kind=kind)
    file = tmp_path / "run" / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"clients_at_once": at_once}))
    before = (tmp_path / "run" / "ledger.db").read_bytes()
    with pytest.raises(BadInput, match="trains each client by itself"):
        tacit.run(asked, out=tmp_path / "run", resume=True, page=False)
    assert (tmp_path / "run" / "ledger.db").read_bytes() == before


def test_another_trainer_is_another_release_for_the_condition_that_a_cohort_is_drawn_once(tmp_path, monkeypatch):
    """Even if a stack were let in: the ledger knows under which digest this key has drawn its cohorts."""
    asked = begun(tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    monkeypatch.setattr(simulation, "with_trainer", lambda parts, folder: replace(parts, together=7))
    assert simulation.KEY in json.loads((tmp_path / "run" / "run.json").read_text())
    with pytest.raises(TacitError, match="cohort"):
        tacit.run(asked, out=tmp_path / "run", resume=True, page=False)
