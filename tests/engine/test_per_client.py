"""What the final model is worth to each client: asked for, from raw data, and for simulations alone."""

import json

import pytest
import torch
from report_runs import changed

import tacit
from tacit.build.parts import assemble, build
from tacit.errors import BadInput
from tacit.report.page import collect


def test_a_simulation_measures_its_model_on_every_clients_own_rows_when_asked(tmp_path):
    asked = changed(metric={"per_client": True}, privacy={"epsilon": 5.0})
    history = tacit.run(asked, out=tmp_path / "run")
    found = json.loads((tmp_path / "run" / "per_client.json").read_text())
    parts = build(asked)
    assert found["note"].startswith("From raw data: not covered by epsilon")
    assert (found["metric"], found["clients"]) == ("accuracy", list(parts.population.names))
    for index, (value, (low, high)) in enumerate(zip(found["values"], found["intervals"], strict=True)):
        client = parts.population[index]
        with torch.inference_mode():
            right = (history.model(client.x).argmax(1) == client.y).float().mean()
        assert value == pytest.approx(float(right))
        assert low <= value <= high
    page = collect([tmp_path / "run"])
    assert page["per_client"]["values"] == sorted(page["per_client"]["values"])
    assert "not covered" not in (tmp_path / "run" / "summary.json").read_text()


def test_nobody_is_measured_unless_it_is_asked_for(tmp_path):
    tacit.run(changed(privacy={"epsilon": 5.0}), out=tmp_path / "run")
    assert not (tmp_path / "run" / "per_client.json").exists()
    assert collect([tmp_path / "run"])["per_client"] is None


def test_a_deployment_refuses_to_measure_clients():
    parts = build(changed(metric={"per_client": True}))
    with pytest.raises(BadInput, match="only a simulation can: leave it out"):
        assemble(parts.experiment, parts.dataset, parts.population, elsewhere=True)


@pytest.mark.parametrize("crafted", [{"values": ["high"] * 5}, {"intervals": []}, {"clients": 3}], ids=str)
def test_an_edited_file_of_clients_is_refused(tmp_path, crafted):
    tacit.run(changed(metric={"per_client": True}, privacy={"epsilon": 5.0}), out=tmp_path / "run")
    path = tmp_path / "run" / "per_client.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | crafted))
    with pytest.raises(BadInput, match=r"per_client\.json is damaged"):
        collect([tmp_path / "run"])
