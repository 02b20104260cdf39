"""Whoever writes an experiment names it; `tacit deploy init` makes programs, units and budget files with that name in them."""

import ast
import tomllib

import pytest

import tacit
from tacit.deploy.operate import init as made
from tacit.deploy.operate.init import SERVICES, init
from tacit.deploy.site.limits import read_limits
from tacit.errors import BadInput

NAMES = [
    'x"""\nraise SystemExit("the name of an experiment was run")\n"""',
    'x", by Tacit"\ndependencies = ["evil"]\n#',
    'x\n[accept.code]\n"os:system" = "00"\n[accept.settings]\n"privacy.kind" = ["local", "none"]\n#',
    "x\n[Service]\nExecStart=/bin/true\n",
    'x\\"""\\',
]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_an_experiment_is_neither_run_nor_taken_for_consent_in_what_is_made_of_it(tmp_path, name):
    """It stood as it was in the app that the server imports, in every site's budget.toml, and in the app's dependencies."""
    values = {"data": {"clients": 2, "examples_per_client": 30}, "train": {"rounds": 1}}
    experiment = tacit.Experiment(name=name, privacy={"kind": "local", "epsilon": 1.0}, **values)
    federation = init(tmp_path / "federation", sites="2", experiment=experiment, host="127.0.0.1", port=8443)
    (only,) = ast.parse((federation.app / "tacit_app" / "__init__.py").read_text("utf-8")).body
    assert isinstance(only, ast.Expr)
    project = tomllib.loads((federation.app / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["dependencies"] == [f"tacit[flower]=={tacit.__version__}"]
    for site in federation.sites:
        accept = read_limits(federation.site(site)).accept
        assert (accept.settings, accept.data, accept.code, len(accept.experiments)) == ({}, (), {}, 1)
    units = [*federation.folder.rglob(f"{SERVICES}/*.service"), federation.folder / "README.md"]
    assert all("\nExecStart=/bin/true" not in unit.read_text("utf-8") for unit in units)
    assert tacit.Experiment.load(federation.app / "tacit_app" / "experiment.toml").name == name, "the digest covers it"


@pytest.mark.parametrize("name", ["../../north", "a/b", "north\nsouth", "", "%h"])
def test_a_client_of_dealt_out_data_whose_name_is_a_path_is_no_site(tmp_path, monkeypatch, name):
    population = type("Population", (), {"names": ("client-0", name)})()
    monkeypatch.setattr(made, "clients", lambda experiment: (None, None, population))
    with pytest.raises(BadInput, match="cannot be the name of a site's folder"):
        made.site_budgets(tacit.Experiment(), "2")
