"""Malicious clients of a simulation: what they do, whom they leave alone, what is said about them, and where they are refused."""

import dataclasses
from functools import partial
from importlib import import_module

import pytest
import torch

import tacit
from tacit.deploy.operate.init import deployable
from tacit.deploy.site.consent import departures, read_experiment
from tacit.engine import trainers
from tacit.engine.assemble import build
from tacit.engine.malicious import Among, adaptive, trigger_of, turned
from tacit.engine.stacked import stacked
from tacit.errors import BadInput, Refused
from tacit.lab.audit.mechanism import prepared
from tacit.random import seeded
from tacit.training.sgd import workspace
from tacit.wire import pack, unpack

KINDS = ["replacement", "dba", "edge-case", "adaptive"]
PRIVACY = {
    "none": {"kind": "none"},
    "local": {"kind": "local", "epsilon": 5.0},
    "local, client level": {"kind": "local", "unit": "client", "epsilon": 50.0},
    "central": {"kind": "central", "epsilon": 5.0, "clip": 0.5},
}


def experiment(*, attack=None, privacy="none", **more):
    values = {
        "data": {"clients": 10, "examples_per_client": 60},
        "train": {"rounds": 2, "local_steps": 2, "sampling_rate": 0.2},
        "privacy": PRIVACY[privacy],
        "run": {"workers": 1},
    }
    attacked = {} if attack is None else {"attack": attack}
    return tacit.Experiment(**{key: values[key] | more.get(key, {}) for key in values} | attacked)


def sent(parts, algorithm, *, round=0):
    """What every client releases in a round from the first model, all with the streams of one seed."""
    work = workspace(parts.model, clip=parts.plan.training_clip, physical_batch=64)
    everybody = [parts.population[i] for i in range(len(parts.population))]
    received = algorithm.broadcast(algorithm.init(parts.params), everybody, round=round)
    told = dataclasses.replace(received, facts=received.facts | {"round": round})
    messages = []
    for client in everybody:
        trained = algorithm.train(work, told, client, partial(seeded(3), client.id))
        messages.append(algorithm.release(trained, client, received))
    return messages


def honest_twin(parts):
    """The algorithm as it is without malicious clients."""
    return dataclasses.replace(parts.algorithm, local=parts.algorithm.local.honest)


def length(message):
    return float(message.tensors["update"].norm())


def test_a_run_in_which_nobody_is_malicious_leaves_the_same_model_bit_for_bit(tmp_path, monkeypatch):
    chosen = experiment(privacy="local")
    first = tacit.run(chosen, out=tmp_path / "absent", page=False)
    parts = import_module("tacit.engine.assemble")
    there = build(experiment(privacy="local", attack={}))
    scene = dataclasses.replace(there.attack[0], malicious=())
    plain = parts.assemble

    def with_nobody(*args, **kwargs):
        made = plain(*args, **kwargs)
        local = Among(made.algorithm.local, there.attack[1], scene)
        return dataclasses.replace(made, algorithm=dataclasses.replace(made.algorithm, local=local))

    monkeypatch.setattr(parts, "assemble", with_nobody)
    tacit.run(chosen, out=tmp_path / "nobody", page=False)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("absent", "nobody"))
    assert one == other
    assert "backdoor_accuracy" not in first.rounds[-1]
    assert "attack" not in first.summary
    assert "attack" not in chosen.toml()


@pytest.mark.parametrize("privacy", PRIVACY)
def test_an_honest_client_sends_the_same_whoever_is_malicious_and_a_malicious_one_something_else(privacy):
    parts = build(experiment(privacy=privacy, attack={"clients": 0.2}))
    bad = set(parts.attack[0].malicious)
    assert len(bad) == 2
    for index, (one, other) in enumerate(
        zip(sent(parts, parts.algorithm), sent(parts, honest_twin(parts)), strict=True)
    ):
        assert torch.equal(one.tensors["update"], other.tensors["update"]) == (index not in bad)


