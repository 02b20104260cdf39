"""Several runs on one page: entries, bands, and promises that are never mixed."""

import json
import shutil

import pytest
import ready
from report_runs import SMALL, changed

import tacit
from tacit.errors import BadInput
from tacit.lab.attacks import Estimate, Finding
from tacit.lab.grid import compare
from tacit.report.page import collect, write_page


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    place = tmp_path_factory.mktemp("compared") / "grid"
    with ready.workers():
        compare(SMALL, {"privacy.epsilon": [1.0, 4.0]}, seeds=2, out=place, jobs=1)
    return place


def test_a_comparison_writes_one_page_and_its_runs_none(compared):
    assert (compared / "report.html").stat().st_size > 10_000
    assert list(compared.glob("runs/**/report.html")) == []


def test_an_entry_is_a_cell_with_the_band_over_its_seeds(compared):
    data = collect([compared])
    assert [entry["label"] for entry in data["entries"]] == ["epsilon 1.0", "epsilon 4.0"]
    assert data["finished"]
    assert data["last"] == "last 6 rounds"
    for entry in data["entries"]:
        accuracy = entry["series"]["score"]
        assert (entry["seeds"], entry["ended"]) == (2, 2)
        assert all(
            low <= m <= high for low, m, high in zip(*(accuracy[k] for k in ("low", "mean", "high")), strict=True)
        )
        assert entry["epsilon"]["max"] <= float(entry["label"].split()[1])
        assert "low" not in entry["series"]["epsilon_loosest"]


def test_a_comparison_that_goes_on_counts_what_is_missing(compared, tmp_path):
    shutil.copytree(compared, tmp_path / "grid")
    one, other = sorted((tmp_path / "grid" / "runs").glob("*/seed-0"))
    (one / "summary.json").unlink()
    shutil.rmtree(other)
    data = collect([tmp_path / "grid"])
    assert not data["finished"]
    assert [(entry["ended"], entry["seeds"]) for entry in data["entries"]] == [(1, 2), (1, 2)]


def test_a_damaged_comparison_is_refused(compared, tmp_path):
    shutil.copytree(compared, tmp_path / "grid")
    (tmp_path / "grid" / "base.toml").write_text("=")
    with pytest.raises(BadInput, match=r"base\.toml is damaged"):
        collect([tmp_path / "grid"])
    (tmp_path / "grid" / "compare.toml").write_text("=")
    with pytest.raises(BadInput, match=r"compare\.toml is damaged"):
        collect([tmp_path / "grid"])


def test_runs_of_equal_name_are_told_apart_and_settings_that_differ_are_listed(ended, tmp_path):
    tacit.run(changed(train={"learning_rate": 0.1}), out=tmp_path / "run", page=False)
    data = collect([ended, tmp_path / "run"])
    assert [entry["label"] for entry in data["entries"]] == ["run (1)", "run (2)"]
    assert [entry["settings"]["train.learning_rate"] for entry in data["entries"]] == ["0.5", "0.1"]
    assert ["rounds", "6", False] in dict(data["settings"])["train"]
    assert len(data["promises"]) == 1


def test_promises_of_different_units_or_adversaries_are_kept_apart(ended, tmp_path):
    for name, change in (("client", {"unit": "client"}), ("trusted", {"adversary": "the public"})):
        shutil.copytree(ended, tmp_path / name)
        for file in ("summary.json", "clients.json"):
            values = json.loads((tmp_path / name / file).read_text())
            values["guarantee"] |= change
            (tmp_path / name / file).write_text(json.dumps(values))
    data = collect([ended, tmp_path / "client", tmp_path / "trusted"])
    assert [entry["promise"] for entry in data["entries"]] == [0, 1, 2]
    assert [promise["unit"] for promise in data["promises"]] == ["record", "client", "record"]
    assert all("epsilon" not in promise for promise in data["promises"])


def test_an_epsilon_over_seeds_is_the_largest_not_the_mean(compared):
    runs = sorted(compared.glob("runs/*1.0*/seed-*/rounds.jsonl"))
    each = [[json.loads(line)["epsilon_loosest"] for line in run.read_text().splitlines()] for run in runs]
    shown = collect([compared])["entries"][0]["series"]["epsilon_loosest"]["mean"]
    assert all(value >= max(pair) for value, pair in zip(shown, zip(*each, strict=True), strict=True))


def left(folder, name, value, *, seed=0):
    """A finding with one number, as an attack leaves it."""
    numbers = (Estimate("AUC", value, value - 0.1, value + 0.1, of="all looks"),)
    folder.mkdir(parents=True, exist_ok=True)
    record = Finding(name, "small", "updates", numbers).record()
    (folder / f"attack-{name}.json").write_text(json.dumps(record), "utf-8")


