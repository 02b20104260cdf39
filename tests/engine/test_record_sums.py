"""Noise once: sums of all clients' records under a trusted server, each client its own epsilon by its own rate."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOptionalMemberAccess=false
import json
import math
import sqlite3
from functools import partial
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats
from statistical import has_std, is_normal, is_poisson_sampling
from trained import changed

import tacit
from tacit.algorithms import finished
from tacit.algorithms.record_sums import RecordSums, SumNoise, longest
from tacit.crypto.grid import Quantised, RoundedSum
from tacit.engine.assemble import build
from tacit.engine.run_files import read
from tacit.engine.trainers import OneByOne
from tacit.errors import BadInput, Refused, TacitError
from tacit.privacy.accounting import price
from tacit.privacy.central.records import LENGTH
from tacit.privacy.local import SampledGaussian
from tacit.privacy.plan import kind_of
from tacit.privacy.rates import choose, rough
from tacit.random import seeded
from tacit.report.collect import run_page
from tacit.report.plan import of_experiment
from tacit.report.plan import table as plan_table
from tacit.training.optimizer import CONSTANT, Sgd
from tacit.training.sgd import Trained, Workspace, clipped_sum_slow
from tacit.types import Bounded, Budget, Client, Message

EPSILONS = (1.0, 2.0, 4.0, 9.0)
SIZE = 400
NAMES = ["a", "b", "c"]
NOISE = SumNoise(2.0, clip=0.5, most=3, records=20.0, size=SIZE)


def experiment(**changes):
    values = {
        "data": {"name": "digits", "clients": 4, "examples_per_client": 60},
        "train": {"rounds": 6, "learning_rate": 1.0, "local_steps": 1},
        "privacy": {"kind": "central", "unit": "record", "epsilon": EPSILONS, "delta": 1e-3, "rate_cap": 100.0},
        "run": {"workers": 1},
    }
    return changed(values, changes)


def built(made) -> Any:
    return build(made)


def algorithm(noise=NOISE, **changes):
    rate = SampledGaussian(noise.noise_multiplier, noise.clip, 0.5)
    settings = {"records": dict.fromkeys(NAMES, 20.0), "learning_rate": 1.0, "schedule": CONSTANT, "optimizer": Sgd()}
    return RecordSums(lambda client: rate, noise, **settings | changes)


def served(made, updates, *, seed=0):
    state = made.init(torch.zeros(SIZE))
    messages = [Message(name, {"update": update}) for name, update in updates.items()]
    return finished(made.collect(state, round=0), messages, partial(seeded(seed), "server", 0))


def test_the_noise_of_a_round_has_the_std_that_is_priced_and_not_two_thirds_or_three_halves_of_it():
    made = algorithm()
    sums = {name: torch.full((SIZE,), 0.01) for name in NAMES}
    noise = torch.cat([served(made, sums, seed=n)[0].params + 0.03 / 60 for n in range(100)])
    std = 2.0 * NOISE.sensitivity / 60
    assert has_std(noise, std)
    assert is_normal(noise, std)
    assert not has_std(noise, std * 2 / 3)
    assert not has_std(noise, std * 3 / 2)
    assert 0.5 <= NOISE.sensitivity < 0.5 * 1.01


def test_the_noise_is_drawn_once_however_many_clients_answer_and_the_divisor_is_theirs_who_did():
    made = algorithm(SumNoise(1e-9, clip=0.5, most=3, records=20.0, size=SIZE))
    for count in (1, 2, 3):
        state, info = served(made, {name: torch.full((SIZE,), 0.3) for name in NAMES[:count]})
        assert state.params[0] == pytest.approx(-0.3 / 20, rel=1e-5)
        assert info["batch"] == 20.0 * count
    few = algorithm()
    widths = [
        torch.cat([served(few, {n: torch.zeros(SIZE) for n in NAMES[:k]}, seed=s)[0].params for s in range(40)])
        for k in (1, 3)
    ]
    assert has_std(widths[0], 2.0 * NOISE.sensitivity / 20)
    assert has_std(widths[1], 2.0 * NOISE.sensitivity / 60)


def test_a_record_moves_the_exact_sum_by_no_more_than_the_sensitivity_whatever_other_clients_send():
    made, rng = algorithm(), torch.Generator().manual_seed(0)
    longest = NOISE.length
    for other in (
        torch.zeros(SIZE),
        torch.full((SIZE,), 3e38),
        torch.randn(SIZE, generator=rng) * longest,
        torch.full((SIZE,), -1e30),
    ):
        mine = torch.randn(SIZE, generator=rng).double()
        mine *= 0.5 * longest / mine.norm()
        record = torch.randn(SIZE, generator=rng).double()
        record *= 0.5 / record.norm()
        totals = []
        for update in (mine, mine + record):
            adding = made.collect(made.init(torch.zeros(SIZE)), round=0)
            for name, vector in (("b", other), ("a", update.float()), ("c", other)):
                adding.add(Message(name, {"update": vector}))
            totals.append(adding.total.value())
        assert float((totals[1] - totals[0]).norm()) <= NOISE.sensitivity


def test_what_cannot_be_used_is_left_out_by_name_and_the_round_goes_on():
    good = {"a": torch.zeros(SIZE)}
    for bad in (torch.zeros(SIZE - 1), torch.zeros(SIZE, dtype=torch.float64), torch.full((SIZE,), math.nan)):
        state, info = served(algorithm(), good | {"b": bad})
        assert list(info["refused"]) == ["b"]
        assert info["batch"] == 20.0
        assert state.params.isfinite().all()
    _, info = served(algorithm(), good | {"stranger": torch.zeros(SIZE)})
    assert info["refused"] == {"stranger": "it is no client of this run"}


def test_nothing_but_sums_that_were_clipped_to_the_priced_norm_leaves_a_client():
    made, client = algorithm(), Client(0, "a", Budget(1.0, 1e-5), torch.zeros(3, 1), torch.zeros(3))
    received = made.broadcast(made.init(torch.zeros(SIZE)), [client], round=0)
    wrong: Any = (torch.zeros(SIZE), Bounded(torch.zeros(SIZE), 1.0))
    for update in wrong:
        with pytest.raises(TypeError):
            made.release(Trained(update), client, received)
    assert made.release(Trained(Bounded(torch.zeros(SIZE), 0.5)), client, received).tensors["update"].shape == (SIZE,)


def test_batches_are_drawn_at_the_rate_that_is_charged_and_every_gradient_is_clipped():
    parts = built(experiment(privacy={"epsilon": (0.5, 8.0, 8.0, 8.0)}, train={"rounds": 60}))
    algorithm, client = parts.algorithm, parts.population[0]
    mechanism = algorithm.mechanism(client)
    drawn = [mechanism.sample({}, seeded(n)("batch"), client.size)[1] for n in range(400)]
    rate = mechanism.sampling_rate
    assert 0.05 < rate < 1.0
    assert is_poisson_sampling(drawn, size=client.size, rate=rate)
    assert algorithm.cost(client).event.sampling_probability == rate
    work = Workspace(parts.model, parts.theta, 1.0, 256, losses=parts.losses)
    sums = []
    for seed in range(20):
        received = algorithm.broadcast(algorithm.init(parts.params), [client], round=0)
        trained = algorithm.train(work, received, client, seeded(seed))
        batch = mechanism.sample({}, seeded(seed)("train"), client.size)[1]
        slow = clipped_sum_slow(work.model, client.x[batch], client.y[batch], clip=1.0)
        assert torch.allclose(trained.update.vector.float(), slow, atol=1e-4)
        sums.append(float(trained.update.vector.norm()) / len(batch))
    assert max(sums) <= 1.0


def test_every_client_pays_for_its_own_rate_and_no_more_than_its_own_epsilon(tmp_path):
    history = tacit.run(experiment(), out=tmp_path / "run")
    charges = sqlite3.connect(tmp_path / "run" / "ledger.db")
    rows = charges.execute(
        "SELECT client, round, text FROM charges JOIN events ON events.id = charges.event"
    ).fetchall()
    assert len(rows) == 4 * 6
    spent = {}
    for name in {row[0] for row in rows}:
        events = [(price.from_text(text), 1) for client, _, text in rows if client == name]
        spent[name] = price.epsilon(price.compose(events), delta=1e-3)
    assert history.summary["rounds"] == 6
    for name, epsilon in zip(sorted(spent), EPSILONS, strict=True):
        assert 0 < spent[name] <= epsilon
    assert spent["client-0"] <= 1.0
    assert spent["client-0"] < spent["client-3"]
    assert "add or remove one record" in history.sentence
    assert "the server is trusted" in history.sentence


def test_the_charge_is_on_disk_before_a_gradient_is_computed(tmp_path, monkeypatch):
    seen = []
    train = RecordSums.train

    def watched(self, work, received, client, derive):
        ledger = sqlite3.connect(tmp_path / "run" / "ledger.db")
        seen.append(ledger.execute("SELECT COUNT(*) FROM charges").fetchone()[0])
        return train(self, work, received, client, derive)

    monkeypatch.setattr(RecordSums, "train", watched)
    tacit.run(experiment(train={"rounds": 2}), out=tmp_path / "run")
    assert seen == [4] * 4 + [8] * 4


def test_no_noise_no_clip_and_full_batches_are_one_step_of_gradient_descent(tmp_path):
    """The slow twin: the mean gradient of all clients' rows, by autograd."""
    loud = {"epsilon": 1e9, "noise_multiplier": 1e-3, "clip": 30.0, "rate_cap": 1.0}
    made = experiment(privacy=loud, train={"rounds": 1})
    parts = built(made)
    assert all(parts.algorithm.mechanism(parts.population[k]).sampling_rate == 1 for k in range(4))
    before = {name: tensor.clone() for name, tensor in parts.model.state_dict().items()}
    loss = torch.nn.functional.cross_entropy(parts.model(parts.population.x), parts.population.y)
    names, parameters = zip(*parts.model.named_parameters(), strict=True)
    gradients = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    tacit.run(made, out=tmp_path / "run")
    after = load_file(tmp_path / "run" / "model.safetensors")
    for name in names:
        assert gradients[name].norm() > 0.01
        assert torch.allclose(after[name] - before[name], -gradients[name], atol=1e-3)


