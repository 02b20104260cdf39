"""What the final model is worth to each client: asked for, from raw data, and for simulations alone."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
import torch
from report_runs import changed
from rich.console import Console

import tacit
from tacit.deploy.site.consent import read_experiment
from tacit.engine.assemble import build
from tacit.engine.history import spread
from tacit.errors import BadInput, Refused
from tacit.lab.compare import table
from tacit.lab.compare.grid import expand, tasks_of
from tacit.lab.compare.results import rows_of
from tacit.lab.grid import plain
from tacit.report.closing import closing
from tacit.report.page import collect

ASKED = changed(metric={"per_client": True}, privacy={"epsilon": 5.0})


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """A run whose clients were measured."""
    return tacit.run(ASKED, out=tmp_path_factory.mktemp("measured") / "run", page=False)


@pytest.fixture(scope="module")
def found(history):
    return json.loads((history.out / "per_client.json").read_text())


def test_a_simulation_measures_its_model_on_every_clients_own_rows_when_asked(history, found):
    parts = build(ASKED)
    assert found["note"].startswith("From raw data: not covered by epsilon")
    assert (found["metric"], found["clients"]) == ("accuracy", list(parts.population.names))
    for index, (value, (low, high)) in enumerate(zip(found["values"], found["intervals"], strict=True)):
        client = parts.population[index]
        with torch.inference_mode():
            right = (history.model(client.x).argmax(1) == client.y).float().mean()
        assert value == pytest.approx(float(right))
        assert low <= value <= high
    page = collect([history.out])
    assert page["per_client"]["values"] == sorted(page["per_client"]["values"])
    assert "not covered" not in (history.out / "summary.json").read_text()


def test_nobody_is_measured_unless_it_is_asked_for(tmp_path):
    tacit.run(changed(privacy={"epsilon": 5.0}), out=tmp_path / "run", page=False)
    assert not (tmp_path / "run" / "per_client.json").exists()
    assert collect([tmp_path / "run"])["per_client"] is None


def test_a_deployment_refuses_to_measure_clients():
    with pytest.raises(Refused, match="only a simulation can: leave it out"):
        read_experiment(changed(metric={"per_client": True}).toml())


@pytest.mark.parametrize("crafted", [{"values": ["high"] * 5}, {"intervals": [3]}, {"clients": 3}], ids=str)
def test_an_edited_file_of_clients_is_refused(history, found, tmp_path, crafted):
    shutil.copytree(history.out, tmp_path / "run")
    (tmp_path / "run" / "per_client.json").write_text(json.dumps(found | crafted))
    with pytest.raises(BadInput, match="is damaged"):
        collect([tmp_path / "run"])


def test_how_clients_differ_is_told_beside_their_numbers_and_on_the_terminal_but_not_in_the_summary(history, found):
    values = np.sort(found["values"])
    assert found["spread"]["std"] == pytest.approx(values.std())
    assert (found["spread"]["worst"], found["spread"]["best"]) == (values[0], values[-1])
    assert found["spread"]["worst_tenth"] == values[0]  # of five clients one
    closing(history, Console(file=(file := io.StringIO()), width=300))
    assert f"By client: mean {values.mean():.4f}, std {values.std():.4f}" in file.getvalue()
    assert "not covered by epsilon" in file.getvalue()
    assert "worst_tenth" not in (history.out / "summary.json").read_text()


def test_the_worst_tenth_is_a_mean_over_the_clients_that_are_served_worst():
    values = [float(number) for number in range(25)]
    assert spread(values, better="higher")["worst_tenth"] == 1.0  # of 0, 1 and 2
    assert spread(values, better="lower")["worst_tenth"] == 23.0
    assert spread([None, None], better="higher") is None


def test_clients_that_keep_rows_are_measured_on_those(tmp_path):
    asked = changed(metric={"per_client": True}, privacy={"epsilon": 5.0}, data={"own_share": 0.5})
    history = tacit.run(asked, out=tmp_path / "run", page=False)
    found = json.loads((tmp_path / "run" / "per_client.json").read_text())
    assert "trained on never" in found["note"]
    assert collect([tmp_path / "run"])["per_client"]["kept"] is True
    kept = build(asked).population.held[0]
    with torch.inference_mode():
        right = (history.model(kept.x).argmax(1) == kept.y).float().mean()
    assert found["values"][0] == pytest.approx(float(right))


def test_a_comparison_has_the_spread_over_clients_with_its_interval_over_seeds(tmp_path):
    asked = changed(metric={"per_client": True}, privacy={"kind": "none", "epsilon": None}, train={"rounds": 1})
    tasks = tasks_of(tmp_path / "out", expand(plain(asked), {}, seeds=3))
    for task in tasks:
        tacit.run(task.experiment, out=task.folder, page=False)
    rows = rows_of(tasks, {})
    table.write(tmp_path / "out", rows)
    each = [run.spread["worst_tenth"] for run in rows[0].runs]
    (cell,) = csv.DictReader((tmp_path / "out" / "table.csv").read_text().splitlines())
    assert float(cell["accuracy_by_client_worst_tenth"]) == pytest.approx(np.mean(each))
    assert float(cell["accuracy_by_client_std_interval"]) > 0
    runs = list(csv.DictReader((tmp_path / "out" / "compare.csv").read_text().splitlines()))
    assert [float(run["accuracy_by_client_worst_tenth"]) for run in runs] == each
    words = (tmp_path / "out" / "table.md").read_text()
    assert "worst tenth of clients‡" in words
    assert "From raw rows, not covered by epsilon" in words
