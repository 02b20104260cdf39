"""Central DP's server and clients, without a simulator around them."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from statistical import has_std

from tacit.algorithms import finished
from tacit.algorithms.central_dp import CentralDP, QuantileClip
from tacit.errors import BadInput, TrainingDiverged
from tacit.privacy.central.kind import CohortGaussian
from tacit.privacy.samplers import Poisson
from tacit.random import seeded
from tacit.training.optimizer import Sgd
from tacit.training.sgd import Trained
from tacit.types import Budget, Client, Message, Raw

SIZE = 400
MECHANISM = CohortGaussian(1.0, clip=0.5, cohorts=Poisson(40, 10))
NAMES = [f"c{i}" for i in range(40)]


def algorithm(mechanism=MECHANISM, **changes):
    settings = {"weights": dict.fromkeys(NAMES, 1.0), "expected_weight": 10.0, "local": None, "optimizer": Sgd()}
    return CentralDP(mechanism, **settings | changes)


def quiet(mechanism=MECHANISM, **changes):
    """The same with noise that is too small to see: what the server does beside it."""
    return algorithm(replace(mechanism, noise_multiplier=1e-9), **changes)


def client(name="c0"):
    return Client(0, name, Budget(8.0, 1e-5, "client"), torch.zeros(3, 1), torch.zeros(3))


def message(name, update, **facts):
    return Message(name, {"update": update}, facts)


def served(made, messages, *, seed=0, state=None, round=0):
    state = state or made.init(torch.zeros(SIZE))
    return finished(made.collect(state, round=round), messages, partial(seeded(seed), "server", round))


def released(made, update, name="c0"):
    received = made.broadcast(made.init(torch.zeros(SIZE)), [client(name)], round=0)
    return made.release(Trained(Raw(update)), client(name), received)


def of_norm(norm, at=0):
    vector = torch.zeros(SIZE)
    vector[at] = norm
    return vector


def test_the_sum_is_divided_by_the_expected_cohort_whoever_answers():
    for count in (1, 7, 40):
        state, _ = served(quiet(), [message(name, of_norm(0.2)) for name in NAMES[:count]])
        assert float(state.params[0]) == pytest.approx(0.2 * count / 10, abs=1e-6)


def test_a_round_without_answers_releases_noise_of_the_same_std():
    made = algorithm()
    for messages in ([], [message(name, of_norm(0.2)) for name in NAMES]):
        noise = torch.cat([served(made, messages, seed=n)[0].params[1:] for n in range(100)])
        assert has_std(noise, 1.0 * 0.5 / 10)
        assert not has_std(noise, 1.0 * 0.5 / 10 * 2 / 3)


def test_the_noise_is_added_once_and_is_another_in_every_round():
    made, state = algorithm(), algorithm().init(torch.zeros(SIZE))
    first, second = (served(made, [], state=state, round=r)[0].params for r in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(first, served(made, [], state=state)[0].params)


def test_one_client_moves_the_sum_by_at_most_the_clip_whatever_it_sends():
    honest = [message(name, of_norm(0.2)) for name in NAMES[:5]]
    without, _ = served(quiet(), honest)  # another sum has other noise
    for evil in (of_norm(1e30), torch.full((SIZE,), 3e38), -of_norm(5.0), of_norm(0.5)):
        state, info = served(quiet(), [*honest, message("c9", evil)])
        moved = float((state.params - without.params).norm()) * 10
        assert moved == pytest.approx(0.5, rel=1e-3)
        assert info["refused"] == {}


def test_a_client_that_skips_its_clip_changes_nothing():
    made, update = algorithm(), torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    clipped, _ = served(made, [released(made, update)])
    skipped, _ = served(made, [message("c0", update)])
    assert torch.allclose(clipped.params, skipped.params, atol=1e-7)
    assert float(released(made, update).tensors["update"].norm()) == pytest.approx(0.5)


def test_what_is_written_down_of_a_refusal_is_short_and_printable():
    crafted = Message("c3", {}, {"failed": "\x1b[2J" + "x" * 10**6})
    _, info = served(quiet(), [crafted, message("\x1b]0;c4\a", of_norm(0.2))])
    assert list(info["refused"]) == ["c3", "?]0;c4?"]
    assert all(why.isprintable() and len(why) <= 500 for why in info["refused"].values())


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (message("c1", torch.full((SIZE,), math.nan)), "not finite"),
        (message("c1", of_norm(math.inf)), "not finite"),
        (message("c1", torch.zeros(SIZE + 1)), "of shape (401,) instead of"),
        (message("c1", torch.zeros(SIZE, 1)), "of shape (400, 1)"),
        (message("c1", torch.zeros(SIZE, dtype=torch.float64)), "torch.float64"),
        (message("c1", torch.zeros(SIZE, dtype=torch.int32)), "torch.int32"),
        (Message("c1", {}), "no update"),
        (message("c0", of_norm(0.4, at=3)), "twice"),
        (message("stranger", of_norm(0.4)), "no client of this run"),
    ],
)
def test_a_message_that_cannot_be_used_is_refused_by_name_and_counts_as_a_zero_update(bad, why):
    good = [message("c0", of_norm(0.2)), message("c2", of_norm(0.3, at=1))]
    without, _ = served(algorithm(), good)
    state, info = served(algorithm(), [good[0], bad, good[1]])
    assert torch.equal(state.params, without.params)
    assert list(info["refused"]) == [bad.sender]
    assert why in info["refused"][bad.sender]


@pytest.mark.parametrize(
    "error", [TrainingDiverged("The loss became nan"), BadInput("other shapes"), IndexError("row 7")]
)
def test_a_client_whose_training_fails_sends_a_zero_update_and_says_nothing(error):
    def fails(work, theta, client, stream):
        raise error

    made = algorithm(local=fails)
    received = made.broadcast(made.init(torch.zeros(SIZE)), [client()], round=0)
    trained = made.train(None, received, client(), lambda purpose: seeded(0)(purpose))
    sent = made.release(trained, client(), received)
    assert torch.equal(sent.tensors["update"], torch.zeros(SIZE))
    assert sent.facts == {"unclipped": True}
    assert trained.info["diverged"] == 1.0
    _, info = served(made, [sent])
    assert info["refused"] == {}


def test_capped_weights_bound_what_one_client_moves_and_are_the_servers_own():
    made = quiet(weights={"c0": 1.0, "c1": 0.25}, expected_weight=0.5)
    state, _ = served(made, [message("c0", of_norm(0.4)), message("c1", of_norm(0.4, at=1), examples=10**9)])
    assert state.params[:2].tolist() == pytest.approx([0.8, 0.2], abs=1e-5)


ADAPTIVE = replace(MECHANISM, clip=0.1, count_std=2.0, noise_multiplier=1.0)


def test_the_noise_of_a_round_is_scaled_by_the_clip_that_was_used_in_it():
    """Flower 1.41 scales it by the clip of the next round."""
    made = algorithm(ADAPTIVE, adapt=QuantileClip(0.5, learning_rate=5.0))  # the clip moves by a factor of about e^2.5
    state, info = served(made, [message(name, of_norm(9.0), unclipped=False) for name in NAMES[:10]])
    assert info["clip"] == 0.1
    assert float(state.memory["clip"]) > 0.3
    noise = torch.cat([served(made, [], seed=n)[0].params for n in range(50)]) * 10
    assert has_std(noise, ADAPTIVE.update_multiplier * 0.1)
    after, info = served(made, [], seed=1, state=state, round=1)
    used = info["clip"]
    assert used == float(state.memory["clip"]) != float(after.memory["clip"])
    later = torch.cat([served(made, [], seed=n, state=state, round=1)[0].params - state.params for n in range(50)])
    assert has_std(later * 10, ADAPTIVE.update_multiplier * used)


def test_an_adapted_clip_is_told_to_the_clients_and_carried_in_the_state():
    made = algorithm(ADAPTIVE, adapt=QuantileClip())
    state, _ = served(made, [message(name, of_norm(9.0), unclipped=False) for name in NAMES[:10]])
    received = made.broadcast(state, [client()], round=0)
    sent = made.release(Trained(Raw(of_norm(9.0))), client(), received)
    assert float(sent.tensors["update"].norm()) == pytest.approx(float(state.memory["clip"]))
    assert sent.facts == {"unclipped": False}
    assert made.release(Trained(Raw(of_norm(0.01))), client(), received).facts == {"unclipped": True}


def test_the_price_is_that_of_the_mechanism_for_every_client():
    assert algorithm().cost(client("c0")) == algorithm().cost(client("c39")) == MECHANISM.event()


def waited(made, messages):
    """As on a device: what arrives waits, and is clipped and added together."""
    summing = made.collect(made.init(torch.zeros(SIZE)), round=0)
    for one in messages:
        summing.waiting[one.sender] = one.tensors["update"].clone()
        summing.within[one.sender] = bool(one.facts.get("unclipped"))
    summing.finish(partial(seeded(0), "server", 0))
    return summing


def test_updates_that_are_clipped_and_added_together_are_bounded_and_weighed_each_by_itself():
    made = algorithm()
    rows = [of_norm(0.1), of_norm(50.0, at=1), of_norm(1e30, at=2), torch.full((SIZE,), 1e35), torch.zeros(SIZE)]
    messages = [message(f"c{k}", row) for k, row in enumerate(rows)]
    together, alone = waited(made, messages), made.collect(made.init(torch.zeros(SIZE)), round=0)
    for one in messages:
        alone.add(one)
    assert torch.allclose(together.total.value(), alone.total.value(), rtol=1e-3, atol=1e-6)
    for k, one in enumerate([*messages, message("c5", torch.full((SIZE,), 3e38))]):
        moved = float(waited(made, [one]).total.value().norm())
        assert moved <= made.weights[f"c{k}"] * made.mechanism.clip


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_an_update_that_is_not_finite_counts_as_zero_among_those_that_are_added_together(bad):
    made = algorithm()
    good, broken = message("c0", of_norm(0.2)), message("c1", torch.full((SIZE,), bad))
    summing = waited(made, [good, broken])
    assert torch.equal(summing.total.value(), waited(made, [good]).total.value())
    assert summing.refused == {"c1": "the update is not finite, or too long to be scaled"}
    assert set(summing.within) == {"c0"}


def test_several_clients_release_at_once_what_each_would_by_itself():
    made = algorithm()
    received = made.broadcast(made.init(torch.zeros(SIZE)), [], round=0)
    rows = torch.stack([of_norm(0.1), of_norm(9.0, at=1), torch.zeros(SIZE)])
    clients = [client(f"c{k}") for k in range(3)]
    scaled = rows.clone()
    scales = made.scale_rows_(scaled, received).tolist()
    found = made.released_rows(scaled, [{"loss": 1.0}] * 3, clients, received, scales=scales)
    for (sent, info), row, one in zip(found, rows, clients, strict=True):
        alone = made.release(Trained(Raw(row), {}), one, received)
        assert (sent.sender, sent.facts) == (alone.sender, alone.facts)
        assert torch.allclose(sent.tensors["update"], alone.tensors["update"], rtol=1e-3)
        assert float(sent.tensors["update"].norm()) <= made.mechanism.clip
        assert info["clipped"] == float(not alone.facts["unclipped"])


def test_public_turns_hold_also_where_noise_begins_anew_in_every_round():
    groups = (frozenset(NAMES[:20]), frozenset(NAMES[20:]))
    made = quiet(groups=groups)
    for round in (0, 3, 2):  # no round is the noise's own
        mine, other = ("c0", "c20") if round % 2 == 0 else ("c20", "c0")
        messages = [message(mine, of_norm(0.25)), message(other, of_norm(0.25, at=1))]
        after, told = served(made, messages, round=round)
        assert told["refused"] == {other: f"it is not its turn in round {round + 1}"}
        assert float(after.params[0]) == pytest.approx(0.025)
        assert float(after.params[1]) == pytest.approx(0.0, abs=1e-6)
