"""Distributed DP from the experiment to the guarantee, in clear and under Paillier."""

import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from known_keys import safe_prime_key
from trained import same_model, weights

import tacit
from tacit.crypto import keys
from tacit.crypto.keys import generate
from tacit.crypto.proofs import proof_bytes
from tacit.crypto.seal import Plain
from tacit.engine import evaluate as evaluate_module
from tacit.errors import BadInput, KeyRefused, NeedsRows, Refused
from tacit.privacy.accounting import price
from tacit.privacy.plan import kind_of
from tacit.report import plan as planned

PAILLIER = {"kind": "paillier", "key": {"bits": 2048}}


def run(*given, **named) -> Any:
    return tacit.run(*given, **named)


@pytest.fixture
def summed(small):
    """A small experiment under distributed DP, with changes."""

    def build(privacy=None, **changes):
        return small(privacy={"epsilon": 8.0, "kind": "distributed"} | (privacy or {}), **changes)

    return build


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"privacy": {"noise": "discrete-gaussian", "colluding": 2, "bits": 12}},
        {"privacy": {"bits": 8, "rotation": "hadamard"}, "train": {"clients_per_round": 4}},
        {
            "privacy": {"epsilon": [1.0, 1.0, 1.0, 8.0, 8.0, 8.0], "groups": 2},
            "aggregate": {"rule": "inverse-variance"},
        },
    ],
)
def test_the_encrypted_run_has_the_very_model_of_the_unencrypted_one(summed, tmp_path, settings):
    protect = settings.pop("protect", {})
    plain = run(summed(protect=protect, **settings), out=tmp_path / "plain")
    sealed = run(summed(protect=protect | PAILLIER, **settings), out=tmp_path / "sealed")
    assert same_model(tmp_path / "plain", tmp_path / "sealed")
    assert [r["accuracy"] for r in plain.rounds] == [r["accuracy"] for r in sealed.rounds]
    assert sealed.guarantee.epsilon_max == plain.guarantee.epsilon_max
    assert all(record["refused"] == {} for record in sealed.rounds)


def test_every_start_has_its_own_key(summed):
    keys = {
        tacit.engine.assemble.build(summed(protect=PAILLIER)).algorithm.groups["client-0"].seal.public.id
        for _ in range(2)
    }
    assert len(keys) == 2


def test_every_client_pays_at_client_level_for_the_rounds_it_reports_in(summed, tmp_path):
    history = run(summed(train={"clients_per_round": 3}, privacy={"fewest_reports": 2}), out=tmp_path)
    entries = list(history.ledger.entries())
    assert {entry["unit"] for entry in entries} == {"client"}
    assert len(entries) == 3 * 4
    assert {json.loads(entry["event"])["shares"] for entry in entries} == {2}


def test_the_run_stops_before_the_round_that_would_overspend(summed, tmp_path):
    z = tacit.engine.assemble.build(summed(train={"rounds": 3})).plan.noises[0].multiplier
    history = run(summed(train={"rounds": 9}, privacy={"noise_multiplier": z}), out=tmp_path)
    assert history.summary["stopped"] == "budget"
    assert len(history.rounds) == 3
    assert history.guarantee.epsilon_max <= 8.0
    event = history.ledger.composition("client-0", "client")[0][0]
    assert price.epsilon(((event, 4),), delta=1e-5) > 8.0


@pytest.mark.parametrize(("fewest", "least", "rounds"), [(6, 1, 1), (5, 6, 1), (5, 1, 4)])
def test_nobody_is_charged_for_a_round_of_fewer_clients_than_a_sum_or_the_experiment_needs(
    summed, tmp_path, fewest, least, rounds
):
    """The last client can pay for one round; a sum of fewer than `fewest_reports` would be paid for and not opened."""
    privacy = {"epsilon": [8.0] * 5 + [1.5], "noise_multiplier": 3.0, "fewest_reports": fewest}
    history = run(summed(privacy=privacy, train={"min_clients": least}), out=tmp_path, page=False)
    assert history.summary["stopped"] == ("rounds" if rounds == 4 else "budget")
    assert [record["opened"] for record in history.rounds] == [1] * rounds
    assert len(list(history.ledger.entries())) == 6 + 5 * (rounds - 1)


