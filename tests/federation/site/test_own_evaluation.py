"""Rows that a site holds out: never trained on, judged for the site's own people, and told to nobody."""

import json
from dataclasses import replace

import pytest
import torch
from redteam.lying_server import RUN, Server, experiment
from tasks.test_tasks import experiment as of_task

from tacit import plugin
from tacit.data.dataset import IGNORED
from tacit.deploy.site import site as own_evaluation
from tacit.deploy.site.rows import HeldOut
from tacit.engine.assemble import assemble, build, clients
from tacit.engine.evaluate import answers_to
from tacit.errors import Refused
from tacit.parts import metrics, tasks
from tacit.privacy.accounting import price
from tacit.wire import unpack


def holding_out(folder, share="0.3", **changes):
    """A site whose people hold out rows, and a server that believes the number of rows it is told."""
    asking = Server(folder, experiment(**changes))
    with (folder / "site.toml").open("a") as file:
        file.write(f"held_out = {share}\n")
    asking.restart()
    asking.roster = replace(asking.roster, sizes=(asking.hello()["examples"], asking.roster.sizes[1]))
    chosen = asking.experiment
    asking.parts = assemble(chosen, clients(chosen)[0], asking.roster.population((1, 8, 8)))
    asking.terms["event"] = price.to_text(asking.parts.algorithm.cost(asking.parts.population[0]))
    asking.agree()
    return asking


def results(asking):
    path = asking.folder / "runs" / RUN / "held_out.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_site_trains_on_the_rest_and_writes_down_for_itself_how_the_model_does(tmp_path):
    asking = holding_out(tmp_path / "site")
    joined = asking.site._held[RUN]
    rows = {bytes(row.numpy()) for row in joined.client.x}
    assert rows.isdisjoint(bytes(row.numpy()) for row in joined.held.x)
    assert len(joined.client.y) + len(joined.held.y) == 60
    asking.train(0)
    (line,) = results(asking)
    assert (line["round"], line["rows"]) == (0, len(joined.held.y))
    assert 0 <= line["accuracy"] <= 1
    asking.train(0)  # the kept answer again
    assert len(results(asking)) == 1


def test_nothing_of_it_leaves_the_site_and_the_answer_is_the_same_without_it(tmp_path, monkeypatch):
    seeded = {"run": {"randomness": "seeded"}}
    raw = holding_out(tmp_path / "one", **seeded).train(0)
    with monkeypatch.context() as patched:
        patched.setattr("tacit.deploy.site.site.judge", lambda *_: None)
        assert holding_out(tmp_path / "two", **seeded).train(0) == raw
    assert set(unpack(raw).facts) == {"examples", "noise_std", "epsilon"}
    for line in (tmp_path / "one" / "log.jsonl").read_text().splitlines():
        assert "accuracy" not in line


def test_whatever_goes_wrong_in_it_changes_no_answer(tmp_path, monkeypatch):
    asking = holding_out(tmp_path / "site")
    monkeypatch.setattr(own_evaluation.metrics, "load", lambda name: 1 / 0)
    assert asking.train(0)
    assert results(asking) == []
    failed = [line for line in asking.log() if line["verdict"] == "failed"]
    assert failed[0]["text"].startswith("Held-out rows: ZeroDivisionError")


def test_held_out_rows_of_one_class_tell_what_they_can(tmp_path):
    asking = holding_out(tmp_path / "site")
    joined = asking.site._held[RUN]
    mine = joined.held.y == joined.held.y[0]
    one = HeldOut(joined.held.x[mine], joined.held.y[mine])
    measured = own_evaluation._measured(joined.parts, one, torch.zeros_like(joined.parts.params))
    assert measured["auroc"] is None
    assert measured["accuracy"] is not None
    none = HeldOut(joined.held.x[:0], joined.held.y[:0])
    assert set(own_evaluation._measured(joined.parts, none, joined.parts.params).values()) == {None}


@pytest.mark.parametrize("kind", plugin.names(tasks.ROOM))
def test_every_task_is_judged_as_a_run_judges_it(tmp_path, kind):
    parts = build(of_task(tmp_path, kind))
    x, y, params = parts.dataset.test_x, parts.dataset.test_y.clone(), torch.linspace(-1, 1, parts.params.numel())
    if kind == "tokens":
        y[::2, -1] = IGNORED
    measured = own_evaluation._measured(parts, HeldOut(x, y), params)
    found, _ = answers_to(parts, params, x, y)
    names = {tasks.chosen(parts.experiment), *parts.task.metrics}
    assert measured == {metrics.key(name): metrics.measure_if_possible(metrics.load(name), found) for name in names}
    assert measured[tasks.headline(parts.experiment)] is not None
    if kind == "tokens":
        with torch.inference_mode():
            right = parts.model(x).argmax(-1) == y
        assert measured["accuracy"] == pytest.approx(float(right[y != IGNORED].float().mean()))


def test_a_frozen_body_is_not_copied_and_training_keeps_its_own(monkeypatch):
    parts, judged, real = build(experiment(model={"name": "tuned:head"})), [], own_evaluation.flatten
    monkeypatch.setattr(own_evaluation, "flatten", lambda model: judged.append(model) or real(model))
    before = {name: tensor.clone() for name, tensor in parts.model.state_dict().items()}
    held = HeldOut(parts.dataset.test_x, parts.dataset.test_y)
    own_evaluation._measured(parts, held, torch.ones_like(parts.params))
    assert all(torch.equal(before[name], tensor) for name, tensor in parts.model.state_dict().items())
    (model,) = judged
    own = dict(parts.model.named_parameters())
    same = {name for name, parameter in model.named_parameters() if parameter is own[name]}
    assert same == {name for name, parameter in own.items() if not parameter.requires_grad} != set()


@pytest.mark.parametrize("share", ["1.5", "0", "true", "'half'", "-0.1"])
def test_a_share_that_is_none_is_said_to_the_sites_people_and_not_to_the_server(tmp_path, share):
    asking = Server(tmp_path / "site", experiment())
    with (tmp_path / "site" / "site.toml").open("a") as file:
        file.write(f"held_out = {share}\n")
    asking.restart()
    with pytest.raises(Refused, match="the reason is in its log"):
        asking.hello()
    assert "Expected held_out in site.toml to be above 0" in asking.log()[-1]["text"]