def test_loose_clients_are_drawn_more_often_up_to_the_cap():
    wide, capped = (
        built(experiment(privacy={"rate_cap": cap, "epsilon": (0.3, 0.3, 0.3, 9.0)})).plan.chosen.rates
        for cap in (100.0, 1.5)
    )
    assert wide.max() / wide.min() > 3
    assert capped.max() / capped.min() <= 1.5 + 1e-9
    default = built(experiment(privacy={"rate_cap": None, "epsilon": (0.3, 0.3, 0.3, 9.0)})).plan.chosen
    assert default.rates.max() / default.rates.min() <= 3.0 + 1e-9  # at most half of all records are the loose client's
    assert default.rates.max() / default.rates.min() > 2


def test_the_default_draws_loose_clients_more_often_only_where_that_saves_more_noise_than_it_moves_weights():
    def ratio(epsilons, sizes, *, parameters=7850, rounds=100):
        settings = {"rounds": rounds, "delta": 1e-5}
        found = choose(np.array(epsilons), np.array(sizes), cost=rough(**settings), parameters=parameters, **settings)
        return found.rates.max() / found.rates.min()

    few, many = [100] * 30, [1200] * 30
    spread = [0.1] * 15 + [1.0] * 12 + [10.0] * 3
    assert ratio([1.0] * 30, many) == 1.0
    assert ratio(spread, few) > ratio(spread, many) > 1.2
    assert ratio([3.0] * 15 + [10.0] * 15, many) < 1.3  # there is hardly any noise to save
    assert ratio(spread, many, parameters=80) < 1.2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"train": {"local_steps": 5}}, "set train.local_steps = 1"),
        ({"train": {"local_steps": {"epochs": 1}}}, "set train.local_steps = 1"),
        ({"train": {"sampling_rate": 0.5}}, "at the rate that its epsilon pays for"),
        ({"train": {"batch_size": 8}}, "at the rate that its epsilon pays for"),
        ({"train": {"clients_per_round": 2}}, "all clients are in every round"),
        ({"train": {"momentum": 0.9}}, "train.momentum has no effect"),
        ({"attack": {"kind": "replacement"}}, "Malicious clients are not simulated"),
        ({"privacy": {"rate_cap": 0.5}}, "rate_cap"),
        ({"privacy": {"sampler": "poisson"}}, "sampler"),
        ({"data": {"held_out": 0.2}}, "cannot be priced yet where records' sums are noised once"),
    ],
)
def test_what_cannot_stand_beside_it_is_refused_in_one_sentence(change, why):
    with pytest.raises(BadInput, match=why) as refused:
        experiment(**change)
    assert "\n" not in str(refused.value)


