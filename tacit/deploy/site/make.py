"""A new site's folder: its name, its budget file, the experiment it is asked for, and an empty ledger."""

from pathlib import Path

from tacit.deploy.site import layout, replies
from tacit.deploy.site.consent import data_digest, departures, digest
from tacit.deploy.site.layout import called
from tacit.deploy.site.rows import OWN_FILES
from tacit.experiment import Experiment
from tacit.experiment.file import dumps

BUDGET = """\
# What this site allows. It is read and applied before every answer; nobody but the site changes it.
# proposal.toml is the experiment that the server proposes, in full: read it before you accept its digest below.
epsilon = {epsilon!r}
delta = {delta!r}
unit = "{unit}"            # one {unit} may come or go
trial = {trial}           # true also lets in seeded noise, which protects nothing from a server that knows the seed
most_rounds = {rounds}
# most_parameters = 20000000   # and most_steps, most_batch, most_views, most_clients, most_bytes, most_runs
# answer_seconds = 60          # every answer to a round leaves this long after its question: how long training took is not seen

[accept]
experiments = ["{digest}"]  # {name}
# Instead of digests, the settings an experiment may have. Whatever is not named must have its default, and rows are read in the
# listed ways only:
# data = ["{data}"]
# [accept.settings]
{settings}
# Code of your own that an experiment may name ("package.module:name"), with the SHA-256 of its file. The package must be installed
# here; `tacit deploy check` on this folder then prints the line, as in
# [accept.code]
# "hospital.rules:clipped_median" = "64 hexadecimal digits"
"""


def make_site(folder: Path, experiment: Experiment, *, name: str, epsilon: float) -> None:
    """Writes a site's folder for one experiment.

    Guarantee: the budget file accepts this experiment by its digest and nothing else; the settings that would accept it stand
    there as comments. The ledger is an empty file, which is no charge: the first charge makes it one. A ledger that stands is
    left as it is; site.toml, budget.toml and proposal.toml are written anew.

    Raises: OSError.
    """
    replies.make_folder(folder)
    own = experiment.data.name in OWN_FILES
    settings = {"name": name} | ({"data": f"records.{experiment.data.name}"} if own else {})
    weights = experiment.model.options().get("path")
    settings |= {"model": Path(weights).name} if isinstance(weights, str) else {}
    where = [what for what, there in (("rows", own), ("model's weights", weights)) if there]
    whose = f", and where its {' and its '.join(where)} are (relative to this folder)" if where else ""
    note = f"# Who this site is{whose}.\n"
    _write(folder / layout.SETTINGS, note + dumps(settings))
    text = BUDGET.format(
        epsilon=epsilon,
        delta=experiment.privacy.delta,
        unit=experiment.privacy.unit_kept,
        trial=str(experiment.run.randomness == "seeded").lower(),
        rounds=experiment.train.rounds,
        digest=digest(experiment),
        name=called(experiment.name),
        data=data_digest(experiment),
        settings="".join(f"# {line}\n" for line in _settings(experiment)).rstrip(),
    )
    _write(folder / layout.BUDGET, text)
    _write(folder / layout.PROPOSAL, experiment.toml())
    replies.create(folder / layout.LEDGER, b"")


def _settings(experiment: Experiment) -> list[str]:
    """The experiment's own settings as the lines that would accept them."""
    table = {"accept.settings": {key: [value] for key, value in departures(experiment).items()}}
    return [line for line in dumps(table).splitlines() if " = " in line]


def _write(path: Path, text: str) -> None:
    replies.write(path, text.encode())
