"""Runs whose unit is a person: who is drawn, what is promised and charged, and what does not go with it."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOptionalMemberAccess=false
import json
import math

import dp_accounting
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tacit
from tacit.engine.assemble import build
from tacit.engine.run_files import read
from tacit.errors import BadInput
from tacit.lab.attacks import attack
from tacit.lab.audit.mechanism import audit, prepared
from tacit.lab.audit.run import audit_run
from tacit.lab.stats import stats
from tacit.privacy.accounting import price
from tacit.privacy.ledger.reader import accounts
from tacit.privacy.local import SampledGaussian
from tacit.report.plan import of_experiment

PLACES, PERSONS, DOUBT = ("east", "north", "south", "west"), 15, 1e-6
RELATION = "add or remove one person at this client, with all rows"
KINDS = {
    "local": {"privacy": {"kind": "local"}, "train": {"local_steps": 3, "sampling_rate": 0.3}},
    "central": {"privacy": {"kind": "central"}, "train": {"local_steps": 1}},
    "distributed": {"privacy": {"kind": "distributed"}, "train": {"local_steps": 1}},
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Of each place 15 persons with 1 to 6 rows each."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("rows") / "rows.csv"
    lines = ["who,place,age,dose,ill"]
    for place in PLACES:
        for k in range(PERSONS):
            for _ in range(1 + k % 6):
                a, b = rng.normal(size=2).round(4)
                lines.append(f"{place}-{k},{place},{a},{b},{int(a + b > 0)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def experiment(rows, kind="local", **changes):
    data = {"name": "csv", "path": str(rows), "label": "ill", "classes": ["0", "1"], "client_column": "place"}
    data |= {"person": "who", "numeric": {"age": [-3, 3], "dose": [-3, 3]}, "test_share": 0}
    values = {
        "data": data,
        "train": {"rounds": 4, "learning_rate": 0.5, **KINDS[kind]["train"]},
        "privacy": {"unit": "person", "epsilon": 3.0, "delta": 1e-3, "rows_per_person": 3, **KINDS[kind]["privacy"]},
        "run": {"workers": 1},
    }
    for key, value in changes.items():
        table, _, name = key.partition(".")
        values.setdefault(table, {})
        values[table] = values[table] | {name: value} if name else value
    said = {table: {k: v for k, v in one.items() if v is not None} for table, one in values.items()}
    return tacit.Experiment(**said)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_promises_each_person_what_dp_sgd_of_as_many_records_would_promise_a_record(rows, tmp_path, kind):
    asked = experiment(rows, kind)
    parts, history = build(asked), tacit.run(asked, out=tmp_path / "run", page=False)
    assert parts.population.sizes.tolist() == [PERSONS] * 4
    assert int(parts.population.rows.sum()) == len(rows.read_text().splitlines()) - 1
    promise = history.summary["guarantee"]
    assert (promise["unit"], promise["relation"]) == ("person", RELATION)
    assert f"person-level differential privacy: to {RELATION}" in history.sentence
    assert "all under one id" in history.sentence
    event = parts.cost(parts.population[0])
    if kind == "local":
        one = dp_accounting.PoissonSampledDpEvent(0.3, dp_accounting.GaussianDpEvent(parts.plan.multipliers[0]))
        assert event == dp_accounting.SelfComposedDpEvent(one, 3)
    assert {one.unit for one in accounts(tmp_path / "run" / "ledger.db")} == {"person"}
    assert promise["epsilon"]["max"] == pytest.approx(price.epsilon(((event, 4),), delta=1e-3))
    assert promise["epsilon"]["max"] <= 3.0
    as_records = build(
        experiment(records_of(rows, tmp_path), kind, **{"privacy.unit": "record", "privacy.rows_per_person": None})
    )
    assert as_records.cost(as_records.population[0]) == event


def records_of(rows, folder):
    """The first row of each person: as many records as there are persons."""
    head, *lines = rows.read_text().splitlines()
    first = {line.partition(",")[0]: line for line in reversed(lines)}
    (folder / "first.csv").write_text("\n".join([head, *first.values()]) + "\n")
    return folder / "first.csv"


def test_what_a_round_is_divided_by_and_rules_weigh_by_is_persons(rows):
    central = build(experiment(rows, "central"))
    assert central.algorithm.records == dict.fromkeys(PLACES, float(central.plan.chosen.rates[0]) * PERSONS)
    local = build(experiment(rows))
    z = local.plan.multipliers
    noise = local.plan.update_noise(local.population.sizes, learning_rate=0.5)
    assert noise == pytest.approx(0.5 * z * np.sqrt(3) / (0.3 * PERSONS))
    assert local.algorithm.server.statistics.facts(local.population[0].size, 3.0)["examples"] == PERSONS


def opened(folder):
    return load_file(folder / "model.safetensors")


def test_secret_sums_of_persons_are_the_same_integers_however_they_are_hidden(rows, tmp_path):
    models = []
    for kind in ("none", "masks", "paillier"):
        key = {"protect.key": {"bits": 2048}} if kind == "paillier" else {}
        tacit.run(
            experiment(rows, "distributed", **{"protect.kind": kind, "train.rounds": 2} | key),
            out=tmp_path / kind,
            page=False,
        )
        models.append(opened(tmp_path / kind))
    for other in models[1:]:
        assert all(torch.equal(models[0][name], other[name]) for name in other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_goes_on_to_the_same_bits_for_the_same_charges(rows, tmp_path, kind):
    asked = experiment(rows, kind)
    tacit.run(asked, out=tmp_path / "whole", page=False)

    def killed(record):
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacit.run(asked, out=tmp_path / "cut", page=False, observe=killed)
    tacit.run(asked, out=tmp_path / "cut", page=False, resume=True)
    assert all(torch.equal(opened(tmp_path / "cut")[name], one) for name, one in opened(tmp_path / "whole").items())
    spent = [read(tmp_path / name).summary["guarantee"]["epsilon"] for name in ("whole", "cut")]
    assert spent[0] == spent[1]


def test_other_persons_of_the_same_rows_have_other_noise(rows, tmp_path):
    text = rows.read_text()
    other = tmp_path / "other.csv"
    other.write_text(text.replace("east-3,", "east-2,"))
    for kind in KINDS:
        keys = [build(experiment(path, kind)).population.row_digests[0].tobytes() for path in (rows, other)]
        assert keys[0] != keys[1]


def test_clients_whose_persons_are_one_batch_sum_to_what_each_would_alone(rows, tmp_path):
    models = []
    for at_once in (False, True):
        little = {"run.at_once": at_once, "train.rounds": 1, "privacy.noise_multiplier": 1e-3, "privacy.epsilon": 1e6}
        tacit.run(experiment(rows, "central", **little), out=tmp_path / f"{at_once}", page=False)
        models.append(torch.cat([one.flatten() for one in opened(tmp_path / f"{at_once}").values()]))
    assert float((models[0] - models[1]).norm()) < 0.05 * float(models[0].norm())
    secret = tacit.run(experiment(rows, "distributed", **{"run.at_once": True}), out=tmp_path / "secret", page=False)
    assert secret.summary["guarantee"]["epsilon"]["max"] <= 3.0


def test_clients_of_local_dp_are_trained_one_by_one_and_not_stacked(rows, tmp_path):
    with pytest.raises(
        BadInput, match="a person's rows are drawn and averaged before they are clipped, client by client"
    ):
        tacit.run(experiment(rows, **{"run.at_once": True}), out=tmp_path / "run", page=False)


def test_a_ledger_keeps_persons_apart_from_records_and_never_adds_them(rows, tmp_path):
    shared = {
        "privacy.ledger": str(tmp_path / "shared.db"),
        "privacy.delta_share": 0.1,
        "privacy.noise_multiplier": 3.0,
        "train.rounds": 1,
    }
    tacit.run(
        experiment(rows, **shared | {"privacy.unit": "record", "privacy.rows_per_person": None}),
        out=tmp_path / "a",
        page=False,
    )
    history = tacit.run(experiment(rows, **shared), out=tmp_path / "b", page=False)
    assert "Not included is 1 run of its ledger that promised per another unit." in history.sentence
    assert sorted({one.unit for one in accounts(tmp_path / "shared.db")}) == ["person", "record"]
    third = tacit.run(experiment(rows, **shared | {"seed.noise": 5}), out=tmp_path / "c", page=False)
    assert "Together with the 1 other run of its ledger that promises something per person" in third.sentence


def test_rules_own_models_and_held_back_rows_go_with_persons(rows, tmp_path):
    budgets = {"east": 8.0, "north": 1.0, "south": 1.0, "west": 1.0}
    for rule in ("pfa", "random-effects", "weighted", "krum"):
        more = {"privacy.epsilon": budgets, "aggregate.rule": rule, "train.rounds": 2}
        assert tacit.run(experiment(rows, **more), out=tmp_path / rule, page=False).summary["rounds"] == 2
    own = {"data.own_share": 0.4, "personal.kind": "mean-regularised", "train.rounds": 2}
    history = tacit.run(experiment(rows, **own), out=tmp_path / "own", page=False)
    assert history.summary["guarantee"]["unit"] == "person"
    assert (tmp_path / "own" / "personal").exists() or "personal" in json.dumps(history.summary)
    during = own | {"personal.when": "during", "personal.strength": 0.1}
    assert tacit.run(experiment(rows, **during), out=tmp_path / "during", page=False).summary["rounds"] == 2


def test_a_client_that_opts_out_is_promised_nothing_for_its_persons_and_the_others_keep_theirs(rows, tmp_path):
    budgets = {"east": math.inf, "north": 1.0, "south": 1.0, "west": 2.0}
    history = tacit.run(
        experiment(rows, **{"privacy.epsilon": budgets, "train.rounds": 2}), out=tmp_path / "run", page=False
    )
    assert "every client but east, which opted out and is promised nothing, person-level" in history.sentence
    assert history.summary["guarantee"]["epsilon"]["max"] <= 2.0


@pytest.mark.parametrize("kind", KINDS)
def test_canaries_are_persons_and_an_audit_of_a_run_accuses_nobody(rows, tmp_path, kind):
    planted = experiment(rows, kind, **{"audit.canaries": 4, "train.rounds": 6})
    tacit.run(planted, out=tmp_path / "run", page=False)
    found = audit_run(tmp_path / "run", level=DOUBT)
    assert found.unit == "person"
    assert not found.alarming


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_of_the_mechanism_measures_persons_and_finds_a_planted_fault(rows, kind):
    parts = prepared(
        experiment(rows, kind, **{"model.name": "mlp"})
    )  # whose many coordinates tell the grid's steps apart
    trainer = ["one by one"]
    assert not audit(parts, trainers=trainer, level=DOUBT).rejected
    assert audit(parts, trainers=trainer, level=DOUBT, plant="noise=0.66").rejected
    assert audit(parts, trainers=trainer, level=DOUBT, plant="clip").rejected


def test_an_audit_finds_that_rows_are_clipped_in_the_place_of_persons(rows, monkeypatch):
    def by_rows(client, drawn, stream, *, start=0):  # the fault: every row of a drawn person by itself
        offsets = client.persons.offsets
        return torch.cat([torch.arange(int(offsets[k]), int(offsets[k + 1])) for k in drawn] or [torch.zeros(0).long()])

    parts = prepared(experiment(rows, **{"model.name": "mlp"}))
    monkeypatch.setattr("tacit.training.sgd.drawn_rows", by_rows)
    assert audit(parts, trainers=["one by one"], level=DOUBT).rejected


def test_an_audit_finds_that_rows_are_drawn_in_the_place_of_persons(rows, monkeypatch):
    parts = prepared(experiment(rows, **{"model.name": "mlp"}))

    def sample(self, state, stream, size):  # the fault: a person of three rows, if any of them is drawn
        return state, stream.bernoulli(size, 1 - (1 - self.sampling_rate) ** 3)

    monkeypatch.setattr(SampledGaussian, "sample", sample)
    assert audit(parts, trainers=["one by one"], level=DOUBT).rejected


def test_nothing_is_promised_without_privacy_and_then_rows_are_rows(rows, tmp_path):
    plain = experiment(
        rows, **{"privacy.kind": "none", "privacy.epsilon": None, "train.sampling_rate": None, "train.batch_size": 8}
    )
    parts = build(plain)
    assert parts.population.persons is None
    assert parts.population.sizes.tolist() == parts.population.rows.tolist()


def test_records_are_promised_where_somebody_says_that_rows_are_meant(rows):
    meant = build(experiment(rows, **{"privacy.unit": "record", "privacy.rows_per_person": None}))
    assert meant.population.sizes.tolist() == meant.population.rows.tolist()
    assert "one record" in meant.promise.relation
    whole = build(
        experiment(rows, **{"privacy.unit": "client", "privacy.rows_per_person": None, "train.sampling_rate": None})
    )
    assert whole.population.persons is None


REFUSED = {
    "nobody said what is meant": (
        {"privacy.unit": None, "privacy.rows_per_person": None},
        'set privacy.unit = "person"',
    ),
    "no column": ({"data.person": None}, "has to know whose each row is"),
    "no rows": ({"privacy.rows_per_person": 0}, "rows_per_person to be a whole number of at least 1, got 0"),
    "half a row": ({"privacy.rows_per_person": 1.5}, "privacy.rows_per_person"),
    "rows of another unit": ({"privacy.unit": "record"}, 'is for privacy.unit = "person"'),
    "views": ({"train.views": 4}, "does not go with train.views"),
    "held-out rows": ({"data.held_out": 0.2}, "of a person nobody counts yet"),
    "statistics": ({"privacy.stats": ["age"]}, "of a person nobody counts yet"),
    "ranges": ({"data.numeric": {"age": "private", "dose": [0, 1]}}, "of a person nobody counts yet"),
    "malicious clients": ({"attack": {"kind": "replacement"}}, r"does not go with \[attack\]"),
    "another kind": ({"privacy.kind": "toy_kind:kind"}, "is for the kinds that draw and clip persons"),
    "half precision": ({"run.precision": "bfloat16"}, "is for plain SGD"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_with_persons_is_one_sentence_before_anything_is_charged(rows, tmp_path, case):
    changes, words = REFUSED[case]
    with pytest.raises(BadInput, match=words) as refused:
        tacit.run(experiment(rows, **changes), out=tmp_path / "run", page=False)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run" / "ledger.db").exists()


@pytest.mark.parametrize("unit", [None, "person"])
def test_rows_that_a_program_passes_must_name_their_persons_exactly_where_these_are_meant(unit, tmp_path):
    x, y = np.zeros((20, 2)), np.arange(20) % 2
    named = tacit.Dataset(x, y, persons=np.arange(20) // 2, classes=2, test_share=0)
    nobody = tacit.Dataset(x, y, classes=2, test_share=0)
    asked = tacit.Experiment(
        data={"clients": 2}, privacy={"kind": "local", "epsilon": 3.0, "delta": 1e-3, "unit": unit}
    )
    wrong, words = (nobody, "pass persons= to") if unit else (named, "for one row of a person")
    with pytest.raises(BadInput, match=words):
        tacit.run(asked, data=wrong, out=tmp_path / "run", page=False)


def test_statistics_and_attacks_by_name_are_refused_too(rows, tmp_path):
    with pytest.raises(BadInput, match="of a person nobody counts yet"):
        stats(experiment(rows), columns=["age"], out=tmp_path / "stats")
    with pytest.raises(BadInput, match="Attacks are about records"):
        attack("membership", experiment(rows), out=tmp_path)


def test_a_plan_says_persons(rows):
    row, *_ = of_experiment(experiment(rows))
    assert row["guarantee"] == f"person level, {RELATION}, Poisson-sampled Gaussian"
    for kind in ("central", "distributed"):
        row, *_ = of_experiment(experiment(rows, kind))
        assert row["guarantee"].startswith(f"person level, {RELATION}, ")
