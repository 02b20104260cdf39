"""Fine-tuning between a server and sites: the body is at every site already, and a hash says that it is the same one."""

import pytest
import torch
import tuned
from safetensors.torch import save_file

from tacit.deploy.operate.inspect import site_findings
from tacit.deploy.site import agreement
from tacit.deploy.site.consent import code_digest
from tacit.deploy.site.limits import allow, read_limits
from tacit.deploy.site.site import Site
from tacit.errors import Refused, TacitError

PRIVACY = {
    "local": {"kind": "local"},
    "central": {"kind": "central", "epsilon": 2.0},
    "distributed": {"kind": "distributed", "epsilon": 4.0},
}


def listed(federation, name):
    """Lets every site import the model's code."""
    code = code_digest(name)
    for index in range(len(federation.names)):
        with (federation.site(index) / "budget.toml").open("a") as file:
            file.write(f'\n[accept.code]\n"{name}" = "{code}"\n')
    return federation


def stored(federation, folder):
    """A federation whose model reads the weights of its body from a file."""
    body(folder / "body.safetensors")
    model = {"name": "tuned:stored", "path": str(folder / "body.safetensors")}
    return listed(federation(model=model), "tuned:stored")


def body(path, seed=0):
    torch.manual_seed(seed)
    save_file(tuned.head(input_shape=(1, 8, 8), classes=10)[0].state_dict(), path)


@pytest.mark.parametrize("kind", PRIVACY)
def test_sites_train_a_head_on_the_body_that_each_has_built(federation, kind):
    deployed = listed(federation(model={"name": "tuned:head"}, privacy=PRIVACY[kind]), "tuned:head")
    history = deployed.run()
    assert [record["answered"] for record in history.rounds] == [3, 3, 3]
    assert history.summary["parameters"] == 170
    assert history.summary["uplink_bytes"] < 3 * 3 * (4 * 170 + 1500)
    known = agreement.read(deployed.site(0), history.summary["run"])
    assert known.terms.parameters == 170
    assert len(known.terms.frozen) == 32


def test_a_site_reads_the_weights_that_its_own_file_names_and_another_body_is_refused(federation, tmp_path):
    deployed = stored(federation, tmp_path)
    for index in range(3):
        assert 'model = "body.safetensors"' in (deployed.site(index) / "site.toml").read_text()
        body(deployed.site(index) / "body.safetensors", seed=0 if index < 2 else 1)
    with pytest.raises(TacitError, match=r"client-2 does not agree.*frozen part"):
        deployed.run()
    body(deployed.site(2) / "body.safetensors")
    assert [record["answered"] for record in deployed.run(out=tmp_path / "again").rounds] == [3, 3, 3]


def test_a_site_that_is_not_told_where_the_weights_are_opens_nothing_of_the_servers(federation, tmp_path):
    deployed = stored(federation, tmp_path)
    for index in range(3):
        deployed.edit(index, "model =", "# model =", file="site.toml")
    with pytest.raises(TacitError, match="does not agree"):
        deployed.run()
    assert "add model =" in (deployed.site(0) / "log.jsonl").read_text()


def current(folder, known):
    """The run of an agreement, as a site that has just been started has it."""
    return Site(folder)._current(known, allow(folder, known.experiment, read_limits(folder)))


def test_a_site_that_was_restarted_with_another_body_trains_nothing_on_it(federation, tmp_path):
    deployed = stored(federation, tmp_path)
    for index in range(3):
        body(deployed.site(index) / "body.safetensors")
    run = deployed.run().summary["run"]
    known = agreement.read(deployed.site(0), run)
    assert current(deployed.site(0), known).agreement.terms == known.terms
    body(deployed.site(0) / "body.safetensors", seed=1)
    with pytest.raises(Refused, match="others than when the run was agreed"):
        current(deployed.site(0), known)


def test_a_check_says_where_the_weights_are_or_that_they_are_not_there(federation, tmp_path):
    deployed = stored(federation, tmp_path)

    def found():
        return {
            finding.text: finding.wrong for finding in site_findings(deployed.site(0), experiment=deployed.experiment)
        }

    (missing,) = [text for text, wrong in found().items() if wrong]
    assert "weights" in missing
    assert "put them there" in missing
    body(deployed.site(0) / "body.safetensors")
    assert found()["client-0: the model's weights are in body.safetensors"] is False
