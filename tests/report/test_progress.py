import io
import json
from dataclasses import replace

import pytest
from report_runs import changed
from rich.console import Console

import tacit
from tacit.deploy.operate.serve import closing as shown_deployed
from tacit.engine.run_files import read
from tacit.privacy.guarantee import sentence, shown
from tacit.report.closing import closing, not_better, promise_lines
from tacit.report.collect import run_page
from tacit.report.progress import Display, round_line
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
    lines = " ".join(f"{name} {words}" for name, words in promise_lines(g.record()))
    for words in (g.unit, g.adversary, g.relation, g.sampler, g.accountant, g.randomness, *g.assumes, f"{g.delta:g}"):
        assert words in sentence(g)
        assert words in lines
    together = "Together with the 2 other runs of its ledger that promise this per record, the epsilon is at most 4.500"
    for words in (
        f"{together} at delta = 3e-05 (a rule).",
        "Not included is 1 run of its ledger that promised per another unit.",
    ):
        assert words in sentence(g)
        assert words in lines
    assert "somebody who sees more" in lines


def test_what_holds_against_who_sees_more_says_its_delta_unit_and_relation(ended):
    """An epsilon of 27 beside one of 8, and neither at which delta nor for whom: nobody can read that."""
    more = replace(ended.guarantee, adversary="X", sampler="one report", unit="client", relation="empty it", delta=2e-6)
    record = replace(ended.guarantee, also=(more,)).record()
    (words,) = (words for name, words in promise_lines(record) if name == "against X")
    assert (
        words
        == f"an epsilon per client of at most {shown(more.epsilon_max)} at delta = 2e-06, to empty it (one report)"
    )
    assert f"Against X there is {words}." in sentence(replace(ended.guarantee, also=(more,)))
    endless = replace(more, epsilon_max=float("inf"))
    lines = dict(promise_lines(replace(ended.guarantee, also=(endless,)).record()))
    assert lines["against X"].startswith("no epsilon per client that means anything at delta = 2e-06, to empty it")


@pytest.mark.parametrize(("unit", "z"), [("record", 20.0), ("client", 200.0)])
def test_a_round_line_says_its_unit_and_whether_other_runs_are_counted(tmp_path, unit, z):
    """On a shared ledger the epsilon of a round has the other runs in it, and did not say so."""
    shared = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.1, "unit": unit, "noise_multiplier": z}
    experiment = changed(train={"rounds": 1}, privacy=shared | {"epsilon": [50.0, 60.0, 60.0, 60.0, 90.0]})
    for count, words in enumerate(("this run", "this run with 1 other run", "this run with 2 other runs")):
        screen, seen = io.StringIO(), []
        with Display(Console(file=screen, width=300)) as display:
            out = {"out": tmp_path / str(count), "ready": display.ready, "page": False}
            tacit.run(experiment, observe=lambda r: (display.observe(r), seen.append(r)), **out)  # noqa: B023
        (line,) = (line for line in screen.getvalue().splitlines() if line.startswith("round"))
        assert f"epsilon per {unit}, tightest client" in line
        assert f"counting {words}" in line
        assert line.endswith(f"counting {words}")
        assert seen[0]["other_runs"] == count
        assert f" ({words})" in round_line(seen[0], experiment)


def test_the_sentence_to_sign_is_printed_once_after_the_table_and_its_place_is_named(ended):
    text = printed(ended)
    assert "test accuracy, final model" in text
    assert "against           the server" in text
    assert text.count(f"To sign: {ended.sentence}\n") == 1
    assert f'(This is "sentence" in {ended.out / "summary.json"}; the report has it too.)' in text
    assert json.loads((ended.out / "summary.json").read_text())["sentence"] == ended.sentence


def test_a_finished_run_says_so_when_it_is_resumed(ended):
    screen = io.StringIO()
    with Display(Console(file=screen, width=200)) as display:
        experiment = tacit.Experiment.load(ended.out / "experiment.toml")
        tacit.run(experiment, out=ended.out, resume=True, ready=display.ready, page=False)
    assert "This run is finished: its 2 rounds are done" in screen.getvalue()
    assert "Resuming" not in screen.getvalue()


WEAK = {"value": 0.14, "interval": [0.11, 0.18], "better": "higher", "baseline": 0.128}


def test_a_model_that_is_no_better_than_a_constant_answer_says_so_in_one_line_at_the_end(ended):
    assert "Not better than the majority-class baseline" not in printed(
        replace(ended, summary=ended.summary | {"metrics": {"accuracy": WEAK | {"interval": [0.13, 0.18]}}})
    )
    weak = ended.summary | {"metrics": {"accuracy": WEAK}}
    (line,) = [one for one in printed(replace(ended, summary=weak)).splitlines() if one.startswith("Not better")]
    assert "0.1100 to 0.1800, reaches the 0.1280" in line
    assert line.endswith("more rounds, a larger ε or more rows are needed.")
    screen = io.StringIO()
    shown_deployed(weak | {"sites": {"epsilon": {}}}, ended.out, Console(file=screen, width=300))
    assert line in screen.getvalue()


def test_of_an_error_the_upper_end_counts_and_without_noise_no_epsilon_is_asked_for():
    error = {"value": 2.0, "interval": [1.8, 2.2], "better": "lower", "baseline": 2.1}
    summary = {"rounds": 3, "metric": "rmse", "metrics": {"rmse": error}, "guarantee": None}
    assert not_better(summary).endswith("; more rounds or more rows are needed.")
    assert not_better(summary | {"metrics": {"rmse": error | {"baseline": 2.3}}}) == ""


@pytest.mark.parametrize(
    "known", [{}, {"accuracy": WEAK | {"interval": None}}, {"accuracy": WEAK | {"baseline": None}}]
)
def test_a_run_without_test_rows_is_held_against_no_constant(known):
    assert not_better({"rounds": 3, "metric": "accuracy", "metrics": known, "guarantee": None}) == ""


def test_a_page_says_that_its_model_is_no_better_than_a_constant_answer(ended):
    files = read(ended.out)
    for interval, said in (([0.11, 0.18], "Not better than the majority-class baseline"), ([0.13, 0.18], "")):
        summary = (files.summary or {}) | {"metrics": {"accuracy": WEAK | {"interval": interval}}}
        assert run_page(replace(files, summary=summary))["not_better"].partition(":")[0] == said


def test_what_a_sites_ledger_adds_up_is_said_of_that_ledger_alone(ended):
    """A federation that was copied before its first run has two ledgers, and neither can know of the other."""
    screen = io.StringIO()
    shown_deployed(ended.summary | {"sites": {"epsilon": {"uni": 1.0}}}, ended.out, Console(file=screen, width=300))
    assert "epsilon per record 1.000 over all runs of this ledger" in screen.getvalue()