def test_what_attacks_found_is_a_matrix_of_defences_by_attacks(compared, tmp_path):
    assert collect([compared])["matrix"] is None
    grid = tmp_path / "grid"
    shutil.copytree(compared, grid)
    slugs = sorted(path.name for path in (grid / "runs").iterdir())
    for seed, value in ((0, 0.7), (1, 0.9)):
        left(grid / "attacks" / slugs[0] / f"seed-{seed}", "property", value)
    left(grid / "attacks" / slugs[1] / "seed-0", "property", 0.6)  # seed 1 is not attacked yet
    (grid / "attacks" / slugs[0] / "seed-0" / "attack-property.1.json").write_text("set aside", "utf-8")
    for record in (grid / "runs" / slugs[1]).glob("*/rounds.jsonl"):
        lines = [json.loads(line) | {"backdoor_accuracy": 0.25} for line in record.read_text("utf-8").splitlines()]
        record.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    found = collect([grid])["matrix"]
    assert found["columns"] == [
        {"name": "property all looks AUC", "chance": 0.5},
        {"name": "backdoor accuracy", "chance": 0.0},
    ]
    assert [row["attacked"] for row in found["rows"]] == [[[0.8, None, None], None], [None, [0.25, None, None]]]
    assert all(0 <= row["score"][0] <= 1 for row in found["rows"])


@pytest.mark.parametrize(
    "damage",
    [
        {"estimates": [{"name": "AUC", "value": "much"}]},
        {"plots": [{"title": "t", "x": "x", "y": "y", "lines": [{"name": "n", "x": [1, 2], "y": [1]}]}]},
        {"strip": {"shape": [1, 2, 2], "rows": [["records", ["AAAA"]]]}},
        {"strip": {"shape": [1, 2, 2], "rows": [["records", ["<script>"]]]}},
        {"badge": None},
    ],
)
def test_a_damaged_finding_is_named(compared, tmp_path, damage):
    shutil.copytree(compared, tmp_path / "grid")
    folder = tmp_path / "grid" / "attacks" / next((compared / "runs").iterdir()).name / "seed-0"
    left(folder, "property", 0.7)
    record = json.loads((folder / "attack-property.json").read_text("utf-8")) | damage
    (folder / "attack-property.json").write_text(json.dumps(record), "utf-8")
    with pytest.raises(BadInput, match=r"attack-property\.json is damaged .*--force"):
        collect([tmp_path / "grid"])


@pytest.fixture(scope="module")
def both_kinds(ended, tmp_path_factory):
    """A seeded run, another one, and the results of a federation, whose noise came from the operating system."""
    home = tmp_path_factory.mktemp("kinds")
    for name in ("simulated", "s2"):
        shutil.copytree(ended, home / name)
    (home / "hospitals").mkdir()
    (home / "hospitals" / "federation.toml").write_text("")
    tacit.run(changed(run={"randomness": "os"}), out=home / "hospitals" / "results", page=False)
    return [home / "simulated", home / "s2", home / "hospitals" / "results"]


def test_noise_from_a_seed_and_noise_from_the_system_are_two_promises(both_kinds):
    data = collect(both_kinds)
    assert [entry["promise"] for entry in data["entries"]] == [0, 0, 1]
    seeded, real = data["promises"]
    assert seeded["statement"].endswith(", noise drawn from a seed")
    assert real["statement"].endswith(", noise drawn from the operating system's entropy")
    assert not seeded["seeded"], "a box among others says where its noise comes from"


def test_the_word_of_seeded_noise_names_the_runs_it_is_about_where_it_is_not_about_all(both_kinds):
    said = collect(both_kinds)
    assert (said["seeded"], said["seeded_alone"]) == (True, ["simulated", "s2"])
    all_seeded = collect(both_kinds[:2])
    assert (all_seeded["seeded"], all_seeded["seeded_alone"]) == (True, [])
    assert not collect([both_kinds[2], both_kinds[2]])["seeded"]


def test_a_federations_results_are_called_as_the_federation_is_beside_other_runs_too(both_kinds):
    assert [entry["label"] for entry in collect(both_kinds)["entries"]] == ["simulated", "s2", "hospitals"]


def test_the_banner_over_several_runs_names_them_and_no_figure_speaks_of_seeds_that_are_not_there(
    browser, both_kinds, tmp_path
):
    write_page(both_kinds, tmp_path / "report.html")
    browser.open((tmp_path / "report.html").resolve().as_uri())
    browser.wait("document.documentElement.dataset.ready === 'yes'")
    assert "simulated and s2 drew noise from a seed: " in browser.value("document.querySelector('.banner').innerText")
    text = browser.value("document.querySelector('main').innerText")
    assert "over seeds" not in text
    assert "An upper bound, of the client that has spent most until then." in text
    made = browser.value("[...document.querySelectorAll('.promise .note')].map(e => e.innerText)")
    assert made == ["Made by: simulated; s2", "Made by: hospitals"]