def test_what_has_no_price_or_no_wire_yet_is_refused():
    with pytest.raises(Refused, match="would read the site's single report"):
        kind_of(secret()).refuse_at_site(secret())
    with pytest.raises(BadInput, match="sets no limit"):
        built(experiment(privacy={"epsilon": (1.0, 2.0, 3.0, math.inf)}))
    with pytest.raises(
        BadInput, match="each record of client-1, with epsilon = 1e-09, could be drawn with a probability below 1e-05"
    ):
        built(experiment(privacy={"epsilon": (1.0, 1e-9, 1.0, 1e-9), "noise_multiplier": 0.5, "delta": 1e-9}))


def test_the_promise_is_kept_where_the_rate_of_one_client_is_twice_what_was_priced():
    """What a test of rates must see: at 1.5 times the rate the price passes the budget."""
    plan = built(experiment(privacy={"epsilon": 0.5}, train={"rounds": 60})).plan
    rate, z = float(plan.chosen.rates.max()), plan.chosen.multiplier
    event = (
        dp_accounting.PoissonSampledDpEvent(min(1.0, rate), dp_accounting.GaussianDpEvent(z))
        if rate < 1
        else dp_accounting.GaussianDpEvent(z)
    )
    assert price.epsilon(((event, 60),), delta=1e-3) <= 0.5
    less = (
        dp_accounting.GaussianDpEvent(z * 2 / 3)
        if rate == 1
        else dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z * 2 / 3))
    )
    assert price.epsilon(((less, 60),), delta=1e-3) > 0.5
    assert np.isfinite(z)