def test_who_is_malicious_follows_from_the_seed_all_are_honest_before_their_first_round_and_then_boost_their_updates():
    parts = build(experiment(attack={"start": 1}))
    other = build(experiment(attack={"kind": "dba", "clients": 1}))
    assert other.attack[0].malicious == parts.attack[0].malicious
    another = build(experiment(attack={"clients": 0.3}, run={"seed": 1, "workers": 1}))
    assert another.attack[0].malicious != build(experiment(attack={"clients": 0.3})).attack[0].malicious
    (bad,) = parts.attack[0].malicious
    for round, same in ((0, True), (1, False)):
        pair = (sent(parts, algorithm, round=round)[bad] for algorithm in (parts.algorithm, honest_twin(parts)))
        assert torch.equal(*(message.tensors["update"] for message in pair)) == same
    once, usual = (build(experiment(attack={"clients": 2, **more})) for more in ({"boost": 1.0}, {}))
    bad = once.attack[0].malicious[0]
    one, other = (sent(parts, parts.algorithm)[bad].tensors["update"] for parts in (once, usual))
    assert torch.allclose(other, 5 * one, rtol=1e-4, atol=1e-7)  # by the number of clients for each malicious one


def test_a_malicious_client_goes_through_the_clip_of_central_dp_whatever_it_sends():
    parts = build(experiment(privacy="central", attack={"boost": 1e9}))
    (bad,) = parts.attack[0].malicious
    messages = sent(parts, parts.algorithm)
    assert length(messages[bad]) <= 0.5 * (1 + 1e-5)
    raw = dataclasses.replace(messages[bad], tensors={"update": messages[bad].tensors["update"] * 1e9})
    summing = parts.algorithm.collect(parts.algorithm.init(parts.params), round=0)
    summing.add(raw)
    assert float(summing.total.value().norm()) <= 0.5 * (1 + 1e-5)


def test_under_local_dp_a_malicious_client_may_skip_its_noise_and_states_it_all_the_same():
    parts = {
        noise: build(experiment(privacy="local", attack={"noise": noise, "boost": 1.0})) for noise in ("own", "none")
    }
    (bad,) = parts["own"].attack[0].malicious
    own, none = (sent(one, one.algorithm) for one in parts.values())
    assert none[bad].facts["noise_std"] == pytest.approx(own[bad].facts["noise_std"])
    assert none[bad].facts["noise_std"] == pytest.approx(none[bad - 1].facts["noise_std"])
    expected = own[bad].facts["noise_std"] * own[bad].tensors["update"].numel() ** 0.5
    assert length(own[bad]) > 0.8 * expected
    plain = build(experiment(attack={"boost": 1.0}))
    assert length(none[bad]) == pytest.approx(length(sent(plain, plain.algorithm)[bad]), rel=1e-4)


def test_the_parts_of_a_distributed_trigger_are_the_whole_which_is_measured_on_rows_of_other_classes():
    parts = build(experiment(attack={"kind": "dba"}))
    x, y = parts.backdoor_rows
    assert len(x) == int((parts.dataset.test_y != 0).sum())
    assert set(y.tolist()) == {0}
    assert float(x[:, :, -2:, -2:].min()) == 1.0
    whole = trigger_of(parts.dataset, None)
    cuts = [whole.part(number, 4).places.any(0) for number in range(4)]
    assert torch.equal(sum(cut.int() for cut in cuts), whole.places.any(0).int())
    assert torch.equal(whole.part(5, 4).places, whole.part(1, 4).places)
    rows = torch.zeros(3, 1, 8, 8)
    assert whole.on(rows)[:, :, -2:, -2:].min() == 1.0
    assert float(whole.on(rows).sum()) == 3 * 4
    assert float(rows.sum()) == 0


@pytest.mark.parametrize(
    ("more", "bound"),
    [
        ({"privacy": "central"}, 0.5),
        ({"privacy": "local, client level"}, 1.0),
        ({"aggregate": {"rule": "norm-bound", "bound": 0.3}}, 0.3),
        ({}, None),
    ],
)
def test_an_attacker_that_knows_the_clip_uses_all_of_it_and_no_more(more, bound):
    chosen = experiment(attack={"kind": "adaptive"}, privacy=more.get("privacy", "none"))
    if "aggregate" in more:
        chosen = tacit.Experiment(**chosen.model_dump(exclude_none=True) | more)
    scene = build(chosen).attack[0]
    assert scene.bound == bound
    found = adaptive().update(lambda client, start: torch.ones(4) + start, torch.zeros(4), "own", "bad", scene)
    assert float(found.norm()) == pytest.approx(bound or 2.0)


