"""A new site's folder: its name, its budget file, the experiment it is asked for, and an empty ledger."""

from pathlib import Path

from tacit.experiment import Experiment
from tacit.site.limits import NAME, digest
from tacit.site.rows import OWN_FILES
from tacit.toml import dumps

PROPOSAL = "proposal.toml"
BUDGET = """\
# What this site allows. It is read before every answer; nobody but the site changes it.
# proposal.toml is the experiment that the server proposes, in full: read it before you accept its digest below.
epsilon = {epsilon!r}
delta = {delta!r}
unit = "{unit}"            # one {unit} may come or go
trial = {trial}           # true also lets in seeded noise, which protects nothing from a server that knows the seed
most_rounds = {rounds}
# most_parameters = 100000

[accept]
experiments = ["{digest}"]  # {name}
# instead of digests, the settings an experiment may have:
# [accept.settings]
# "privacy.kind" = ["{kind}"]
# "model.name" = ["{model}"]
# "train.rounds" = {{max = 50}}
"""


def make_site(folder: Path, experiment: Experiment, *, name: str, epsilon: float) -> None:
    """Writes a site's folder for one experiment. The ledger is made by its first charge; an empty file is no charge."""
    folder.mkdir(parents=True)
    own = experiment.data.name in OWN_FILES
    settings = {"name": name} | ({"data": f"records.{experiment.data.name}"} if own else {})
    note = "# Who this site is, and where its rows are (relative to this folder).\n" if own else "# Who this site is.\n"
    (folder / "site.toml").write_text(note + dumps(settings), "utf-8")
    text = BUDGET.format(
        epsilon=epsilon,
        delta=experiment.privacy.delta,
        unit=experiment.privacy.unit_kept,
        trial=str(experiment.run.randomness == "seeded").lower(),
        rounds=experiment.train.rounds,
        digest=digest(experiment),
        name=experiment.name,
        kind=experiment.privacy.kind,
        model=experiment.model.name,
    )
    (folder / NAME).write_text(text, "utf-8")
    (folder / PROPOSAL).write_text(experiment.toml(), "utf-8")
    (folder / "ledger.db").touch(mode=0o600)
