"""Correlated noise fits: tree aggregation in one file, through the training, the prices and the ledgers that are there.

Source: Dwork, Naor, Pitassi, Rothblum 2010; Chan, Shi, Song 2011; as in DP-FTRL, Kairouz et al. 2021 (arXiv:2103.00039),
Appendix B. Each record is in one step, drawn uniformly. Node t of the tree is the sum of the last 2^(zeros at the end of t)
steps, with noise N(0, (zC)^2 I); a prefix sum is that of popcount(t) nodes; the step's release is the difference of two prefixes.
"""

import dataclasses
import math
from dataclasses import dataclass

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import DpEvent
from statistical import has_std
from torch import nn

import tacit
from tacit.engine.assemble import build
from tacit.engine.loop import loop
from tacit.engine.run_folder import open_folder
from tacit.engine.stacked import Stacked
from tacit.engine.trainers import OneByOne, task
from tacit.errors import BadInput
from tacit.privacy.accounting import events, price
from tacit.privacy.ledger import reader
from tacit.privacy.ledger.ledger import Ledger
from tacit.random import seeded
from tacit.training.sgd import dp_sgd, workspace
from tacit.types import Budget, Client, Private
from tacit.wire import pack, unpack

SIZE, CLIP, Z = 40, 1e-3, 1.5


@dataclass(frozen=True)
class TreeDpEvent(DpEvent):
    """One tree over `leaves` steps, each record in one of them: at most one node on each of log2(leaves) + 1 levels."""

    noise_multiplier: float
    leaves: int

    @property
    def whole(self) -> float:
        """The multiplier of the one Gaussian release that costs as much."""
        return self.noise_multiplier / math.sqrt(self.leaves.bit_length())


TREE = events.Kind(
    "tree-gaussian",
    (TreeDpEvent,),
    to_record=dataclasses.asdict,
    from_record=lambda record: TreeDpEvent(**record),
    gaussian=lambda event: (1.0, event.whole),
)


@dataclass(frozen=True)
class TreeGaussian:
    """`steps` steps under one tree. The state: the step, each record's turn, and the noise of the nodes that are still needed."""

    noise_multiplier: float
    clip: float
    steps: int

    @property
    def sampling_rate(self):
        return 1 / self.steps

    @property
    def noise_std(self):
        return self.noise_multiplier * self.clip

    @property
    def noise_growth(self):
        return self.steps.bit_count() ** 0.5

    def init(self):
        return {"step": torch.tensor(0)}

    def sample(self, state, stream, size):
        if "turns" not in state:  # independent of who else is there
            state = {**state, "turns": torch.from_numpy(np.floor(self.steps * stream.uniform(size)))}
        return state, np.flatnonzero(state["turns"].numpy() == int(state["step"]))

    def noise(self, state, stream, bounded):
        if bounded.sensitivity != self.clip:
            raise BadInput(f"This noise is made for sensitivity {self.clip}, got a vector of {bounded.sensitivity}.")
        t = int(state["step"]) + 1
        nodes = state.get("nodes", torch.zeros(0, bounded.vector.numel()))  # those of the prefix before, largest first
        kept = nodes[: t.bit_count() - 1]
        fresh = self.noise_std * stream.normal(bounded.vector.numel())
        noisy = bounded.vector + (fresh - nodes[len(kept) :].sum(0)).view_as(bounded.vector)
        std = self.noise_std * (1 + len(nodes) - len(kept)) ** 0.5
        return {**state, "step": torch.tensor(t), "nodes": torch.cat([kept, fresh[None]])}, Private(noisy, std)

    def event(self):
        return TreeDpEvent(self.noise_multiplier, self.steps)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """The tree's event is on the list in these tests and in no other."""
    monkeypatch.setattr(events, "_KINDS", dict(events._KINDS))
    events.register(TREE)


def client_of(features=64, scale=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, 10))
    work = workspace(model, clip=CLIP, physical_batch=256)
    x, y = scale * torch.randn(SIZE, features), torch.randint(10, (SIZE,))
    return work, work.theta.clone(), Client(0, "a", Budget(9.0, 1e-5), x, y)


