"""Private ranges in a deployment: every site answers once, and every site reads its rows with what came of it."""

import itertools
import json
import sqlite3

import numpy as np
import pytest
from federation.flower.conftest import Federation
from federation.flower.test_at_sites import Stop, charges, refusing
from trained import same_model

import tacit
from tacit.deploy.server.messages import read
from tacit.deploy.site.limits import make_site
from tacit.engine.assemble import clients
from tacit.engine.queries import kept
from tacit.errors import BadInput, TacitError
from tacit.privacy.ledger.disk import QUERY

EPSILONS = {"coast": 30.0, "north": 30.0, "valley": 80.0}


def write_rows(file, *, rows, seed):
    rng = np.random.default_rng(seed)
    chol, age = rng.normal(240, 45, rows).clip(90, 600), rng.uniform(20, 90, rows)
    ill = np.where(chol / 240 + age / 55 + rng.normal(0, 0.3, rows) > 2, "yes", "no")
    lines = [f"{a:.1f},{c:.0f},{y}" for a, c, y in zip(age, chol, ill, strict=True)]
    file.write_text("age,chol,ill\n" + "\n".join(lines) + "\n")


class Hospitals(Federation):
    """Sites with a column of which nobody knows the range."""

    def __init__(self, folder, **changes):
        self.folder, self.names = folder, tuple(EPSILONS)
        (folder / "rows").mkdir()
        for number, name in enumerate(self.names):
            write_rows(folder / "rows" / f"{name}.csv", rows=120 + 20 * number, seed=number)
        write_rows(folder / "public.csv", rows=60, seed=9)
        values = {
            "data": {
                "name": "csv",
                "path": str(folder / "rows"),
                "test_path": str(folder / "public.csv"),
                "partition": "natural",
                "label": "ill",
                "classes": ["no", "yes"],
                "columns": ["age", "chol"],
                "numeric": {"age": [0, 120], "chol": "private"},
            },
            "train": {"rounds": 2, "local_steps": 2, "sampling_rate": 0.2},
            "privacy": {"kind": "local", "epsilon": EPSILONS, "query_shares": {"ranges": 0.3}},
            "run": {"workers": 1, "randomness": "seeded"},
        }
        self.experiment = tacit.Experiment(**{key: values[key] | changes.get(key, {}) for key in values})
        for (name, epsilon), rows in zip(EPSILONS.items(), self.dealt(), strict=True):
            make_site(folder / "sites" / name, self.experiment, name=name, epsilon=epsilon)
            (folder / "sites" / name / "records.csv").write_text("\n".join(["age,chol,ill", *rows]) + "\n")

    def dealt(self):
        """Every hospital's rows in the order in which a simulation takes them."""
        files = [(self.folder / "rows" / f"{name}.csv").read_text().splitlines()[1:] for name in self.names]
        rows, (_, shares, _) = [row for file in files for row in file], clients(self.experiment)
        for start, stop in itertools.pairwise(shares.offsets.tolist()):
            yield [rows[place] for place in shares.order[start:stop]]


@pytest.fixture
def hospitals(tmp_path):
    return lambda **changes: Hospitals(tmp_path, **changes)


def ranges(folder):
    (path,) = (path for path in folder.rglob("encoder.json"))
    columns = json.loads(path.read_text())["columns"]
    return {column["name"]: column["limits"] for column in columns}


def test_from_one_seed_sites_answer_find_and_train_what_a_simulation_does_bit_for_bit(hospitals, tmp_path):
    data = {"held_out": 0.2, "numeric": {"age": [0, 120], "chol": {"private": [0, 2000]}}}
    deployed = hospitals(data=data, privacy={"stats": ["chol"], "query_shares": {"stats": 0.2}})
    simulated = tacit.run(deployed.experiment, out=tmp_path / "simulated", page=False)
    history = deployed.run()
    ours, theirs = kept(history.out), kept(tmp_path / "simulated")
    assert set(ours) == set(theirs) == {"ranges", "stats", "evaluation"}
    for query in ours:
        assert ours[query].stds == theirs[query].stds
        assert all(np.array_equal(ours[query].counts[name], theirs[query].counts[name]) for name in deployed.names)
    assert ranges(history.out) == ranges(tmp_path / "simulated")
    assert same_model(tmp_path / "simulated", history.out)
    for key in ("guarantee", "queries", "test_accuracy"):
        assert history.summary[key] == simulated.summary[key]
    stats = [json.loads((folder / "stats.json").read_text()) for folder in (history.out, tmp_path / "simulated")]
    assert stats[0] == stats[1]
    assert history.summary["at_clients"].pop("missing") == stats[0]["missing"] == {}
    assert history.summary["at_clients"] == simulated.summary["at_clients"]


