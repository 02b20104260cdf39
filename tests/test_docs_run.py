"""Every command that a page tells people to type is run: here, made small, or by the test that is named; or it says why not."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import ready
from docs_pages import PAGES, ROOT, WRITTEN, Command, commands, known, named_only
from test_docs_commands import WALKS

from tacit.deploy.operate.processes import free_port
from tacit.deploy.site.updates import pay

SMALL = {  # what makes a command small; a later word of a command wins over an earlier one
    "run": ["--set", "train.rounds=2"],
    "compare": ["--set", "train.rounds=2", "--set", "run.workers=1", "--seeds", "1", "--jobs", "1"],
    "tune": ["--set", "train.rounds=2", "--set", "run.workers=1", "--runs", "2"],
    "attack": ["--set", "train.rounds=2", "--set", "run.workers=1", "--jobs", "1"],
}
INSTEAD = ["--set", "data.name=digits", "--set", "data.clients=20", "--set", "data.examples_per_client=60"]  # for MNIST
WITH = {"backdoor": ["seeds=1"], "property": ["looks=1", "auxiliary=4"], "inversion": ["records=1"]}
ELSEWHERE = {  # what another test runs: its file and name
    "tests/federation/operate/test_hospitals.py::test_the_walk_through_of_the_documentation_works_as_it_is_written": (
        "python make_records.py",
        "tacit run hospitals.toml --out simulated",
        "tacit deploy init federation --sites north,coast,valley --experiment hospitals.toml",
        "tacit deploy check federation",
        "tacit deploy up federation",
        "tacit predict federation/results public-test.csv --out predictions.csv",
        "tacit ledger federation/sites/north",
        "tacit ledger federation/sites/north --to north.csv",
        "tacit ledger federation/sites/north --verify",
        "tacit ledger sites/north",
        "tacit ledger sites/north --to north.csv",
        "tacit ledger sites/north --verify",
    ),
    "tests/federation/operate/test_own_models_deployed.py::test_from_init_to_up_to_the_better_model_of_each_site": (
        "tacit deploy site sites/north --adapt",
        "tacit deploy site sites/north --evaluate new.csv",
        "tacit predict sites/north new.csv",
    ),
    "tests/audit/test_site_canaries.py::test_a_site_audits_what_it_released_and_clean_code_is_not_accused": (
        "tacit audit sites/north",
    ),
    "tests/federation/operate/test_hospitals.py::test_resuming_a_finished_deployment_starts_nothing_and_shows_it": (
        "tacit deploy up trial --resume",
    ),
    "tests/federation/operate/test_hospitals.py::"
    "test_hospitals_without_any_public_row_train_and_know_what_they_say_themselves": ("tacit stats federation",),
    "tests/report/test_site_page.py::test_it_is_for_its_owner_alone_and_stays_in_its_folder": (
        "tacit report federation/sites/north",
        "tacit report sites/north",
    ),
    "tests/federation/operate/test_init_and_check.py::"
    "test_check_prints_the_line_that_lists_a_sites_own_code_and_imports_nothing_for_it": (
        "tacit deploy check sites/north",
    ),
    "tests/tuning/test_tune.py::"
    "test_a_search_scored_by_a_priced_query_charges_every_answer_of_every_run_before_the_first": (
        "tacit tune hospitals.toml --set data.held_out=0.3 --vary train.learning_rate=0.5,2,5 --runs 3 --price",
    ),
}
BY_HAND = {  # what no test runs, by how it begins: why
    "make ": "a target of the Makefile: `.ci/run`, or whoever releases, makes it",
    "python bench/": "a measurement: hours, or other people's packages; tests/test_programs.py runs it small",
    "python experiments/": "a study of hours or on a GPU; tests/test_programs.py runs it small",
    "python -m pip": "asks a package index; `make package` installs what it builds without one",
    "python docs/": "writes a page, which a test holds against the code",
    "python tests/golden.py": "writes the golden bits, which tests/test_golden.py holds",
    "tacit deploy server federation": "serves until it is stopped; the fault tests start servers with this command",
    "tacit deploy site new-machine/client-0": "answers until it is stopped; the fault tests start sites with this command",
    "tacit run digits-pfa --set aggregate.rule=mine:": "the file is the reader's own; tests/test_plugin.py has rules in a folder",
    "tacit deploy check second": "the second of two federations, whose first ledgers go on in it: real processes, twice",
    "tacit deploy init second": "as above",
    "tacit deploy up first": "as above",
    "tacit deploy up second": "as above",
    "tacit report first/results second/results": "as above",
    "tacit deploy up sealed": "four sites with keys of 3072 bits take minutes; tests/federation/flower/test_threshold.py has less",
}
CODES = re.compile(r"\bexit (\d)\b")
ANSWERS = ("no", "yes")
LIVE, TRIAL = "--live", "trial"  # of the trial the README has the commands of how-to-deploy, which are run there


@cache
def typed(page):
    """The commands of a page that can be typed as they stand."""
    return [command for command in commands(page) if not named_only(command)]


def elsewhere(line):
    """The test that runs a command; None where none is named."""
    return next((test for test, lines in ELSEWHERE.items() if line in lines), None)


def by_hand(line):
    """Why no test runs a command; None where one does."""
    return next((why for start, why in BY_HAND.items() if line.startswith(start)), None)


def runs_here(page):
    """What of a page is run here: not the walks and the cells, which other tests run as they stand, and nothing twice."""
    as_it_stands = "sh" if page.stem in WALKS else "python"
    ours = [one for one in typed(page) if one.block != as_it_stands and not repeated(one, page)]
    return [one for one in ours if not elsewhere(one.line) and not by_hand(one.line)]


def repeated(command, page):
    """Whether another page has the same line, and what it leaves behind is of no use to a later line of this one."""
    if TRIAL in command.words:
        return page.stem == "README"
    first = next(one for one in READ if command.line in {other.line for other in typed(one)})
    return "--out" not in command.words and page != first


READ = [page for page in PAGES if page.stem not in WRITTEN]
RUN = [page for page in READ if runs_here(page)]


def test_what_another_test_runs_or_nobody_does_is_on_a_page_and_that_test_is_there():
    said = {command.line for page in READ for command in typed(page)}
    for test, lines in ELSEWHERE.items():
        path, _, name = test.partition("::")
        assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8"), test
        assert sorted(set(lines) - said) == [], "no page has it any more"
    assert [start for start in BY_HAND if not any(line.startswith(start) for line in said)] == []
    assert len(said) > 150
    assert sum(by_hand(line) is None for line in said if line.startswith("tacit ")) > 100


def small(command):
    """A command's words with what makes it small: few rounds and seeds, the digits in the place of MNIST, a folder of its own."""
    found, words = known(command)
    takes = {name for one in found.params for name in one.opts}
    name = found.name
    more = [] if "--resume" in words or name not in SMALL else [*SMALL[name]]
    if "mnist" in command.line and "--set" in takes:
        more += INSTEAD + (["--set", "train.clients_per_round=10"] if "mnist-central" in words else [])
    more += ["--set", "attack.start=0"] if "attack.start" in command.line else []
    if command.line.startswith("tacit deploy init"):
        more += ["--address", f"127.0.0.1:{free_port()}"]  # others may use the usual one
    if name == "attack":
        more += [word for one in WITH.get(words[0], ()) for word in ("--with", one)]
        more += ["--with", "models=6"] if "models=" in command.line else []
    return [*command.words[1:], *more]


