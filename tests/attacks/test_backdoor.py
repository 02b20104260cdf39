"""`tacit attack backdoor`, and what attacks reach as columns of a comparison."""

import csv
import dataclasses
import json
import math
import re

import pytest
import ready
from compare.conftest import made
from terminal import compare as command

from tacit.cli.app import attack_options
from tacit.engine.assemble import build
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab import attacks
from tacit.lab.attacks import chosen, with_columns
from tacit.lab.attacks.backdoor import ATTACKED, CLIP_ONLY, NOBODY, untouched, variants
from tacit.lab.compare import table
from tacit.lab.compare.grid import expand
from tacit.report.page import write_page

__all__ = ["made"]

SMALL = {
    "data": {"clients": 5, "examples_per_client": 20},
    "train": {"rounds": 2, "local_steps": 1, "sampling_rate": 0.5},
    "run": {"seed": 4},
}
LOCAL = SMALL | {"privacy": {"kind": "local", "epsilon": [1, 2, 3, 4, 5], "clip": 0.7}}
COUNTING = "foreign_attacks:counting"


def test_an_experiment_is_attacked_beside_the_clip_alone_and_beside_nobody_malicious(tmp_path):
    with ready.workers():
        found = attacks.attack("backdoor", Experiment(**LOCAL), out=tmp_path, options={"seeds": 1}, jobs=1)
    shown = [(one.of, one.name) for one in found.estimates]
    both = ("main accuracy", "backdoor accuracy")
    assert shown == [
        *((ATTACKED, name) for name in both),
        *((CLIP_ONLY, name) for name in both),
        *((NOBODY, name) for name in both),
    ]
    assert all(0 <= one.value <= 1 for one in found.estimates)
    assert [len(line.x) for line in found.plots[0].lines] == [2] * 5
    folder = tmp_path / "attack-backdoor" / "runs" / "attacked" / "seed-4"
    reached = json.loads((folder / "summary.json").read_text("utf-8"))["attack"]["backdoor_accuracy"]
    assert untouched(Experiment(**LOCAL, attack={}), folder) == pytest.approx(reached)
    record = json.loads((tmp_path / "attack-backdoor.json").read_text("utf-8"))
    assert record["badge"] == "not covered by ε"
    assert attacks.attack("backdoor", Experiment(**LOCAL), out=tmp_path, options={"seeds": 1}) == found


def test_clip_only_is_the_same_run_with_the_same_clip_and_rule_and_all_but_no_noise():
    found = dict(variants(Experiment(**LOCAL), 2))
    attacked, clip_only, nobody = (found[name][0] for name in (ATTACKED, CLIP_ONLY, NOBODY))
    assert clip_only.privacy.clip == attacked.privacy.clip == 0.7
    assert clip_only.aggregate.rule == "random-effects"
    assert clip_only.attack == attacked.attack
    assert nobody.attack is None
    assert nobody.privacy == attacked.privacy
    noise = [build(one).plan.multipliers for one in (attacked, clip_only)]
    assert noise[1].max() * 20 < noise[0].min()
    assert [one.run.seed for one in found[ATTACKED]] == [4, 5]
    assert [name for name, _ in variants(Experiment(**SMALL), 1)] == [
        ATTACKED,
        NOBODY,
    ]  # without a promise there is no noise


def test_what_cannot_be_attacked_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(BadInput, match="'dog' is no class"):
        attacks.attack("backdoor", Experiment(**SMALL, attack={"target": "dog"}), out=tmp_path)
    with pytest.raises(BadInput, match="under secret sums"):
        attacks.attack(
            "backdoor", Experiment(**SMALL | {"privacy": {"kind": "distributed", "epsilon": 3.0}}), out=tmp_path
        )
    with pytest.raises(BadInput, match=r"with\.seeds"):
        attacks.load("backdoor", seeds=0)
    assert not list(tmp_path.rglob("summary.json"))


@pytest.fixture
def rows(made):
    """Two cells of three seeds: in the first one malicious clients reach .5 on average, in the second nobody is malicious."""
    attacked, honest = made({"aggregate.rule": ["mean", "median"]}, unit=lambda number: None)
    for seed, run in enumerate(attacked.runs):
        for record in run.rounds:
            record["backdoor_accuracy"] = 0.5 + 0.1 * (seed - 1)
    return [attacked, honest]


