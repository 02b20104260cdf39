import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

import tacit
from tacit.privacy.guarantee import sentence
from tacit.report.progress import Display, closing, promise_lines
from tacit.types import Others


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A short run that has ended."""
    experiment = tacit.Experiment.load("digits", ("data.clients=3", "train.rounds=2", "train.local_steps=2"))
    return tacit.run(experiment, out=tmp_path_factory.mktemp("ended"), page=False)


def printed(history):
    screen = io.StringIO()
    closing(history, Console(file=screen, width=300))
    return screen.getvalue()


def test_who_was_refused_and_why_is_shown_as_it_is_written():
    """A client's name is text: brackets in it are no markup."""
    screen = io.StringIO()
    display = Display(Console(file=screen, width=200))
    display._rounds = 1
    display.observe({"round": 0, "accuracy": 0.5, "refused": {"[/bold]": "it sent no update: x", "b": "y"}})
    assert "2 messages, one from [/bold]: it sent no update: x" in screen.getvalue()


def test_the_short_lines_say_all_that_the_sentence_says(ended):
    others = Others(runs=2, apart=1, epsilon=4.5, delta=3e-5, rule="a rule")
    g = replace(
        ended.guarantee,
        others=others,
        also=(replace(ended.guarantee, adversary="somebody who sees more", sampler="one report"),),
    )
    lines = " ".join(f"{name} {words}" for name, words in promise_lines(g.record(), other_runs=2))
    for words in (g.unit, g.adversary, g.relation, g.sampler, g.accountant, g.randomness, *g.assumes, f"{g.delta:g}"):
        assert words in sentence(g)
        assert words in lines
    together = "Together with the 2 other runs of its ledger that promise this per record, the epsilon is at most 4.500"
    for words in (
        f"{together} at delta = 3e-05 (a rule).",
        "Not included is 1 run of its ledger that promised per client.",
    ):
        assert words in sentence(g)
        assert words in lines
    assert "somebody who sees more" in lines


def test_how_many_runs_were_counted_is_never_made_less(ended):
    lines = dict(promise_lines(ended.guarantee.record(), other_runs=None))
    assert lines["spent in"] == "all runs in its ledger together"
    assert dict(promise_lines(ended.guarantee.record(), other_runs=0))["spent in"] == "this run"
    assert ended.summary["other_runs"] == 0


def test_the_closing_table_is_short_and_the_summary_keeps_the_sentence(ended):
    text = printed(ended)
    assert "test accuracy, final model" in text
    assert "against           the server" in text
    assert ended.sentence not in text
    assert json.loads((ended.out / "summary.json").read_text())["sentence"] == ended.sentence


def test_a_finished_run_says_so_when_it_is_resumed(ended):
    screen = io.StringIO()
    with Display(Console(file=screen, width=200)) as display:
        experiment = tacit.Experiment.load(ended.out / "experiment.toml")
        tacit.run(experiment, out=ended.out, resume=True, ready=display.ready, page=False)
    assert "This run is finished: its 2 rounds are done" in screen.getvalue()
    assert "Resuming" not in screen.getvalue()
