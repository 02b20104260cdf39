"""The key of noise covers the code that a release is a function of: all of it, and no more."""

import ast
import re
import shutil
import sqlite3
from functools import cache
from pathlib import Path

import pytest
from test_layers import imported, modules
from trained import Stop, same_model, stop_after

import tacit
from tacit.engine import release
from tacit.engine.run_folder import CHECKPOINT

READS = {  # what starts runs, carries messages, reads or prints: no release is a function of it
    *("deploy.flower_mod", "deploy.nvflare_filter"),  # between another framework's messages and deploy.site
    *("__main__", "cli", "deploy.operate", "deploy.server", "predict", "report", "simulation", "table"),
    "lab",  # lab.tuning decides which runs there are; a search's payment has it
}
FOUND = dict(modules())
TACIT_FROM_ABOVE = {
    "tacit",
    "tacit.deploy",
    "tacit.experiment.presets",
}  # a version, which is in the key by itself, and no code


def inside(module, rooms):
    return any(f"{module}.".startswith(f"tacit.{room}.") for room in rooms)


def named(path):
    """The modules that a file names as texts: rooms whose parts are found by name."""
    texts = (node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Constant))
    said = {text for text in texts if isinstance(text, str) and re.fullmatch(r"tacit(\.\w+)+", text)}
    return {module for module in FOUND for text in said if f"{module}.".startswith(f"{text}.")}


@cache
def used(module):
    """The modules that one imports or names."""
    return {*imported(FOUND[module], FOUND), *named(FOUND[module])} - TACIT_FROM_ABOVE


def outside(rooms):
    """(module, what it imports or names and is not covered), of every covered module."""
    covered = [module for module in FOUND if inside(module, rooms)]
    return [(module, other) for module in covered for other in used(module) if not inside(other, rooms)]


def test_whatever_a_release_is_a_function_of_imports_or_finds_by_name_nothing_that_the_key_of_noise_leaves_out():
    assert outside(release.RELEASING) == []


@pytest.mark.parametrize("room", sorted(set(release.RELEASING) - {"deploy.site"}))
def test_a_room_that_is_left_out_is_found(room):
    assert outside(set(release.RELEASING) - {room}) != []


def test_every_module_is_one_that_releases_or_one_that_reads_and_what_reads_draws_no_noise_of_a_release():
    both = [
        (inside(module, release.RELEASING), inside(module, READS)) for module in sorted(set(FOUND) - TACIT_FROM_ABOVE)
    ]
    assert {*both} == {(True, False), (False, True)}
    starts = {
        module for module in FOUND if inside(module, READS) and "releases.streams()" in FOUND[module].read_text("utf-8")
    }
    assert starts == set()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A copy of Tacit's code, as which this process is taken for installed."""
    place = tmp_path / "installed" / "tacit"
    shutil.copytree(
        Path(tacit.__file__).parent, place, ignore=lambda folder, names: [n for n in names if n == "__pycache__"]
    )
    monkeypatch.setattr(tacit, "__file__", str(place / "__init__.py"))
    release.package.cache_clear()
    yield place
    release.package.cache_clear()


def edit(path):
    path.write_text(path.read_text("utf-8") + "# a comment\n", "utf-8")
    release.package.cache_clear()


EXPERIMENT = tacit.Experiment(
    data={"clients": 3, "examples_per_client": 30},
    train={"rounds": 3, "local_steps": 1, "sampling_rate": 0.5},
    privacy={"kind": "local", "epsilon": 5.0, "delta": 1e-3},
    run={"workers": 1},
)


def crashed(out):
    """A run that paid for its second round and crashed before the checkpoint of it."""
    with pytest.raises(Stop):
        tacit.run(EXPERIMENT, out=out, observe=stop_after(0), page=False)
    before = (out / CHECKPOINT).read_bytes()
    with pytest.raises(Stop):
        tacit.run(EXPERIMENT, out=out, resume=True, observe=stop_after(1), page=False)
    (out / CHECKPOINT).write_bytes(before)


def charges(out, what="client, round, event"):
    db = sqlite3.connect(out / "ledger.db")
    found = db.execute(f"SELECT {what} FROM charges ORDER BY client, round").fetchall()
    db.close()
    return found


def test_a_comment_in_the_report_page_between_a_crash_and_a_resume_charges_nobody_again_and_changes_no_bit(
    installed, tmp_path
):
    whole = tacit.run(EXPERIMENT, out=tmp_path / "whole", page=False)
    crashed(tmp_path / "run")
    edit(installed / "report" / "page.py")
    resumed = tacit.run(EXPERIMENT, out=tmp_path / "run", resume=True, page=False)
    assert same_model(whole.out, resumed.out)
    assert len(charges(resumed.out)) == 9
    assert charges(resumed.out) == charges(whole.out)


def test_a_comment_in_what_trains_is_another_release_and_is_paid_for(installed, tmp_path):
    crashed(tmp_path / "run")
    edit(installed / "training" / "sgd.py")
    resumed = tacit.run(EXPERIMENT, out=tmp_path / "run", resume=True, page=False)
    again = [
        (client, attempt) for client, round, attempt in charges(resumed.out, "client, round, attempt") if round == 1
    ]
    assert len(set(again)) == 6
    assert resumed.summary["stopped"] == "budget"  # what was paid twice is missing for the last round


def test_a_file_of_every_room_is_in_the_key_and_no_file_of_what_reads_is(installed):
    keys = {release.package()}
    for room in release.RELEASING:
        place = installed.joinpath(*room.split("."))
        edit(place.with_suffix(".py") if place.with_suffix(".py").exists() else sorted(place.rglob("*.py"))[-1])
        assert release.package() not in keys, room
        keys.add(release.package())
    edit(installed / "simulation.py")
    assert release.package() in keys