def secret(protect="none", **changes):
    privacy = {"kind": "distributed", "rate_cap": 3.0} | changes.pop("privacy", {})
    return experiment(privacy=privacy, protect={"kind": protect}, **changes)


def test_sums_in_clear_under_masks_and_under_paillier_are_the_same_bits_at_one_price(tmp_path):
    models, spent = set(), set()
    for how in ("none", "masks", "paillier"):
        made = secret(how, train={"rounds": 2})
        if how == "paillier":
            made = experiment(
                privacy={"kind": "distributed", "rate_cap": 3.0},
                protect={"kind": how, "key": {"bits": 2048}},
                train={"rounds": 2},
            )
        history = tacit.run(made, out=tmp_path / how)
        models.add((tmp_path / how / "model.safetensors").read_bytes())
        spent.add(history.summary["guarantee"]["epsilon"]["max"])
        trusted = "trusted to add reports and not to look" in history.sentence
        assert trusted == (how == "none")
        assert "even with the shares of 1 other client" in history.sentence
        assert (
            history.summary["guarantee"]["also"][0]["epsilon"]["max"] > history.summary["guarantee"]["epsilon"]["max"]
        )
    assert len(models) == len(spent) == 1


def test_the_opened_sum_carries_the_noise_that_is_priced_even_without_the_colluders_share():
    plan = built(secret()).plan
    noise, shares = plan.noises[0], []
    assert (noise.law, noise.fewest, noise.colluding, noise.honest) == ("discrete-gaussian", 4, 1, 3)
    zero = RoundedSum(np.zeros(plan.grid.size, dtype=np.int64), plan.grid.l2_squared, plan.grid.largest)
    for seed in range(60):
        three = [plan._mechanisms[0].noise({}, seeded(seed)("share", k), zero)[1].vector.numpy() for k in range(3)]
        shares.append(sum(three))
    std = noise.multiplier * math.sqrt(plan.grid.l2_squared)
    assert has_std(np.concatenate(shares), std)
    assert not has_std(np.concatenate(shares), std * 2 / 3)
    event = plan.mechanism(built(secret()).population[0]).event()
    assert event.shares == 3
    assert event.gaussian[1] == pytest.approx(noise.multiplier, rel=1e-3)
    assert event.sampling_rate == plan.chosen.rates[0]


