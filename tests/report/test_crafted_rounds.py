"""A round log that somebody edited: a page, a table and the numbers for Prometheus refuse it in a sentence, and never die of it."""

import contextlib
import json
import shutil

import pytest

import tacit
from tacit.engine.run_files import read
from tacit.errors import BadInput
from tacit.report.page import collect, render

LOG = "rounds.jsonl"
BAD = [10**400, "</script>", [], {"a": 1}, None, True]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crafted") / "run"
    experiment = tacit.Experiment(
        data={"clients": 2, "examples_per_client": 20},
        train={"rounds": 1, "local_steps": 1, "sampling_rate": 0.5},
        privacy={"kind": "local", "epsilon": 3.0},
        run={"workers": 1},
    )
    tacit.run(experiment, out=folder, page=False)
    return folder, (folder / LOG).read_text("utf-8")


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad)[:10])
def test_whatever_a_round_log_says_the_page_is_made_or_refused_in_a_sentence(run, bad):
    folder, text = run
    record = json.loads(text)
    try:
        for key in record:
            (folder / LOG).write_text(json.dumps(record | {key: bad}) + "\n", "utf-8")
            with contextlib.suppress(BadInput):
                json.dumps(collect([folder], live=True), allow_nan=False)
    finally:
        (folder / LOG).write_text(text, "utf-8")


NO_TEXT = "\ud800"  # half of a character: JSON has it, no file of text does
ODD = [*BAD, float("nan"), -1, 1.5, "x", NO_TEXT, [None], {"a": None}]


def places(value, place=()):
    """Every place of a value, the first two of a list."""
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*place, key))


def put(value, place, odd):
    if not place:
        return odd
    changed = value.copy()
    changed[place[0]] = put(value[place[0]], place[1:], odd)
    return changed


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("name", ["clients.json", "run.json", "status.json"])
def test_whatever_is_written_into_a_file_beside_a_run_the_page_is_made_or_refused_in_a_sentence(
    run, tmp_path, name, ended
):
    """`tacit report` ended in a traceback, and `--live` in one for every look, over one number that was none."""
    folder = shutil.copytree(run[0], tmp_path / "run")
    if not ended:
        (folder / "summary.json").unlink()
    path, asked = folder / name, {"round": 0, "over": True, "answered": [], "refused": {"client-1": "no"}, "silent": {}}
    status = {"state": "running", "text": "round 1", "time": 1.7e9, "sites": ["client-0"], "spent": {}, "asked": asked}
    text = path.read_text("utf-8") if path.exists() else json.dumps(status)
    path.write_text(text, "utf-8")
    render(collect([folder], live=True)).encode()  # as it is, there is one
    for place in places(json.loads(text)):
        for odd in ODD:
            path.write_text(json.dumps(put(json.loads(text), place, odd)), "utf-8")
            with contextlib.suppress(BadInput):
                render(collect([folder], live=True)).encode()


def test_a_line_of_brackets_is_no_round(run):
    folder, text = run
    try:
        (folder / LOG).write_text("[" * 100_000 + "\n", "utf-8")
        with pytest.raises(BadInput, match=r"Line 1 of .* is damaged"):
            read(folder)
    finally:
        (folder / LOG).write_text(text, "utf-8")
    assert len(read(folder).rounds) == 1
