"""DP-SGD with noise drawn on the device: the path of a GPU, tried on the CPU, where the same code has a slower twin below."""

import dataclasses

import pytest
import torch
from statistical import has_std

import tacit
from tacit.engine import stacked
from tacit.engine.assemble import build
from tacit.engine.stacked import InStep, Stacked
from tacit.errors import BadInput
from tacit.random import Stream, keyed
from tacit.training.batches import Shifts
from tacit.training.clipping import workspace
from tacit.training.fused import DeviceStream
from tacit.wire import pack, unpack

CLIP = 0.7


@pytest.fixture
def there(monkeypatch):
    """Makes the CPU count as a device, and notes whether its path was taken."""
    taken = []
    real = InStep._there

    def noted(self, *arguments):
        taken.append(len(self.clients))
        return real(self, *arguments)

    monkeypatch.setattr(InStep, "_on_device", lambda self: all(isinstance(s, DeviceStream) for s in self.streams))
    monkeypatch.setattr(InStep, "_there", noted)
    return taken


def parts_of(*, noise=1.0, model="logr", **train):
    steps = {"rounds": 2, "local_steps": 3, "sampling_rate": 1.0, "learning_rate": 0.3, **train}
    privacy = {"kind": "local", "epsilon": float("inf"), "noise_multiplier": noise, "clip": CLIP}
    data = {"clients": 5, "examples_per_client": 40}
    return build(tacit.Experiment(data=data, model={"name": model}, train=steps, privacy=privacy))


def sent(parts, *, kind, cohort=(4, 0, 2)):
    streams = keyed(bytes(32), kind=kind)
    work = workspace(parts.model, clip=CLIP, physical_batch=256)

    def derive(question, round, client, purpose):
        return streams(question, round, client.id, purpose)

    trainer = Stacked(parts.algorithm, work, parts.population, derive, chunk=8)
    clients = [parts.population[index] for index in cohort]
    raw = pack(parts.algorithm.broadcast(parts.algorithm.init(parts.params), clients, round=0))
    return [(unpack(one), info) for one, info in trainer(raw, 0, list(cohort))]


@pytest.mark.parametrize(
    "train",
    [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"views": 2}, {"control": "scaffold"}],
)
def test_but_for_the_noise_clients_send_what_they_send_with_noise_of_their_own_streams(there, train, monkeypatch):
    own = torch.tensor([[1, 1], [0, 2]])  # the same views for all, since the two ways draw them in another order
    monkeypatch.setattr(Shifts, "offsets", lambda self, stream, batch: own.expand(batch, 2, 2))
    parts = parts_of(noise=1e-6, model="cnn" if "views" in train else "logr", **train)
    here = sent(parts, kind=Stream)
    assert not there
    for (a, a_info), (b, b_info) in zip(here, sent(parts, kind=DeviceStream), strict=True):
        assert a.facts == b.facts
        assert float((a.tensors["update"] - b.tensors["update"]).norm()) < 1e-3 * float(a.tensors["update"].norm())
        assert a_info == pytest.approx(b_info, rel=1e-3)
    assert there == [3]


def test_the_noise_has_the_deviation_that_is_stated_and_is_another_in_every_step_and_at_every_client(there):
    parts = parts_of(noise=2.0, model="mlp")
    quiet = dataclasses.replace(parts.population, x=torch.zeros_like(parts.population.x))
    found = sent(dataclasses.replace(parts, population=quiet), kind=DeviceStream)
    assert there == [3]
    rows = [message.tensors["update"][: 64 * 200] for message, _ in found]  # no input, no gradient there
    for row, (message, _) in zip(rows, found, strict=True):
        std = message.facts["noise_std"]
        assert has_std(row, std)
        assert not has_std(row, std * 2 / 3)
        assert not has_std(row, std * 3 / 2)
    assert abs(float(torch.corrcoef(torch.stack(rows))[0, 1])) < 0.05


def test_batches_are_a_poisson_sample_of_the_stated_rate(there, monkeypatch):
    sizes, real = [], stacked.filled

    def counted(drawn, *arguments, **more):
        sizes.extend(len(batch) for batches in drawn for batch in batches)
        return real(drawn, *arguments, **more)

    monkeypatch.setattr(stacked, "filled", counted)
    parts = parts_of(sampling_rate=0.25, local_steps=60)
    sent(parts, kind=DeviceStream)
    assert there == [3]
    expected, draws = parts.population[0].size * 0.25, torch.tensor(sizes, dtype=torch.float64)
    assert len(sizes) == 3 * 60
    assert abs(float(draws.mean()) - expected) < 5 * (expected * 0.75 / len(sizes)) ** 0.5
    assert 0.5 < float(draws.var()) / (expected * 0.75) < 1.7


def test_a_clip_that_the_noise_was_not_made_for_is_refused(there):
    parts = parts_of()
    other = dataclasses.replace(
        parts,
        algorithm=dataclasses.replace(
            parts.algorithm, mechanism=lambda c: dataclasses.replace(parts.algorithm.mechanism(c), clip=1.4)
        ),
    )
    with pytest.raises(BadInput, match=r"made for sensitivity 1\.4, got a vector of 0\.7"):
        sent(other, kind=DeviceStream)
    assert there