def test_every_client_is_charged_its_own_rate_of_the_sum_and_no_more_than_its_epsilon(tmp_path):
    tacit.run(secret("masks"), out=tmp_path / "run")
    ledger = sqlite3.connect(tmp_path / "run" / "ledger.db")
    rows = ledger.execute("SELECT client, text FROM charges JOIN events ON events.id = charges.event").fetchall()
    assert {json.loads(text)["event"] for _, text in rows} == {"sampled-gaussian-sum"}
    for name, epsilon in zip(sorted({name for name, _ in rows}), EPSILONS, strict=True):
        mine = price.compose([(price.from_text(text), 1) for who, text in rows if who == name])
        assert price.epsilon(mine, delta=1e-3) <= epsilon


def test_skellam_shares_are_dearer_so_they_take_more_noise():
    multipliers = {
        law: built(secret(privacy={"noise": law, "epsilon": 2.0})).plan.chosen.multiplier
        for law in ("skellam", "discrete-gaussian")
    }
    assert multipliers["skellam"] > multipliers["discrete-gaussian"]


def test_a_share_is_not_added_to_integers_that_a_whole_client_was_rounded_to():
    plan = built(secret()).plan
    whole = Quantised(np.zeros(plan.grid.size, dtype=np.int64), plan.grid.l2_squared, plan.grid.largest)
    with pytest.raises(TypeError):
        plan._mechanisms[0].noise({}, seeded(0)("share"), whole)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"privacy": {"colluding": 0}}, "colluding"),
        ({"privacy": {"colluding": 4}}, "every client knows its own share"),
        ({"privacy": {"fewest_reports": 5}}, "every client knows its own share"),
        ({"privacy": {"groups": 2}}, "groups"),
        ({"privacy": {"share": "note-2020"}}, "share"),
        ({"privacy": {"bits": 8}}, "bits"),
        ({"train": {"local_steps": 2}}, "set train.local_steps = 1"),
        ({"aggregate": {"rule": "median"}}, "aggregate.rule must be mean"),
        ({"aggregate": {"rule": "weighted"}}, "aggregate.rule must be mean"),
    ],
)
def test_what_cannot_stand_beside_secret_sums_of_records_is_refused(change, why):
    with pytest.raises(TacitError, match=why):
        built(secret(**change))


def test_masks_hide_client_level_sums_too_and_need_enough_reports_for_their_threshold(tmp_path):
    values = {
        "data": {"name": "digits", "clients": 4, "examples_per_client": 40},
        "train": {"rounds": 1, "local_steps": 2},
    }
    values |= {"privacy": {"kind": "distributed", "epsilon": 8.0, "delta": 1e-3}, "run": {"workers": 1}}
    bits = set()
    for how in ("none", "masks"):
        tacit.run(tacit.Experiment(**values, protect={"kind": how}), out=tmp_path / how)
        bits.add((tmp_path / how / "model.safetensors").read_bytes())
    assert len(bits) == 1
    few = values | {"privacy": values["privacy"] | {"fewest_reports": 2}}
    with pytest.raises(BadInput, match="open sums of 3 to 4 reports"):
        built(tacit.Experiment(**few, protect={"kind": "masks"}))


def test_a_report_out_of_range_drops_the_round_and_a_missing_one_opens_nothing():
    parts = built(secret("masks", train={"rounds": 1}))
    algorithm, state = parts.algorithm, parts.algorithm.init(parts.params)
    clients = [parts.population[k] for k in range(4)]
    received = algorithm.broadcast(state, clients, round=0)
    work = Workspace(parts.model, parts.theta, 1.0, 256, losses=parts.losses)
    messages = []
    for client in clients:
        trained = algorithm.train(work, received, client, partial(seeded(1), client.id))
        messages.append(algorithm.release(trained, client, received))
    whole, info = finished(algorithm.collect(state, round=0), messages, partial(seeded(0), "server"))
    assert info["refused"] == {}
    assert not torch.equal(whole.params, state.params)
    few, info = finished(algorithm.collect(state, round=0), messages[:3], partial(seeded(0), "server"))
    assert torch.equal(few.params, state.params)
    assert "3 reports arrived and 4 are needed" in info["refused"]["the sum of group all"]
    liar = Message(messages[0].sender, {"report": messages[0].tensors["report"] + 2**30})
    lied, info = finished(algorithm.collect(state, round=0), [liar, *messages[1:]], partial(seeded(0), "server"))
    assert torch.equal(lied.params, state.params)
    assert "out of range" in info["refused"]["the sum of group all"]


