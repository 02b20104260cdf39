"""A kind of privacy is one room: a fourth one runs through the whole house without a line of it being edited."""

import json
import re
import sys
from pathlib import Path

import pytest
import ready
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.deploy.site.consent import digest
from tacit.deploy.site.limits import Demand, Limits, hold
from tacit.errors import BadInput, Refused
from tacit.privacy import samplers
from tacit.privacy.accounting import price
from tacit.privacy.guarantee import EMPTIED, FOREIGN, Words, promise
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.plan import Charging, Figures, Noising, Statement, kind_of

ROOT = Path(__file__).resolve().parents[1]
TOY = {
    "name": "toys",
    "data": {"name": "digits", "clients": 4},
    "train": {"rounds": 2, "local_steps": 2, "batch_size": 16},
    "privacy": {"kind": "toy_kind:Toy", "unit": "client", "epsilon": 8.0, "noise_multiplier": 3.0},
    "run": {"workers": 1},
}
SETTINGS = ["privacy.kind=toy_kind:Toy", "privacy.unit=client", "privacy.epsilon=8", "privacy.noise_multiplier=3"]
SMALL = ["train.rounds=2", "train.local_steps=2", "data.clients=4"]


ODD_KINDS = """
from toy_kind import ToyPlan

def Nothing(): return None
class NoPlans: plan = refuse_at_site = print
class NoPlan: plans, refuse_at_site = ToyPlan, print
class NoRefusal: plans, plan = ToyPlan, print
"""


def toy(**privacy):
    return tacit.Experiment(**(TOY | {"privacy": TOY["privacy"] | privacy}))


def chosen(*more):
    return [word for setting in (*SETTINGS, *SMALL, *more) for word in ("--set", setting)]


def test_a_kind_of_somebody_elses_is_simulated_charged_and_promised(tmp_path):
    history = tacit.run(tacit.Experiment(**TOY), out=tmp_path / "run")
    assert len(history.rounds) == 2
    assert "whoever sees a toy" in history.sentence
    experiment = tacit.Experiment(**TOY)
    event = kind_of(experiment).plan(experiment, [0] * 4, size=1).mechanism.event()
    spent = price.epsilon(((event, 2),), delta=1e-5)
    assert history.guarantee.epsilon_max == pytest.approx(spent)
    assert isinstance(history.ledger, Ledger)
    assert history.ledger.path.exists()
    assert (tmp_path / "run" / "report.html").exists()
    assert (
        tacit.run(tacit.Experiment(**TOY), out=tmp_path / "again").summary["test_loss"] == history.summary["test_loss"]
    )


def test_a_kind_of_somebody_elses_is_planned_compared_reported_and_its_ledger_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["plan", "digits", *chosen(), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)[0]["guarantee"] == "toys"
    vary = ["--vary", "privacy.noise_multiplier=3,6", "--seeds", "1", "--jobs", "1", "--out", "compared"]
    with ready.workers():
        done = CliRunner().invoke(app, ["compare", "digits", *chosen(), *vary], env={"PYTHONPATH": str(ROOT / "tests")})
    assert done.exit_code == 0, done.output
    folder = next((tmp_path / "compared" / "runs").glob("*/seed-*"))
    for words in (["report", str(folder)], ["ledger", str(folder)]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    assert "whoever sees a toy" in (folder / "report.html").read_text("utf-8")


def test_a_site_takes_no_kind_but_tacits_own_even_if_its_people_accepted_the_experiment():
    experiment = tacit.Experiment(**TOY)
    limits = Limits(epsilon=8.0, delta=1e-5, unit="client", trial=True, accept={"experiments": (digest(experiment),)})
    with pytest.raises(Refused, match="kind of privacy is not Tacit's own"):
        hold(limits, Demand(experiment=experiment))


@pytest.mark.parametrize("name", ["toy_kind:Nobody", "no_such_module:Toy", ":", "toy_kind:", "a b:c"])
def test_a_kind_that_cannot_be_had_is_refused_in_one_sentence(name):
    with pytest.raises(BadInput, match=r"^(Expected )?privacy.kind"):
        kind_of(toy(kind=name))


@pytest.mark.parametrize(
    "body", ["def Toy(:", "raise RuntimeError('no')", "def Toy(): raise RuntimeError('no')", "def Toy(x): ..."]
)
def test_a_kind_whose_own_code_is_broken_is_refused_in_one_sentence(tmp_path, monkeypatch, body):
    (tmp_path / "broken_kind.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_kind", raising=False)
    with pytest.raises(BadInput, match=r"(cannot be (imported|made)|privacy.x is missing)"):
        kind_of(toy(kind="broken_kind:Toy"))


@pytest.mark.parametrize("name", ["Nothing", "NoPlans", "NoPlan", "NoRefusal"])
def test_what_is_no_kind_is_refused_before_anything_is_asked_of_it(tmp_path, monkeypatch, name):
    (tmp_path / "odd_kind.py").write_text(ODD_KINDS)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadInput, match="is no kind of privacy: it"):
        kind_of(toy(kind=f"odd_kind:{name}"))


def test_a_kind_of_somebody_elses_must_say_whom_its_epsilon_is_about_and_the_promise_says_whose_code_it_is():
    with pytest.raises(BadInput, match=r'needs privacy\.unit: say "record" or "client"'):
        toy(unit=None)
    said = promise(toy(), Words("whoever sees a toy", EMPTIED, "toys"))
    assert said.assumes[-1] == FOREIGN
    assert FOREIGN not in promise(toy(kind="local"), Words("a", EMPTIED, "b")).assumes


@pytest.mark.parametrize("lacking", ["draw", "event", "relation", "words"])
def test_a_sampler_that_lacks_its_draw_its_price_or_its_words_cannot_be_made(lacking):
    whole = {name: getattr(samplers.Poisson, name) for name in ("draw", "event", "relation", "words")}
    assert type("Whole", (samplers.Sampler,), whole)(10, 5).charges_all
    with pytest.raises(TypeError, match=lacking):
        type("Forgetful", (samplers.Sampler,), {name: own for name, own in whole.items() if name != lacking})(10, 5)


def test_a_sampler_that_there_is_not_is_never_taken_for_another():
    with pytest.raises(BadInput, match="sampler"):
        samplers.named("everybody")


def test_a_plan_is_four_protocols_of_at_most_six_members_each():
    for part in (Charging, Noising, Statement, Figures):
        members = {name for name in (*vars(part), *part.__annotations__) if not name.startswith("_")}
        assert len(members) <= 6, sorted(members)


def test_nobody_asks_which_kind_a_plan_is_of_outside_the_kinds_own_rooms():
    asking = re.compile(r"isinstance\([^)]*\b\w*[Pp]lan\b|\w*Plan\)|privacy\.kind (==|!=|in\b|not in\b)")
    own = (
        "privacy/local.py",
        "privacy/central/",
        "privacy/distributed/",
        "privacy/plan.py",
        "privacy/samplers.py",
        "experiment/",
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (ROOT / "tacit").rglob("*.py")
        if not path.relative_to(ROOT / "tacit").as_posix().startswith(own)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if asking.search(line) and "class " not in line and "not in KINDS" not in line
    ]
    assert found == []