def hospitals_of_start(place):
    """The experiment file of "Start with your own csv", with rows as it declares them, and new ones."""
    text = (ROOT / "docs" / "how-to-start.md").read_text("utf-8")
    (place / "hospitals.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.S)[1], "utf-8")
    head = "hospital,age,chol,smoker,ward,ill"
    rows = [
        f"{name},{20 + 7 * k % 70},{'' if k % 9 == 0 else 150 + k % 200},{ANSWERS[k % 3 > 0]},{k % 4},{ANSWERS[k % 2]}"
        for name in ("north", "coast", "valley")
        for k in range(150)
    ]
    (place / "records.csv").write_text("\n".join((head, *rows)) + "\n", "utf-8")
    new = [row.partition(",")[2] for row in (head, *rows[:20])]
    (place / "new.csv").write_text("\n".join(new) + "\n", "utf-8")


def examples(place):
    shutil.copytree(ROOT / "examples", place / "examples")


def several_audited(place):
    for number in (1, 2, 3):
        words = ("--set", "train.rounds=2", "--set", "audit.canaries=200", "--set", "privacy.epsilon=6")
        finished(
            place,
            Command(" ".join(("tacit run digits", *words, "--set", f"run.seed={number}", "--out", f"run-{number}"))),
        )


def one_ledger(place):
    hospitals_of_start(place)
    words = "--set privacy.ledger=hospital.db --set privacy.delta_share=0.1 --set privacy.noise_multiplier=3"
    finished(place, Command(f"tacit run digits {words}"))


def second_run(place):
    finished(place, Command("tacit run digits --out runs/second"))


def site_of_a_job(place):
    site, page = place / "sites" / "north", (ROOT / "docs" / "how-to-beside-other-frameworks.md").read_text("utf-8")
    site.mkdir(parents=True)
    (site / "site.toml").write_text('name = "north"\n')
    (site / "budget.toml").write_text(re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)[0])
    model = {"w": np.zeros(10, np.float32)}
    pay(site, "a job", lambda: (0, model)).release(lambda: model)


