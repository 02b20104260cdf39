"""Sites whose rows have persons: each promises persons in its own file, and says what no site can check."""

import json

import numpy as np
import pytest

import tacit
from tacit.deploy.operate.init import init
from tacit.deploy.operate.processes import free_port
from tacit.deploy.server.client import LocalGrid, client_app
from tacit.deploy.server.server import Call, serve
from tacit.deploy.site.site import Site
from tacit.errors import TacitError

NAMES, PERSONS = ("north", "south", "west"), 12
COLUMNS = ["age", "dose"]


def experiment(**changes):
    data = {
        "name": "csv",
        "path": "records",
        "label": "ill",
        "classes": ["0", "1"],
        "columns": COLUMNS,
        "person": "who",
    }
    data |= {"numeric": {"age": [-3, 3], "dose": [-3, 3]}, "test_share": 0, "partition": "natural"}
    values = {
        "data": data,
        "train": {"rounds": 2, "learning_rate": 0.5, "local_steps": 3, "sampling_rate": 0.5},
        "privacy": {"kind": "local", "unit": "person", "epsilon": 3.0, "delta": 1e-3, "rows_per_person": 2},
    }
    for key, value in changes.items():
        table, _, name = key.partition(".")
        values.setdefault(table, {})[name] = value
    return tacit.Experiment(**{t: {k: v for k, v in one.items() if v is not None} for t, one in values.items()})


def rows_of(name, *, at=""):
    rng, lines = np.random.default_rng(len(name)), ["who,age,dose,ill"]
    for k in rng.permutation(np.repeat(np.arange(PERSONS), 1 + np.arange(PERSONS) % 4)).tolist():
        a, b = rng.normal(size=2).round(3)
        lines.append(f"{at or name}-{k},{a},{b},{int(a > b)}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def federation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(at="", **changes):
        made = init(
            tmp_path / "fed",
            sites=",".join(NAMES),
            experiment=experiment(**changes),
            host="127.0.0.1",
            port=free_port(),
            trial=True,
        )
        (tmp_path / "records").mkdir(exist_ok=True)
        for name in NAMES:
            for path in (made.site(name) / "records.csv", tmp_path / "records" / f"{name}.csv"):
                path.write_text(rows_of(name, at=at))
        return made

    return make


def served(federation):
    asked = tacit.Experiment.load(federation.app / "tacit_app" / "experiment.toml")
    grid = LocalGrid(client_app(), [federation.site(name) for name in NAMES])
    return serve(
        grid,
        asked,
        Call(out=federation.results, sites=NAMES, keys=federation.folder / "server", join_seconds=20, round_seconds=20),
    )


KINDS = {
    "local": {},
    "central": {"privacy.kind": "central", "train.local_steps": 1, "train.sampling_rate": None},
    "masks": {
        "privacy.kind": "distributed",
        "protect.kind": "masks",
        "train.local_steps": 1,
        "train.sampling_rate": None,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_sites_pay_per_person_and_reach_the_model_of_a_simulation(federation, tmp_path, kind):
    made = federation(**KINDS[kind])
    history = served(made)
    simulated = tacit.run(experiment(**KINDS[kind]), out=tmp_path / "simulated", page=False)
    assert history.summary["guarantee"]["unit"] == simulated.summary["guarantee"]["unit"] == "person"
    assert json.loads((made.results / "sites.json").read_text())["sizes"] == [PERSONS] * 3
    (promise,) = made.site("north").glob("runs/*/promise.txt")
    assert "add or remove one person at this client, with all rows" in promise.read_text()
    assert "which no program can check across sites" in promise.read_text()
    assert 'unit = "person"' in (made.site("north") / "budget.toml").read_text()
    said = [json.loads(line)["text"] for line in (made.site("north") / "log.jsonl").read_text().splitlines()]
    assert any(f"of {PERSONS} persons" in text for text in said)
    assert any("per person" in text for text in said)
    if kind == "local":  # of one seed, noise and persons included
        left, right = (list(one.model.state_dict().values()) for one in (history, simulated))
        assert all(np.allclose(a.numpy(), b.numpy(), atol=1e-6) for a, b in zip(left, right, strict=True))


def test_a_site_refuses_a_run_of_another_unit_than_its_own(federation):
    made = federation()
    budget = made.site("north") / "budget.toml"
    budget.write_text(budget.read_text().replace('unit = "person"', 'unit = "record"'))
    with pytest.raises(TacitError, match="asks for a budget per person; the site's is per record"):
        served(made)


def test_a_site_without_the_column_says_so_and_names_no_row(federation):
    made = federation()
    path = made.site("north") / "records.csv"
    path.write_text("\n".join(line.partition(",")[2] for line in path.read_text().splitlines()) + "\n")
    with pytest.raises(TacitError, match="north"):
        served(made)
    assert "no column 'who'" in (made.site("north") / "log.jsonl").read_text()


def test_one_id_at_two_sites_is_no_reason_to_refuse_for_nobody_sees_both(federation):
    assert served(federation(at="anybody")).summary["rounds"] == 2


def test_rows_that_a_site_holds_out_are_whole_persons(federation):
    made = federation()
    site = made.site("north")
    (site / "site.toml").write_text((site / "site.toml").read_text() + "held_out = 0.4\n")
    served(made)
    sizes = json.loads((made.results / "sites.json").read_text())["sizes"]
    assert sizes[0] < PERSONS == sizes[1]
    (told,) = site.glob("runs/*/held_out.jsonl")
    held = json.loads(told.read_text().splitlines()[0])["rows"]
    counts = [1 + k % 4 for k in range(PERSONS)]
    assert any(
        held == sum(c for k, c in enumerate(counts) if mask >> k & 1)
        for mask in range(1 << PERSONS)
        if mask.bit_count() == PERSONS - sizes[0]
    )


def test_a_site_that_only_declares_its_rows_cannot_promise_persons(federation):
    made = federation()
    site = made.site("north")
    text = (site / "site.toml").read_text().replace('data = "records.csv"', "examples = 30")
    (site / "site.toml").write_text(text)
    with pytest.raises(TacitError, match="whose each is nobody has said"):
        served(made)
    assert Site(site) is not None
