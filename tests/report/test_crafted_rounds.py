"""A round log that somebody edited: a page, a table and the numbers for Prometheus refuse it in a sentence, and never die of it."""

import contextlib
import json

import pytest

import tacit
from tacit.engine.run_files import read
from tacit.errors import BadInput
from tacit.report.page import collect

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


def test_a_line_of_brackets_is_no_round(run):
    folder, text = run
    try:
        (folder / LOG).write_text("[" * 100_000 + "\n", "utf-8")
        with pytest.raises(BadInput, match=r"Line 1 of .* is damaged"):
            read(folder)
    finally:
        (folder / LOG).write_text(text, "utf-8")
    assert len(read(folder).rounds) == 1
