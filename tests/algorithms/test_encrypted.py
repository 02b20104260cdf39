"""Encrypted sums, without a simulator around them: noise on the sum, refusals by name, sums that are not opened."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from redteam.cheating_site import CheatingSite, message
from statistical import has_std

from tacit.algorithms import PopulationStatistics, Server, finished
from tacit.algorithms.encrypted import Encrypted, Group
from tacit.algorithms.rules import load
from tacit.crypto.grid import Grid, Lanes
from tacit.crypto.keys import generate, new_signer
from tacit.crypto.paillier import Randomisers
from tacit.crypto.reports import Alone, Opener
from tacit.crypto.seal import Plain, Sealed
from tacit.privacy.distributed.mechanism import even
from tacit.random import seeded
from tacit.training.sgd import Trained
from tacit.types import Budget, Client, Message, Raw

SIZE, COUNT, FEWEST, CLIP = 300, 8, 6, 0.5
NAMES = [f"c{i}" for i in range(COUNT)]
KEY = generate(bits=512, least_bits=512)


def algorithm(*, seal="plain", z=1.0, rotation="none", weights=None, update=None, fewest=FEWEST, run="run"):
    grid = Grid(SIZE, CLIP, 16, rotation)
    noise = even(
        multiplier=z, law="skellam", l2_squared=grid.l2_squared, dimension=grid.dimension, fewest=fewest, colluding=0, most=COUNT
    )  # fmt: skip
    room = 62 if seal == "plain" else KEY.public.plaintext_bits
    lanes = Lanes(grid.dimension, grid.largest + noise.tail, COUNT, room)
    if seal == "plain":
        made = Plain(lanes, fewest)
    else:
        signers = {name: new_signer(name) for name in NAMES}
        members = {name: signer.public for name, signer in signers.items()}
        opener = Alone(Opener(":memory:", partial(KEY.open, workers=1), at_least=fewest))
        made = Sealed(
            lanes, KEY.public, run, "told", members, signers, Randomisers(KEY.public, workers=1), opener=opener
        )
    facts = {name: {"examples": 10, "epsilon": 8.0, "noise_std": 1.0} for name in NAMES}
    group = Group("public", noise, made, facts, weights or dict.fromkeys(NAMES, 1.0))
    local = (lambda work, theta, client, stream: Trained(Raw(update(client)))) if update else None
    statistics = PopulationStatistics(np.full(COUNT, 8.0), np.full(COUNT, 1.0))
    return Encrypted(dict.fromkeys(NAMES, group), grid, Server(load("mean"), ((0, SIZE),), statistics), local)


def client(name):
    return Client(0, name, Budget(8.0, 1e-5, "client"), torch.zeros(3, 1), torch.zeros(3))


def reports(made, *, names=NAMES, state=None, seed=0, round=0):
    """What the clients send in one round."""
    state = state or made.init(torch.zeros(SIZE))
    sent = []
    for name in names:
        received = made.broadcast(state, [client(name)], round=round)
        derive = partial(seeded(seed), round, name)
        sent.append(made.release(made.train(None, received, client(name), derive), client(name), received))
    return sent


def served(made, messages, state=None, round=0):
    return finished(made.collect(state or made.init(torch.zeros(SIZE)), round=round), messages, seeded(0))


def of_norm(norm, at=0):
    vector = torch.zeros(SIZE)
    vector[at] = norm
    return vector


@pytest.mark.parametrize("seal", ["plain", "paillier"])
@pytest.mark.parametrize("rotation", ["none", "hadamard"])
def test_the_opened_sum_is_the_clipped_mean_with_the_noise_of_all_shares(seal, rotation):
    made = algorithm(seal=seal, rotation=rotation, update=lambda c: of_norm(100.0))
    rounds = 12 if seal == "plain" else 4
    noise, state, sent = [], made.init(torch.zeros(SIZE)), reports(made)
    for r in range(rounds):
        start = state.params
        state, info = served(made, reports(made, state=state, seed=r, round=r), state, round=r)
        assert (info["opened"], info["refused"]) == (1, {})
        noise.append((state.params - start)[1:])
        assert abs(float((state.params - start)[0]) - CLIP) < 1.0  # clipped from 100, on every client
    std = (
        made.grid.sensitivity * math.sqrt(COUNT / FEWEST) / COUNT
    )  # z D2 for the fewest; two more shares are in the sum
    assert has_std(torch.cat(noise), std)
    assert not has_std(torch.cat(noise), std * 2 / 3)
    assert not has_std(torch.cat(noise), std * 3 / 2)
    assert len(sent) == COUNT


def test_sealed_and_plain_sums_are_the_same_integers():
    update = torch.randn(SIZE, generator=torch.Generator().manual_seed(0)) / 40
    models = [
        served(made := algorithm(seal=seal, update=lambda c: update), reports(made))[0].params
        for seal in ("plain", "paillier")
    ]
    assert torch.equal(*models)


def test_with_hardly_any_noise_it_is_the_weighted_mean():
    weights = {name: (i + 1) / COUNT for i, name in enumerate(NAMES)}
    made = algorithm(z=1e-9, weights=weights, update=lambda c: of_norm(0.1, at=int(c.id[1:])))
    state, _ = served(made, reports(made))
    expected = torch.tensor([0.1 * weights[name] for name in NAMES]) / sum(weights.values())
    assert torch.allclose(state.params[:COUNT], expected, atol=made.grid.step)


@pytest.mark.parametrize("seal", ["plain", "paillier"])
def test_a_sum_of_too_few_reports_is_not_opened_and_the_model_stays(seal):
    made = algorithm(seal=seal, update=lambda c: of_norm(0.1))
    state, info = served(made, reports(made, names=NAMES[: FEWEST - 1]))
    assert torch.equal(state.params, torch.zeros(SIZE))
    assert info["opened"] == 0
    assert f"{FEWEST} are needed" in info["refused"]["the sum of group public"]
    after, info = served(made, reports(made, state=state, names=NAMES[:FEWEST], round=1), state, round=1)
    assert info["opened"] == 1
    assert not torch.equal(after.params, state.params)


@pytest.mark.parametrize("seal", ["plain", "paillier"])
def test_a_report_that_comes_twice_counts_once_and_is_named(seal):
    models = []
    for again in (False, True):
        made = algorithm(seal=seal, update=lambda c: of_norm(0.1))
        sent = reports(made)
        state, info = served(made, [*sent, sent[3]] if again else sent)
        assert list(info["refused"]) == (["c3"] if again else [])
        models.append(state.params)
    assert torch.equal(*models)


def test_five_reports_of_one_client_are_not_five_clients():
    made = algorithm(update=lambda c: of_norm(0.1))
    one = reports(made, names=["c0"])[0]
    state, info = served(made, [one] * 20)
    assert info["opened"] == 0
    assert torch.equal(state.params, torch.zeros(SIZE))


@pytest.mark.parametrize("seal", ["plain", "paillier"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_client_with_nan_counts_as_a_zero_update_and_only_its_own_log_says_so(seal, bad):
    broken = algorithm(seal=seal, update=lambda c: torch.full((SIZE,), bad) if c.id == "c2" else of_norm(0.1))
    zero = algorithm(seal=seal, update=lambda c: torch.zeros(SIZE) if c.id == "c2" else of_norm(0.1))
    (state, info), (other, _) = (served(made, reports(made)) for made in (broken, zero))
    assert info["opened"] == 1
    assert torch.equal(state.params, other.params)
    received = broken.broadcast(broken.init(torch.zeros(SIZE)), [], round=0)
    told = [broken.train(None, received, client(name), partial(seeded(0), name)).info for name in ("c1", "c2")]
    assert [info.get("diverged") for info in told] == [None, 1.0]


def test_nothing_is_sealed_without_its_share_of_the_noise():
    made = algorithm(update=lambda c: of_norm(0.1))
    with pytest.raises(TypeError, match="share of the noise"):
        made.release(
            Trained(Raw(of_norm(0.1))), client("c0"), made.broadcast(made.init(torch.zeros(SIZE)), [], round=0)
        )


def test_sealed_reports_that_are_altered_cut_replayed_or_foreign_are_refused_by_name():
    made = algorithm(seal="paillier", update=lambda c: of_norm(0.1))
    first = made.init(torch.zeros(SIZE))
    old = reports(made, names=["c4"])[0]
    second, _ = served(made, reports(made), first)
    sent = reports(made, state=second, round=1)
    altered, cut = sent[0].tensors["report"].clone(), sent[1].tensors["report"][:-1].clone()
    altered[-1] ^= 1
    messages = [
        Message("c0", {"report": altered}),
        Message("c1", {"report": cut}),
        Message("stranger", sent[2].tensors),
        Message("c3", {}),
        old,
        *sent[2:3],
        *sent[5:],
    ]
    state, info = served(made, messages, second, round=1)
    assert set(info["refused"]) == {"c0", "c1", "stranger", "c3", "c4", "the sum of group public"}
    assert "altered" in info["refused"]["c0"]
    assert "round 1" in info["refused"]["c4"]
    assert torch.equal(state.params, second.params)  # four reports are left of the six that are needed


def test_a_round_is_opened_once():
    made = algorithm(seal="paillier", update=lambda c: of_norm(0.1))
    sent = reports(made)
    served(made, sent)
    with pytest.raises(Exception, match="has been opened"):
        served(made, sent[:-1])  # the difference of two sums would be one client's update


def test_a_plain_report_beyond_the_grid_is_refused_by_name():
    made = algorithm(update=lambda c: of_norm(0.1))
    for bad in (2**31 - 1, -(2**31)):
        sent = reports(made)
        sent[0].tensors["report"][0] = bad
        assert "beyond the grid" in served(made, sent)[1]["refused"]["c0"]


def test_a_sealed_report_beyond_the_grid_drops_the_round_and_says_who_may_have_sent_it():
    made = algorithm(seal="paillier", update=lambda c: of_norm(0.1))
    sent, seal = reports(made), made.groups["c0"].seal
    cheat = CheatingSite(seal.context(0), seal.signers["c0"])
    number = (1 << (seal.lanes.width * seal.lanes.per_number)) - 1  # every lane full: it carries into its neighbours
    sent[0] = message("c0", cheat.report([number] * seal.lanes.numbers))
    state, info = served(made, sent)
    assert torch.equal(state.params, torch.zeros(SIZE))
    assert info["opened"] == 0
    text = "the sum of round 1 is out of range: a report did not keep to the grid; the round is dropped, one of"
    assert info["refused"] == {"the sum of group public": f"{text} {', '.join(NAMES)}"}
    state, info = served(made, reports(made, state=state, round=1), state, round=1)
    assert (info["opened"], info["refused"]) == (1, {})


def test_what_crosses_the_wire_is_as_long_whatever_the_update():
    small, large = (algorithm(seal="paillier", update=lambda c, n=n: of_norm(n)) for n in (0.0, 1e6))
    sizes = [{len(m.tensors["report"]) for m in reports(made)} for made in (small, large)]
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) == 1


def test_the_price_is_that_of_the_noise_that_is_drawn():
    made = algorithm(z=2.0)
    event, noise = made.cost(client("c0")), made.groups["c0"].noise
    assert event == noise.event()
    assert event.shares * event.share_variance == pytest.approx(4.0 * made.grid.l2_squared)
    assert noise.l2_squared == made.grid.l2_squared == event.l2_squared