def test_a_backdoor_is_a_column_with_its_interval_over_seeds_and_a_note_that_no_epsilon_covers_it(rows, tmp_path):
    assert rows[0].backdoor.mean == pytest.approx(0.5)
    assert rows[0].backdoor.interval == pytest.approx(4.3027 * 0.1 / math.sqrt(3), rel=1e-3)
    assert rows[1].backdoor is None
    column = table.cells(rows).texts()["backdoor accuracy*"]
    assert column[0].startswith("0.5000 ± 0.248")
    assert column[1] == "–"
    assert any("not covered by ε" in note and "norm-bound" in note for note in table.notes(rows))
    table.write(tmp_path, rows)
    with (tmp_path / "table.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["backdoor_accuracy_last_10"] for line in lines] == ["0.5", ""]
    assert not [words for words in (*table.cells(rows[1:]).texts(), *table.notes(rows[1:])) if "attack" in words]
    assert "backdoor_accuracy_last_10" not in table.record(rows)[1]


def test_any_other_attack_is_a_column_of_what_it_found_first(rows, tmp_path):
    row = dataclasses.replace(rows[1], cell=expand(SMALL, {}, seeds=2)[0])
    (found,) = with_columns([row], [COUNTING], out=tmp_path, jobs=1, tell=lambda words: None)
    (name,) = found.attacked
    assert name == "foreign_attacks-counting all times"
    assert found.attacked[name].mean == 1.0
    assert len(list((tmp_path / "attacks").rglob("attack-*.json"))) == 2


def test_the_options_of_an_attack_are_said_with_its_name_and_reach_it(rows, tmp_path):
    row = dataclasses.replace(rows[1], cell=expand(SMALL, {}, seeds=1)[0])
    said = attack_options([f"{COUNTING}.models=7"], COUNTING)
    assert said == attack_options(["models=7"], COUNTING) == {COUNTING: {"models": 7}}
    (found,) = with_columns([row], [COUNTING], out=tmp_path, jobs=1, tell=lambda words: None, options=said)
    (file,) = (tmp_path / "attacks").rglob("attack-*.json")
    assert json.loads(file.read_text("utf-8"))["options"] == {"models": 7}
    (column,) = found.attacked.values()
    assert (column.mean, column.span) == (1.0, (1.0, 8.0))  # of one seed: the attack's own interval
    assert any("the attacks' own" in note for note in table.notes([dataclasses.replace(found, runs=found.runs[:1])]))


@pytest.mark.parametrize(
    ("attack", "words", "sentence"),
    [
        ("backdoor,property", ["classes=[3]"], "--with NAME.key=value"),
        ("membership", ["property.classes=[3]"], "does not name"),
        ("property", ["property.clases=[3]"], "Did you mean 'with.classes'"),
        ("property", ["property.looks=0"], "looks"),
        ("property", ["looks"], "--with key=value"),
        ("backdoor", ["backdoor.seeds=3"], "--set attack.kind"),
        ("inversion", [], "levels of epsilon of its own"),
        ("bakdoor", [], "Did you mean 'backdoor'"),
        ("backdoor,backdoor", [], "each attack of --attack once"),
    ],
)
def test_options_that_no_attack_has_are_refused_before_anything_is_compared(attack, words, sentence):
    with pytest.raises(BadInput, match=re.escape(sentence)):
        chosen(attack, attack_options(words, attack))
    assert (chosen(" backdoor "), chosen(None)) == (["backdoor"], [])


def test_comparing_under_attack_makes_clients_malicious(tmp_path, capsys):
    settings = ["data.clients=5", "data.examples_per_client=20", "train.rounds=2", "train.local_steps=1"]
    words = {"vary": ["privacy.kind=none"], "settings": settings, "seeds": 1, "out": tmp_path / "x"}
    with ready.workers():
        code = command("digits", **words, resume=False, force=False, jobs=1, as_json=True, attack="backdoor")
    (cell,) = json.loads(capsys.readouterr().out)
    assert code == 0
    assert 0 <= cell["backdoor_accuracy_last_10"] <= 1
    (run,) = (tmp_path / "x" / "runs").rglob("summary.json")
    write_page([run.parent], tmp_path / "one.html")
    assert "backdoor_accuracy" in (tmp_path / "one.html").read_text("utf-8")
    summary = json.loads(run.read_text("utf-8"))
    run.write_text(json.dumps(summary | {"attack": {"kind": "replacement"}}), "utf-8")
    with pytest.raises(BadInput, match="is damaged"):
        write_page([run.parent], tmp_path / "one.html")