@pytest.mark.parametrize("share", ["even", "note-2020"])
def test_the_notes_sigma_is_refused_before_the_first_round_and_the_named_one_works(summed, tmp_path, share):
    said = {"noise_multiplier": 1e-3, "epsilon": 10.0, "share": share}
    with pytest.raises(BadInput, match=r"0\.001 cannot pay for one round at epsilon = 10") as refused:
        run(summed(privacy=said), out=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    once, always = (float(found) for found in re.findall(r"\d+\.\d{3}(?=[ ,])", str(refused.value))[-2:])
    assert once < always
    for z, rounds in ((once, 1), (always, 4)):
        plan = tacit.engine.assemble.build(summed(privacy=said | {"noise_multiplier": z})).plan
        assert price.epsilon(((plan.noises[0].event(), rounds),), delta=1e-5) <= 10.0
    with pytest.raises(BadInput, match="cannot pay"):
        tacit.engine.assemble.build(summed(privacy=said | {"noise_multiplier": once * 0.99}))


def test_the_notes_share_needs_a_sigma_larger_by_the_root_of_the_cohort(summed):
    ours, theirs = (
        tacit.engine.assemble.build(summed(privacy={"share": share})).plan.noises[0] for share in ("even", "note-2020")
    )
    assert theirs.share_variance == pytest.approx(
        ours.share_variance, rel=0.01
    )  # the same promise needs the same noise
    given = tacit.engine.assemble.build(summed(privacy={"share": "note-2020", "noise_multiplier": 5.0})).plan.noises[0]
    assert given.multiplier == pytest.approx(5.0 / np.sqrt(6))


def test_two_guarantees_are_stated_everywhere(summed, tmp_path):
    experiment = summed(train={"rounds": 8}, privacy={"epsilon": 10.0}, protect=PAILLIER)
    history = run(experiment, out=tmp_path)
    first, (second,) = history.guarantee, history.guarantee.also
    assert first.unit == second.unit == "client"
    assert "holds no key" in first.adversary
    assert "client's key" in second.adversary
    assert first.epsilon_max < 30 < second.epsilon_max < float("inf")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["guarantee"]["also"][0]["epsilon"]["max"] == second.epsilon_max
    assert "Against the server once it has a client's key" in history.sentence
    (row,) = planned.of_experiment(experiment)
    assert row["epsilon_spent"] == pytest.approx(first.epsilon_max)
    assert row["epsilon_single_reports"] == pytest.approx(second.epsilon_max)


def test_without_encryption_the_server_is_named_as_trusted(summed, tmp_path):
    history = run(summed(train={"rounds": 1}), out=tmp_path)
    assert "trusted to add" in history.guarantee.adversary
    assert "looks at single reports" in history.guarantee.also[0].adversary


def test_two_groups_have_a_sum_and_a_price_each(summed, tmp_path):
    limits = [1.0, 1.1, 1.2, 7.0, 8.0, 9.0]
    rule = {"rule": "pfa", "reading": "paper", "split": "kmeans"}
    history = run(summed(privacy={"epsilon": limits}, aggregate=rule), out=tmp_path)
    assert [record["opened"] for record in history.rounds] == [2] * 4
    spent = {entry["client"]: entry["event"] for entry in history.ledger.entries()}
    assert len(set(spent.values())) == 2
    compositions = history.ledger.compositions("client")
    for index, limit in enumerate(limits):
        found = price.epsilon(compositions[f"client-{index}"], delta=1e-5)
        assert found <= limit
        assert found == pytest.approx(1.0 if index < 3 else 7.0, rel=0.01)  # the tightest of its group


@pytest.mark.parametrize(
    "rule",
    [{"rule": "mean"}, {"rule": "weighted"}, {"rule": "inverse-variance"}, {"rule": "public-only", "split": "kmeans"},
     {"rule": "pfa", "reading": "paper"}],
)  # fmt: skip
def test_rules_that_see_sums_run(summed, tmp_path, rule):
    limits = {"epsilon": [2.0, 2.0, 2.0, 8.0, 8.0, 8.0]}
    history = run(summed(privacy=limits, aggregate=rule), out=tmp_path)
    assert len(history.rounds) == 4
    assert all(record["opened"] >= 1 for record in history.rounds)


@pytest.mark.parametrize(
    ("rule", "name"),
    [({"rule": "mean"}, "all"), ({"rule": "public-only", "split": "kmeans"}, "public"),
     ({"rule": "pfa", "reading": "paper"}, "public")],
)  # fmt: skip
def test_one_group_is_called_all_and_public_where_the_rule_moves_the_model_for_public_clients_alone(
    summed, tmp_path, rule, name
):
    experiment = summed(aggregate=rule, train={"rounds": 1})
    assert {group.name for group in tacit.engine.assemble.build(experiment).algorithm.groups.values()} == {name}
    assert run(experiment, out=tmp_path, page=False).rounds[0]["update_norm"] > 0


@pytest.mark.parametrize("rule", ["robust", "random-effects"])
def test_rules_that_need_rows_are_refused_with_the_names_of_those_that_work(summed, tmp_path, rule):
    with pytest.raises(
        NeedsRows, match=r"inverse-variance, mean, pfa, pfa-plus, public-only, random-projection, weighted"
    ):
        run(summed(aggregate={"rule": rule}), out=tmp_path)


UNEQUAL = {"epsilon": [4.0, 4.5, 5.0, 5.5, 20.0, 25.0]}


@pytest.mark.parametrize("rule", ["pfa", "pfa-plus"])
@pytest.mark.parametrize("reading", ["code", "paper"])
def test_pfa_takes_rows_of_public_clients_and_a_secret_sum_of_the_private_ones(summed, tmp_path, rule, reading):
    aggregate, models = {"rule": rule, "reading": reading, "split": "kmeans"}, set()
    for how in ("none", "masks"):
        made = summed(aggregate=aggregate, privacy=UNEQUAL, protect={"kind": how})
        history = run(made, out=tmp_path / how, page=False)
        models.add((tmp_path / how / "model.safetensors").read_bytes())
        both = rule == "pfa" and reading == "paper"
        assert [record["opened"] for record in history.rounds] == [2 if both else 3] * 4
        assert not any(record["refused"] for record in history.rounds)
    assert len(models) == 1


def test_a_public_clients_row_carries_all_the_noise_that_its_own_epsilon_asks_for(summed):
    made: Any = tacit.engine.assemble.build(
        summed(
            aggregate={"rule": "pfa", "split": "kmeans"}, privacy=UNEQUAL | {"colluding": 1}, protect={"kind": "masks"}
        )
    )
    plan, rounds = made.plan, made.experiment.train.rounds
    assert plan.groups.tolist() == [0, 0, 0, 0, 1, 2]
    for k, epsilon in enumerate(UNEQUAL["epsilon"]):
        event = made.algorithm.cost(made.population[k])
        least = min(UNEQUAL["epsilon"][:4]) if k < 4 else epsilon
        assert 0.9 * least < price.epsilon(((event, rounds),), delta=made.population.delta) <= least
        assert event.shares == (3 if k < 4 else 1)
    rows = [made.algorithm.groups[name] for name in made.population.names[4:]]
    assert [(type(row.seal), row.noise.fewest, row.noise.colluding) for row in rows] == [(Plain, 1, 0)] * 2
    assert type(made.algorithm.groups["client-0"].seal) is not Plain


def test_rows_beside_a_secret_sum_are_refused_where_all_are_public_and_at_sites(summed):
    equal = summed(aggregate={"rule": "pfa"}, privacy={"epsilon": 8.0})
    with pytest.raises(BadInput, match="no sum is left to hide"):
        tacit.engine.assemble.build(equal)
    with pytest.raises(Refused, match="public clients are rows beside a secret sum"):
        kind_of(equal).refuse_at_site(summed(aggregate={"rule": "pfa"}, protect={"kind": "masks"}))


def test_too_few_reports_leave_the_model_as_it_is_and_the_charge_stands(summed, tmp_path, monkeypatch):
    real = evaluate_module.receive_any

    def lost(raw):
        message = real(raw)
        return message if message.sender != "client-1" else type(message)("client-1", {}, {"failed": "no answer"})

    monkeypatch.setattr(evaluate_module, "receive_any", lost)
    history = run(summed(), out=tmp_path / "all")
    assert [record["opened"] for record in history.rounds] == [0] * 4
    assert "no answer" in history.rounds[0]["refused"]["client-1"]
    assert len({record["accuracy"] for record in history.rounds}) == 1
    assert history.guarantee.epsilon_max > 7.0
    assert len({entry["attempt"] for entry in history.ledger.entries()}) == 4  # one model, but four releases
    history = run(summed(privacy={"fewest_reports": 5}), out=tmp_path / "five")
    assert [record["opened"] for record in history.rounds] == [1] * 4


def test_clients_that_diverge_are_named_to_the_researcher_and_never_reach_the_model(summed, tmp_path):
    long = {"learning_rate": 3e38, "local_steps": 20, "rounds": 2}  # whichever rows the code's digest draws
    history = run(summed(train=long), out=tmp_path)
    assert history.rounds[0]["diverged"] == [f"client-{i}" for i in range(6)]
    assert history.rounds[0]["opened"] == 1
    assert all(torch.isfinite(tensor).all() for tensor in weights(tmp_path).values())


def test_a_secret_key_can_be_brought_along_unless_others_can_read_it(summed, tmp_path):
    secret, _ = keys.save(tmp_path / "keys", generate(bits=2048))
    experiment = summed(train={"rounds": 1}, protect={"kind": "paillier", "key": str(secret)})
    assert run(experiment, out=tmp_path / "run").rounds[0]["opened"] == 1
    secret.chmod(0o644)
    with pytest.raises(KeyRefused, match="read by others"):
        run(experiment, out=tmp_path / "again")


@pytest.fixture(scope="module")
def safe_prime(tmp_path_factory):
    """The file of a key that can be split."""
    return keys.save(tmp_path_factory.mktemp("keys"), safe_prime_key())[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"privacy": {"colluding": 1}, "threshold": 4, "rounds": 2},
        {"privacy": {"epsilon": [1.0, 1.0, 1.0, 8.0, 8.0, 8.0], "groups": 2}, "threshold": 6, "rounds": 1},
    ],
)
def test_a_split_key_gives_the_same_model_and_says_whose_shares_open(summed, tmp_path, safe_prime, settings):
    threshold, train = settings.pop("threshold"), {"rounds": settings.pop("rounds")}
    split = {"kind": "paillier", "key": str(safe_prime), "threshold": threshold}
    run(summed(train=train, **settings), out=tmp_path / "plain")
    history = run(summed(train=train, protect=split, **settings), out=tmp_path / "split")
    assert same_model(tmp_path / "plain", tmp_path / "split")
    kept = f"fewer than {threshold} of the 6 clients give the server their share of the key"
    lying = " (at most 1, if it asks for more than one sum of a round)" if threshold < 6 else ""
    assert kept + lying in history.guarantee.assumes
    assert not any("no client's key" in assumption for assumption in history.guarantee.assumes)
    assert history.guarantee.also[0].adversary == f"the server once it has {threshold} clients' shares of the key"
    assert ("the noise and the shares of the key of 1 other client" in history.sentence) == (
        "colluding" in str(settings)
    )