def test_the_range_is_at_the_server_and_in_every_sites_model_and_rows_are_scaled_by_it(hospitals):
    deployed = hospitals(run={"randomness": "os"})
    history = deployed.run()
    low, high = ranges(history.out)["chol"]
    assert low < 240 < high
    for index in range(3):
        site = deployed.site(index)
        assert ranges(site) == ranges(history.out) == {"age": [0.0, 120.0], "chol": [low, high]}
        (bound,) = site.glob("runs/*/ranges.json")
        assert json.loads(bound.read_text()) == {"chol": [low, high]}
        assert charges(site) == [QUERY, 0, 1]
    assert charges(history.out)[:3] == [QUERY] * 3
    assert any("ranges asked of 3 of 3 clients by noised histograms" in note for note in history.summary["notes"])
    told = history.summary["sites"]["epsilon"]
    assert all(0.9 * EPSILONS[name] < told[name] <= EPSILONS[name] for name in deployed.names)
    model = tacit.load(deployed.site(0) / next(deployed.site(0).glob("runs/*/model-common")))
    assert len(model.predict({"age": [50.0], "chol": [250.0]})) == 1


def test_who_does_not_answer_is_told_the_range_of_the_others_and_trains_with_it(hospitals):
    deployed = hospitals()
    history = deployed.run(deployed.grid(see=refusing(2, "not today")))
    assert any("ranges asked of 2 of 3 clients" in note for note in history.summary["notes"])
    assert charges(deployed.site(1)) == [0, 1]
    assert list(deployed.site(1).glob("runs/*/ranges.json"))


def test_where_too_few_answer_the_run_stops_and_asks_only_the_others_when_it_is_resumed(hospitals):
    deployed = hospitals(run={"randomness": "os"}, train={"rounds": 1, "local_steps": 1, "min_clients": 3})
    with pytest.raises(TacitError, match=r"2 sites answered .* and 3 are needed \(north: not today\)"):
        deployed.run(deployed.grid(see=refusing(2, "not today")))
    first = kept(deployed.folder / "out")["ranges"]
    history = deployed.run(resume=True)
    second = kept(history.out)["ranges"]
    assert set(second.counts) == set(deployed.names)
    assert all(np.array_equal(first.counts[name], second.counts[name]) for name in first.counts)
    assert charges(deployed.site(0)) == [QUERY, 0]


@pytest.mark.parametrize("after", ["counts", "agreed"])
def test_a_server_that_is_killed_tells_the_very_same_ranges_when_it_is_back(hospitals, after):
    deployed = hospitals(run={"randomness": "os"})
    seen = []

    def see(message):
        head, _ = read(message)
        if message.metadata.message_type == "query.agree" and "ranges" in head:
            seen.append(head["ranges"])
            if after == "counts" or len(seen) == 3:
                raise Stop

    with pytest.raises(Stop):
        deployed.run(deployed.grid(see=see))
    told = json.loads((deployed.folder / "out" / "ranges.json").read_text())["ranges"]
    assert all(each == told for each in seen)
    history = deployed.run(resume=True)
    assert {name: ends for name, ends in ranges(history.out).items() if name == "chol"} == told
    assert charges(deployed.site(0)) == [QUERY, 0, 1]


def test_a_site_that_was_away_is_given_the_range_when_it_is_let_in(hospitals):
    deployed = hospitals(run={"randomness": "os"})

    with pytest.raises(Stop):
        deployed.run(deployed.grid(see=_stop_at_training))
    grid, site = deployed.grid(gone=(3,)), deployed.site(2)
    next(site.glob("runs/*/ranges.json")).unlink()  # as if it had not been told

    def comes(record):
        grid.gone = ()

    deployed.run(grid, resume=True, observe=comes, join_seconds=2)
    assert list(site.glob("runs/*/ranges.json"))
    assert charges(site) == [QUERY, 1]


def _stop_at_training(message):
    if message.metadata.message_type == "train":
        raise Stop


def test_noise_that_hides_every_range_is_refused_before_anybody_agrees(hospitals):
    deployed = hospitals(privacy={"epsilon": dict.fromkeys(EPSILONS, 0.3), "query_shares": {"ranges": 0.05}})
    with pytest.raises(BadInput, match="The noise of private ranges would hide"):
        deployed.run()
    assert not list(deployed.folder.glob("sites/*/runs/*"))


def test_ranges_of_a_run_that_were_damaged_stop_it(hospitals):
    deployed = hospitals()
    with pytest.raises(Stop):
        deployed.run(deployed.grid(see=_stop_at_training))
    (deployed.folder / "out" / "ranges.json").write_text('{"ranges": {"chol": [NaN, 1]}, "note": ""}')
    with pytest.raises(BadInput, match="is damaged"):
        deployed.run(resume=True)


def test_without_privacy_the_ranges_are_exact_and_nothing_is_charged(hospitals):
    deployed = hospitals(privacy={"kind": "none", "epsilon": None, "query_shares": None})
    history = deployed.run()
    assert ranges(history.out)["chol"] == [128.0, 512.0]
    with sqlite3.connect(deployed.site(0) / "ledger.db") as book:
        assert not book.execute("SELECT name FROM sqlite_master").fetchall()