def test_an_edge_case_is_a_turned_picture_that_the_target_is_wanted_for():
    parts = build(experiment(attack={"kind": "edge-case", "target": "7", "source": 1, "poison": 1.0}))
    scene, malice = parts.attack
    x, y = parts.backdoor_rows
    assert set(y.tolist()) == {7}
    assert torch.equal(x, turned(parts.dataset.test_x[parts.dataset.test_y == 1]))
    client = parts.population[scene.malicious[0]]
    rows, labels = malice.rows(client, 0, scene)
    ones = turned(scene.x[scene.y == 1])
    assert labels.tolist() == [7] * client.size
    assert all(any(torch.equal(row, one) for one in ones) for row in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_every_attack_runs_through_the_loop_and_leaves_both_accuracies_by_round(kind, tmp_path):
    history = tacit.run(
        experiment(attack={"kind": kind, "target": "4", "clients": 3}), out=tmp_path / "run", page=False
    )
    assert [0 <= record["backdoor_accuracy"] <= 1 and "accuracy" in record for record in history.rounds] == [True] * 2
    assert history.summary["attack"]["kind"] == kind
    assert len(history.summary["attack"]["malicious"]) == 3
    assert history.summary["attack"]["badge"] == "not covered by ε"
    assert history.records()[-1]["backdoor_accuracy"] == history.rounds[-1]["backdoor_accuracy"]
    assert any("3 of 10 clients are malicious" in note for note in history.summary["notes"])


def test_a_stopped_run_goes_on_to_the_same_model_with_clients_side_by_side(tmp_path):
    chosen = experiment(privacy="local", attack={"kind": "dba", "start": 1, "noise": "none"}, train={"rounds": 3})
    whole = tacit.run(chosen, out=tmp_path / "whole", page=False)

    def stop(record):
        if record["round"] == 1:
            raise KeyboardInterrupt

    aside = chosen.model_copy(update={"run": chosen.run.model_copy(update={"workers": 2})})
    with pytest.raises(KeyboardInterrupt):
        tacit.run(aside, out=tmp_path / "stopped", page=False, observe=stop)
    again = tacit.run(aside, out=tmp_path / "stopped", page=False, resume=True)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped"))
    assert one == other
    assert [r["backdoor_accuracy"] for r in whole.rounds] == [r["backdoor_accuracy"] for r in again.rounds]


def test_replacement_wins_against_the_mean_and_loses_against_the_median_and_a_bound(tmp_path):
    reached = {}
    for rule, options in (("mean", {}), ("median", {}), ("norm-bound", {"bound": 0.2})):
        chosen = experiment(
            attack={"poison": 1.0, "boost": 30.0}, train={"rounds": 4, "local_steps": 10, "learning_rate": 0.5}
        )
        values = chosen.model_dump(exclude_none=True) | {"aggregate": {"rule": rule, **options}}
        run = tacit.run(tacit.Experiment(**values), out=tmp_path / rule, page=False)
        reached[rule] = run.summary["attack"]["backdoor_accuracy"]
    assert reached["mean"] > 0.8
    assert max(reached["median"], reached["norm-bound"]) < 0.4


def test_the_epsilon_of_an_attacked_run_is_said_to_be_about_the_honest(tmp_path):
    for privacy in ("local", "central"):
        history = tacit.run(experiment(privacy=privacy, attack={}), out=tmp_path / privacy, page=False)
        assert history.sentence.startswith("For each of the 9 honest clients (what the 1 malicious ones")
        assert "the adversary's own" in history.summary["guarantee"]["whom"]
        assert history.guarantee.epsilon_max <= 5.0


def test_malicious_clients_are_part_of_every_release_and_of_the_name_of_its_attempt():
    found = [build(experiment(privacy="local", **more)).releases for more in (
        {}, {"attack": {}}, {"attack": {"target": 3}}, {"attack": {"noise": "none"}}, {"attack": {"start": 1}}
    )]  # fmt: skip
    assert len({releases.attempt("state") for releases in found}) == len(found)
    assert len({releases.common for releases in found}) == len(found)


@pytest.mark.parametrize("privacy", ["none", "local", "central"])
def test_beside_a_stack_malicious_clients_answer_in_their_turn(privacy):
    parts = dataclasses.replace(build(experiment(privacy=privacy, attack={"clients": 2})), together=4)
    cohort = [9, 0, 1, 2, *parts.attack[0].malicious, 3]
    cohort = list(dict.fromkeys(cohort))
    clients = [parts.population[index] for index in cohort]
    message = pack(parts.algorithm.broadcast(parts.algorithm.init(parts.params), clients, round=0))
    for one, other in zip(stacked(parts)(message, 0, cohort), trainers.alone(parts)(message, 0, cohort), strict=True):
        a, b = unpack(one[0]), unpack(other[0])
        assert a.sender == b.sender
        assert float((a.tensors["update"] - b.tensors["update"]).norm()) <= 2e-3 * float(b.tensors["update"].norm())


@pytest.fixture
def table(tmp_path):
    """An experiment on a csv file with a numeric and a categorical column."""
    lines = ["age,ward,ill"] + [f"{20 + i % 60},{'ab'[i % 2]},{'no' if i % 3 else 'yes'}" for i in range(300)]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n", "utf-8")
    data = {"name": "csv", "path": str(tmp_path / "rows.csv"), "label": "ill", "classes": ["no", "yes"]}
    data |= {"numeric": {"age": [0, 100]}, "categorical": {"ward": ["a", "b"]}, "clients": 5, "partition": "iid"}
    return lambda trigger: tacit.Experiment(
        data=data,
        train={"rounds": 1, "local_steps": 1},
        attack={"target": "yes"} | ({} if trigger is None else {"trigger": trigger}),
    )


def test_the_trigger_of_a_table_is_a_declared_value_of_a_column(table):
    parts = build(table({"ward": "b", "age": 90}))
    x, y = parts.backdoor_rows
    assert set(y.tolist()) == {1}
    assert torch.allclose(x, torch.tensor([0.9, 0.0, 1.0]).expand_as(x))
    ages = build(table({"age": 250})).backdoor_rows[0]
    assert set(ages[:, 0].tolist()) == {1.0}


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        (None, "Say by which columns"),
        (3, "Say by which columns"),
        ({"agee": 3}, "Did you mean 'age'"),
        ({"ward": "c"}, "has no value 'c'. There are: a, b."),
        ({"age": "old"}, r"attack\.trigger\.age"),
    ],
)
def test_a_trigger_that_a_table_cannot_carry_is_refused(table, trigger, words):
    with pytest.raises(BadInput, match=words):
        build(table(trigger))


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        ({"clients": 0.0}, r"attack\.clients to be a whole number of at least 1 or a number above 0 and below 1"),
        ({"clients": 10}, "at least one honest client"),
        ({"start": 2}, r"attack\.start < train\.rounds = 2"),
        ({"target": "dog"}, "'dog' is no class of digits. There are: 0, 1"),
        ({"kind": "replacment"}, "Did you mean 'replacement'"),
        ({"bost": 3.0}, r"Did you mean 'attack\.boost'"),
        ({"trigger": 8}, "a square within pictures of 8 x 8"),
        ({"trigger": {"age": 1}}, "These rows are pictures"),
        ({"kind": "dba", "parts": 1}, r"attack\.parts >= 2"),
        ({"kind": "edge-case", "source": "0"}, "no class beside the target"),
        ({"kind": "edge-case", "trigger": 2}, r"leave out attack\.trigger"),
        ({"noise": "none"}, r"attack\.noise = \"none\" is for"),
        ({"kind": "tacit.algorithms.rules.mean:mean"}, r"to make a tacit\.engine\.malicious\.Malice"),
    ],
)
def test_an_attack_that_cannot_be_is_refused_in_one_sentence(attack, words):
    with pytest.raises(BadInput, match=words):
        build(experiment(attack=attack))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"privacy": {"kind": "distributed", "epsilon": 5.0}}, "under secret sums"),
        (
            {"privacy": {"kind": "local", "epsilon": 5.0, "ledger": "a.db", "delta_share": 0.1}},
            "leave out privacy.ledger",
        ),
        ({"privacy": {"kind": "local", "epsilon": 5.0}, "audit": {"canaries": 50}}, r"leave out audit\.canaries"),
    ],
)
def test_where_malicious_clients_cannot_be_simulated_they_are_refused(more, words):
    with pytest.raises(BadInput, match=words):
        tacit.Experiment(**{"attack": {}} | more)


def test_in_a_deployment_and_under_an_audit_there_are_no_malicious_clients():
    chosen = experiment(privacy="local", attack={})
    rows = tacit.Dataset(torch.rand(40, 1, 4, 4).numpy(), torch.rand(40).numpy(), classes="numbers", test_share=0.5)
    numbers = {"task": {"kind": "regression"}, "data": {"clients": 2}, "train": {"rounds": 1}, "attack": {}}
    with pytest.raises(BadInput, match="A backdoor leads to a class"):
        tacit.run(tacit.Experiment(**numbers), data=rows)
    with pytest.raises(BadInput, match="in a deployment nobody is on purpose"):
        deployable(chosen, "3", trial=True)
    with pytest.raises(BadInput, match=r"leave out \[attack\]"):
        prepared(chosen)
    with pytest.raises(Refused, match="in a deployment nobody is on purpose"):
        read_experiment(chosen.toml())
    assert departures(chosen)["attack.kind"] == "replacement"