def test_a_key_that_cannot_be_split_is_refused(summed, tmp_path):
    secret, _ = keys.save(tmp_path / "keys", generate(bits=2048))
    with pytest.raises(KeyRefused, match=r"Only a key of shape safe-prime can be split.*tacit keys DIR --new"):
        run(summed(protect={"kind": "paillier", "key": str(secret), "threshold": 4}), out=tmp_path / "run")


def test_colluders_who_could_open_single_reports_or_two_sums_are_refused(summed):
    def build(threshold, colluding):
        experiment = summed(privacy={"colluding": colluding}, protect=PAILLIER | {"threshold": threshold})
        return kind_of(experiment).plan(experiment, six, size=10)

    six = tacit.engine.assemble.clients(summed())[2]
    for threshold in range(2, 7):
        for colluding in range(6):
            honest = 2 * threshold - 6 - colluding  # in any two groups of t holders
            if honest >= 1:
                build(threshold, colluding)
            else:
                with pytest.raises(BadInput, match=f"got {threshold}: with fewer a server"):
                    build(threshold, colluding)


def test_shares_for_fewer_reports_or_with_colluders_are_larger(summed):
    def share(**privacy):
        return tacit.engine.assemble.build(summed(privacy=privacy)).plan.noises[0].share_variance

    assert share(fewest_reports=3) == pytest.approx(2 * share(), rel=1e-2)
    assert share(colluding=3) == pytest.approx(2 * share(), rel=1e-2)


