"""Noise that is drawn on a device: the known words of Philox, a normal law to its tails, a client's own whoever is beside it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from statistical import has_std

import tacit
from tacit.engine.assemble import assemble, build
from tacit.random import Stream, seeded
from tacit.training import fused
from tacit.training.fused import DeviceStream, add_normals_, keys_of, normals, philox

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ONES = 0xFFFFFFFF


def keys(count, seed=0):
    return keys_of([seeded(seed)(k) for k in range(count)], DEVICE)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # the vectors that its authors publish with Random123
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_words_are_those_of_philox(counter, key, words):
    found = philox([torch.tensor([word]) for word in counter], [torch.tensor([word]) for word in key])
    assert tuple(int(word) for word in found) == words


def test_the_noise_is_normal_with_the_stated_deviation_and_not_two_thirds_or_three_halves_of_it():
    rows = add_normals_(
        torch.zeros(3, 200_001, device=DEVICE), torch.tensor([0.5, 2.0, 7.0], device=DEVICE), keys(3), 4
    )
    for row, std in zip(rows.cpu(), (0.5, 2.0, 7.0), strict=True):
        assert has_std(row, std)
        assert not has_std(row, std * 2 / 3)
        assert not has_std(row, std * 3 / 2)
        assert stats.kstest(row.numpy() / std, "norm").pvalue > 1e-6


def test_its_tail_goes_as_far_out_as_the_cpus(monkeypatch):
    low = [torch.zeros(1, 1, dtype=torch.int64) for _ in range(4)]
    monkeypatch.setattr(fused, "philox", lambda *_: low)
    found = float(normals(torch.zeros(1, 4, dtype=torch.int64), 0, 1))
    assert found == pytest.approx(math.sqrt(2 * 85 * math.log(2)), rel=1e-5)
    assert found > 10.8


def test_a_clients_noise_does_not_depend_on_who_is_beside_it_or_on_how_much_is_drawn():
    zeros, ones, known = torch.zeros(4, 1001, device=DEVICE), torch.ones(4, device=DEVICE), keys(4)
    together = add_normals_(zeros.clone(), ones, known, 2)
    alone = add_normals_(zeros[:1].clone(), ones[:1], known[2:3], 2)
    assert torch.equal(alone[0], together[2])
    assert torch.equal(add_normals_(zeros[:, :333].clone(), ones, known, 2), together[:, :333])
    wide = torch.zeros(4, 1024, device=DEVICE)[:, :1001]
    assert torch.equal(add_normals_(wide, ones, known, 2), together)


def test_steps_clients_and_streams_share_no_noise():
    zeros, ones = torch.zeros(3, 20_000, device=DEVICE), torch.ones(3, device=DEVICE)
    drawn = [add_normals_(zeros.clone(), ones, keys(3, seed), step) for seed, step in ((0, 0), (0, 1), (1, 0))]
    rows = torch.cat(drawn).double().cpu().numpy()
    correlations = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlations).max() < 5 / math.sqrt(20_000)


@pytest.mark.parametrize("word", range(4))
def test_every_word_of_a_key_matters(word):
    one = keys(1)
    other = one.clone()
    other[0, word] ^= 1
    first, second = (
        add_normals_(torch.zeros(1, 1000, device=DEVICE), torch.ones(1, device=DEVICE), key, 0) for key in (one, other)
    )
    assert abs(float(torch.corrcoef(torch.cat([first, second]))[0, 1])) < 0.2


def test_the_fused_kernel_adds_what_its_slow_twin_draws():
    known, rows = keys(2), torch.zeros(2, 5_001, device=DEVICE)
    twin = normals(known.cpu(), 3, 5_001) * torch.tensor([[1.5], [0.1]])
    found = add_normals_(rows, torch.tensor([1.5, 0.1], device=DEVICE), known, 3)
    assert torch.allclose(found.cpu(), twin, atol=1e-5)


def test_a_stream_draws_where_the_tensor_is_and_never_the_same_twice():
    stream, tensor = DeviceStream(bytes(32)), torch.zeros(10, 300, device=DEVICE)
    first, second = stream.normal_like(tensor), stream.normal_like(tensor)
    assert first.shape == tensor.shape
    assert first.device == tensor.device
    assert has_std(first.flatten().cpu(), 1.0)
    assert abs(float((first * second).mean())) < 0.1


def test_on_the_cpu_a_stream_of_a_device_is_aes_as_any_other():
    tensor = torch.zeros(5)
    assert torch.equal(DeviceStream(bytes(32)).normal_like(tensor), Stream(bytes(32)).normal(5))


def streams_of(place):
    asked = tacit.Experiment(run={"device": "cuda"}, privacy={"kind": "local", "epsilon": 3.0})
    parts = build(tacit.Experiment(privacy={"kind": "local", "epsilon": 3.0}))
    releases = replace(parts, experiment=asked, nonce="a", place=place).releases
    return type(releases.streams()("question", 0, parts.population[0], "train")), type(
        releases.server("state")("noise")
    )


def test_only_a_seeded_simulation_draws_on_the_device_a_site_and_a_deployed_server_draw_from_aes():
    assert streams_of("simulation") == (DeviceStream, DeviceStream)
    assert streams_of("server") == (Stream, Stream)
    released = build(tacit.Experiment(run={"randomness": "os"}, privacy={"kind": "local", "epsilon": 3.0}))
    assert type(released.derive("question", 0, released.population[0], "train")) is Stream
    assert type(released.releases.server("state")("noise")) is Stream


def test_the_parts_of_a_site_are_no_simulation():
    whole = build(tacit.Experiment(privacy={"kind": "local", "epsilon": 3.0}))
    known = (whole.experiment, whole.dataset, whole.population)
    assert not whole.is_deployed
    assert assemble(*known, own=0).is_deployed
    assert assemble(*known, place="server").is_deployed
    assert type(assemble(*known, own=0).releases.server("state")("noise")) is Stream