@pytest.mark.parametrize("how", ["none", "masks", "paillier"])
@pytest.mark.parametrize("fewest", [4, 3])
def test_with_a_client_absent_a_round_opens_nothing_or_the_others_and_its_charge_stands(
    tmp_path, monkeypatch, how, fewest
):
    whole = OneByOne.__call__

    def without_the_last(self, received, round, cohort):
        return whole(self, received, round, cohort[:3] if round == 1 else cohort)

    monkeypatch.setattr(OneByOne, "__call__", without_the_last)
    protect = {"kind": how} | ({"key": {"bits": 2048}} if how == "paillier" else {})
    privacy = {"kind": "distributed", "rate_cap": 3.0, "fewest_reports": fewest}
    history = tacit.run(experiment(privacy=privacy, protect=protect, train={"rounds": 3}), out=tmp_path / "run")
    before, during, after = history.rounds
    assert [one["opened"] for one in (before, during, after)] == [1, int(fewest == 3), 1]
    if fewest == 4:
        assert "arrived and 4 are needed" in during["refused"]["the sum of group all"]
        assert during["accuracy"] == before["accuracy"]
        assert during["update_norm"] == 0
    book = sqlite3.connect(tmp_path / "run" / "ledger.db")
    assert book.execute("SELECT COUNT(*) FROM charges").fetchone() == (12,)


def test_under_a_trusted_server_an_absent_client_is_charged_and_the_divisor_is_the_others(tmp_path, monkeypatch):
    whole = OneByOne.__call__
    monkeypatch.setattr(
        OneByOne, "__call__", lambda self, received, round, cohort: whole(self, received, round, cohort[:3])
    )
    made = experiment(train={"rounds": 2})
    plan = built(made).plan
    history = tacit.run(made, out=tmp_path / "run")
    assert history.rounds[0]["batch"] == pytest.approx(float((plan.chosen.rates * plan.sizes)[:3].sum()))
    book = sqlite3.connect(tmp_path / "run" / "ledger.db")
    assert book.execute("SELECT COUNT(*) FROM charges").fetchone() == (8,)