def test_the_traffic_is_that_of_the_ciphertexts(summed, tmp_path):
    experiment = summed(train={"rounds": 1}, protect=PAILLIER)
    history = run(experiment, out=tmp_path)
    seal = tacit.engine.assemble.build(experiment).algorithm.groups["client-0"].seal
    ciphertexts = 6 * seal.lanes.numbers * 512
    around = 6 * (1000 + proof_bytes(seal.public))  # headers, signatures and proofs
    assert ciphertexts < history.rounds[0]["uplink_bytes"] < ciphertexts + around


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"privacy": {"colluding": 6}}, "colluding < fewest"),
        ({"privacy": {"fewest_reports": 7}}, "fewest_reports <= 6"),
        ({"privacy": {"fewest_reports": 0}}, "fewest_reports to be a whole number of at least 1"),
        ({"privacy": {"epsilon": float("inf")}}, "no noise to derive"),
        ({"privacy": {"unit": "record"}}, "set train.local_steps = 1"),
        ({"privacy": {"noise": "laplace"}}, "skellam"),
        ({"privacy": {"groups": 3}}, "groups"),
        ({"privacy": {"groups": 1}, "aggregate": {"rule": "public-only"}}, "compares two groups"),
        ({"privacy": {"groups": 2}, "train": {"clients_per_round": 4}}, "fewest_reports"),
        ({"protect": {"kind": "paillier", "key": {"bits": 1024}}}, r"protect\.key\.bits"),
        ({"protect": {"key": {"bits": 2048}}}, "paillier"),
        ({"protect": {"threshold": 2}}, "paillier"),
        ({"protect": PAILLIER | {"threshold": 0}}, "threshold to be a whole number of at least 1"),
        (
            {"protect": PAILLIER | {"threshold": 4, "key": {"shape": "short-exponent"}}},
            "Only safe-prime keys can be split",
        ),
        ({"protect": PAILLIER | {"threshold": 3}}, "threshold of 4 to 6 for 6 clients, got 3"),
        ({"protect": PAILLIER | {"threshold": 7}}, "threshold of 4 to 6 for 6 clients, got 7"),
        (
            {"protect": PAILLIER | {"threshold": 3}, "privacy": {"colluding": 3}},
            "with the help of privacy.colluding = 3",
        ),
        (
            {"protect": PAILLIER | {"threshold": 60}, "data": {"clients": 101, "examples_per_client": 10}},
            "2 to 100 clients, and there are 101: set protect.threshold = 1",
        ),
        ({"privacy": {"bits": 10}}, "bits"),
        ({"protect": PAILLIER, "privacy": {"fewest_reports": 1}}, "2 or more"),
        ({"privacy": {"sampler": "poisson"}}, "sampler"),
        ({"privacy": {"kind": "local"}, "protect": PAILLIER}, 'privacy.kind = "distributed"'),
        ({"privacy": {"kind": "local", "bits": 8}}, "distributed"),
        ({"privacy": {"kind": "local", "colluding": 1}}, "distributed"),
    ],
)
def test_what_would_break_the_promise_or_have_no_effect_is_refused(summed, tmp_path, change, message):
    with pytest.raises(BadInput, match=message):
        run(summed(**change), out=tmp_path)


def test_what_single_reports_of_all_runs_come_to_counts_each_of_them_with_its_own_share_alone(summed, tmp_path):
    shared = {"ledger": str(tmp_path / "ledger.db"), "delta_share": 0.5, "noise_multiplier": 8.0, "epsilon": 50.0}
    runs = [run(summed(privacy=shared, train={"rounds": 1}), out=tmp_path / name) for name in ("one", "two")]
    (first,), (second,) = (run.guarantee.also for run in runs)
    assert second.others.runs == 1
    assert second.others.epsilon > second.epsilon_max + first.epsilon_max
    assert first.epsilon_max > 2 * runs[0].guarantee.epsilon_max