TAKEN_FOR_GRANTED = {  # by page: what it speaks of before, or shows in a block that is no command
    "README": second_run,
    "concepts": one_ledger,
    "attacks": hospitals_of_start,
    "how-to-audit": several_audited,
    "how-to-beside-other-frameworks": site_of_a_job,
    "how-to-join": examples,
    "how-to-start": hospitals_of_start,
    "results": examples,
}


def finished(place, command):
    """Runs a command, made small, as its page says it ends."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if command.program == "python":
        words = [sys.executable, *command.words[1:]]
        done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, check=False)
    elif LIVE in command.words:
        return served(place, command, env)
    else:
        again = command.words[1:3] == ["deploy", "init"] and (place / command.words[3]).exists()
        place = Path(tempfile.mkdtemp(dir=place)) if again else place  # a page's second way to make the same folder
        done = ready.tacit(*small(command), cwd=place, env=env).wait(300)
    assert done.returncode in ends(command), (command.line, done.stdout[-1500:], done.stderr[-1500:])
    return done


def ends(command):
    """The exit codes that a page allows; an audit accuses clean code, too, once in a while."""
    if command.refused:
        return (2,)
    said = CODES.search(command.note)
    return (0, 3) if command.words[1:2] == ["audit"] and said is None else (int(said[1]),) if said else (0,)


def served(place, command, env):
    """A page that is served until it is stopped."""
    started = ready.tacit(*command.words[1:], cwd=place, env=env)
    until = time.monotonic() + 60
    while "http://127.0.0.1" not in started.said() and time.monotonic() < until and started.alive():
        time.sleep(0.1)
    said = started.said()
    started.kill()
    assert "http://127.0.0.1" in said, (command.line, said)
    return None


def order(commands):
    """As the page has them, but for what goes on with, or looks at, what a later line makes."""
    return sorted(dict.fromkeys(commands), key=lambda one: (LIVE in one.words, "--resume" in one.words))


@pytest.mark.docs_commands
@pytest.mark.parametrize("page", RUN, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_the_commands_of_a_page_run_made_small(page, tmp_path):
    TAKEN_FOR_GRANTED.get(page.stem, lambda _: None)(tmp_path)
    for command in order(runs_here(page)):
        began = time.monotonic()
        finished(tmp_path, command)
        print(f"{time.monotonic() - began:6.1f} s  {command.line}")