def test_integers_that_could_wrap_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(BadInput, match="do not fit: use less noise"):
        tacit.run(secret("masks", privacy={"noise_multiplier": 1e15}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_a_plan_says_each_clients_rate_and_price_and_what_is_left_once_batches_are_known(kind):
    privacy = {"kind": kind, "noise_multiplier": 2.0, "rate_cap": None, "epsilon": 1.0, "delta": 1e-5}
    (row,) = of_experiment(experiment(privacy=privacy, train={"rounds": 100}))
    assert row["sampling_rate"][0] < 0.2
    assert 0.99 < row["epsilon_spent"] <= 1.0
    assert 33 < row["epsilon_batches_known"] < 36  # of 100 Gaussians with multiplier 2: 33.1 in closed form
    assert row["noise_over_batch"] == pytest.approx(2.0 / (240 * row["sampling_rate"][0]), rel=1e-3)
    assert row["affordable_rounds"] == [100, 100]
    if kind == "distributed":
        assert row["epsilon_single_reports"] > row["epsilon_spent"]


@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_nothing_is_called_secret_where_every_record_is_in_every_sum(kind):
    def said(z):
        made = experiment(privacy={"kind": kind, "epsilon": 8.0, "noise_multiplier": z})
        parts = built(made)
        (row,) = of_experiment(made)
        return parts.plan.chosen.rates, parts.promise.sampler, row["guarantee"]

    rates, sampler, level = said(100.0)
    assert rates.tolist() == [1.0] * 4
    assert sampler.startswith("all records of each of 4 clients, ")
    assert "Poisson" not in sampler + level
    rates, sampler, level = said(0.8)
    assert rates.max() < 1
    assert sampler.startswith("Poisson batches, secret at each of 4 clients at a rate of its own, ")
    assert level.endswith("all clients' Poisson batches")


@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_what_rests_on_the_secrecy_of_batches_is_said_and_priced_without_it_for_every_group(kind):
    secrecy = "nobody learns which records were drawn"
    made = experiment(privacy={"kind": kind, "noise_multiplier": 0.8, "epsilon": (2.0, 2.0, 4.0, 4.0)})
    assert secrecy in built(made).promise.assumes
    assert (LENGTH in built(made).promise.assumes) == (
        kind == "central"
    )  # a sum that everybody rounds alone is clamped exactly
    assert secrecy not in built(experiment(privacy={"kind": kind, "noise_multiplier": 100.0})).promise.assumes
    drawn = plan_table(of_experiment(made))
    heads = [str(column.header) for column in drawn.columns]
    where = heads.index("epsilon spent")
    assert heads[where + 1] == "epsilon batches known"
    assert "batches known" not in str(drawn.caption)
    spent, known = ([float(str(cell)) for cell in drawn.columns[k].cells] for k in (where, where + 1))
    assert len(known) == 2
    assert all(more > less for more, less in zip(known, spent, strict=True))


def test_the_price_of_single_reports_says_that_it_keeps_the_secrecy_of_batches(tmp_path):
    for z, drawn in ((0.8, True), (100.0, False)):
        made = secret(privacy={"noise_multiplier": z}, train={"rounds": 1})
        (other,) = tacit.run(made, out=tmp_path / f"{z}").guarantee.also
        assert other.sampler.endswith("noise and a secret batch" if drawn else "share of the noise")
        assert ("nobody learns which records were drawn" in other.assumes) == drawn
        shown = plan_table(of_experiment(made))
        words = f"{shown.caption} {[str(column.header) for column in shown.columns]}"
        assert "epsilon single reports" in words
        assert ("epsilon single reports (batches secret)" in words) == drawn


@pytest.mark.parametrize(("clients", "colluding"), [(1, None), (4, 4), (4, 5)])
def test_masks_with_nobody_to_hide_among_are_refused_by_what_they_need(clients, colluding):
    made = secret("masks", privacy={"epsilon": 2.0, "colluding": colluding}, data={"clients": clients})
    with pytest.raises(BadInput, match=r"^Masks need at least 2 clients, and privacy\.colluding below their number\.$"):
        built(made)


def test_a_plan_says_where_noise_at_every_client_or_a_trusted_server_would_serve_better():
    loose = {"epsilon": (0.1, 0.1, 0.1, 20.0), "rate_cap": None}
    (said,) = {row["note"] for row in of_experiment(experiment(privacy=loose, train={"rounds": 50}))}
    assert "would leave 0." in said
    assert 'privacy.kind = "local"' in said
    equal = {"epsilon": 2.0, "rate_cap": None}
    assert "note" not in of_experiment(experiment(privacy=equal, train={"rounds": 50}))[0]
    half = equal | {"kind": "distributed", "colluding": 2}
    assert 'privacy.kind = "central") 0.71 of this noise' in of_experiment(experiment(privacy=half))[0]["note"]


def test_the_page_shows_whose_records_count_how_much(tmp_path):
    made = experiment(privacy={"epsilon": (0.3, 0.3, 0.3, 9.0), "rate_cap": 2.0}, train={"rounds": 2})
    tacit.run(made, out=tmp_path / "run")
    found = run_page(read(tmp_path / "run"))["weights"]
    assert found["rows"] == [0.25] * 4
    assert sum(found["batch"]) == pytest.approx(1.0, abs=1e-3)
    assert found["batch"][0] < 0.25 < found["batch"][-1]
    assert found["batch"] == pytest.approx(sorted(built(made).plan.batch_shares), abs=1e-3)


def test_a_batch_longer_than_any_honest_one_is_as_unlikely_as_the_promise_assumes():
    records = np.geomspace(1e-4, 1e7, 100_001)
    assert stats.poisson.sf(np.floor([longest(each) for each in records]), records).max() < 3e-20
    assert "3e-20" in LENGTH