@pytest.mark.parametrize("steps", [7, 8])
def test_dp_sgd_with_tree_noise_carries_the_noise_of_the_last_prefix(steps):
    work, theta, client = client_of(features=3000, scale=1e-6)  # the gradient is too small to see
    mechanism = TreeGaussian(Z, CLIP, steps)
    update = dp_sgd(work, theta, client, mechanism, learning_rate=0.5, stream=seeded(0)("a")).update
    std = 0.5 / (SIZE / steps) * Z * CLIP * math.sqrt(steps.bit_count())
    assert update.noise_std == pytest.approx(std)
    noise = update.vector[: 3000 * 10]
    assert has_std(noise, std)
    assert not has_std(noise, std * 2 / 3)
    assert not has_std(noise, std * 3 / 2)


def run_of(steps=5):
    parts = build(
        tacit.Experiment(
            data={"clients": 3, "examples_per_client": 60},
            train={"rounds": 2, "local_steps": steps},
            privacy={"kind": "local", "epsilon": 9.0, "clip": CLIP},
        )
    )
    tree = dataclasses.replace(parts.algorithm, mechanism=lambda client: TreeGaussian(Z, CLIP, steps))
    return dataclasses.replace(parts, algorithm=tree)


def replies(parts, trainer):
    question = pack(parts.algorithm.broadcast(parts.algorithm.init(parts.params), [parts.population[0]], round=0))
    return [unpack(raw) for raw, _ in trainer(question, 0, [2, 0, 1])]


def test_clients_that_are_stacked_send_the_tree_noise_that_single_ones_send():
    parts = run_of()
    work = workspace(parts.model, clip=CLIP, physical_batch=256)
    slow = OneByOne(task(parts.algorithm, work, parts.population, parts.derive))
    fast = Stacked(parts.algorithm, work, parts.population, parts.derive, chunk=8)
    for one, other in zip(replies(parts, slow), replies(parts, fast), strict=True):
        update = one.tensors["update"]
        assert torch.allclose(update, other.tensors["update"], atol=1e-3 * float(update.abs().max()))
        assert one.facts["noise_std"] == pytest.approx(other.facts["noise_std"])


def test_rounds_with_tree_noise_are_paid_from_a_ledger_that_reads_the_event_back(tmp_path):
    parts = run_of()
    folder = open_folder(tmp_path / "run", parts.experiment, resume=False, force=False)
    book = Ledger(tmp_path / "ledger.db", population="p", run="r", delta=1e-5, rounds=2)
    work = workspace(parts.model, clip=CLIP, physical_batch=256)
    trainer = OneByOne(task(parts.algorithm, work, parts.population, parts.derive))
    state, why = loop(parts, book, folder, trainer, lambda record: None)
    book.close()
    folder.close()
    assert why == "rounds"
    assert not torch.equal(state.params, parts.params)
    charges = reader.entries(tmp_path / "ledger.db")
    assert len(charges) == 6
    for charge in charges:
        assert price.compose([(price.from_text(charge["event"]), 1)]) == ((TreeDpEvent(Z, 5), 1),)
    spent = reader.spent(charges, delta=1e-5)
    assert spent["client-0", "record"] == price.epsilon(
        ((dp_accounting.GaussianDpEvent(Z / math.sqrt(3)), 2),), delta=1e-5
    )
    assert list(reader.faults(tmp_path / "ledger.db")) == []


def test_a_ledger_with_an_event_that_is_not_on_the_list_is_refused_in_one_sentence(tmp_path, monkeypatch):
    book = Ledger(tmp_path / "ledger.db", population="p", run="r", delta=1e-5)
    book.open_round(0, "1")
    one = Client(0, "a", Budget(9.0, 1e-5), torch.zeros(1), torch.zeros(1))
    assert book.admit([one], lambda _: TreeDpEvent(Z, 4)) == [one]
    text = next(book.entries())["event"]
    monkeypatch.delitem(events._KINDS, "tree-gaussian")
    price.from_text.cache_clear()
    with pytest.raises(BadInput, match="an event of kind 'tree-gaussian' that this version cannot price"):
        price.from_text(text)
    assert len(list(reader.faults(tmp_path / "ledger.db"))) == 1
