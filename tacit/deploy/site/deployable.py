"""Which experiments can be deployed, and what they name for a site. Reading one loads no torch."""

import math
from functools import lru_cache

from tacit import wire
from tacit.data.names import FROM_DATA
from tacit.errors import BadInput, Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import NOBODY_MALICIOUS, refuse_deployed

OWN_FILES = ("csv", "npz")  # sources where every site has a file of its own; the others are shared out for a trial
MOST_WORDS = 500  # of a refusal that repeats parts of an experiment


@lru_cache(maxsize=16)
def read_experiment(text: str) -> Experiment:
    """The experiment that the server's text describes; the same text is parsed and checked once in a process. Raises: Refused.

    Guarantee: reading it imports nothing, opens no file and runs no part of it, and the text may be of any kind. What is returned
    has a site open no path of the server's, and can be deployed.
    """
    try:
        experiment = Experiment(**wire.toml_table(text, what="Its text"))
        refuse_paths(experiment)
        refuse_undeployable(experiment)
        refuse_unpinned(experiment)
        return experiment
    except (BadInput, TypeError) as error:  # TypeError: a key that is no name of an argument
        raise Refused(f"The server's experiment cannot be used: {str(error)[:MOST_WORDS]}") from None


WATCHED = (
    "In a deployment whoever watches the network sees who takes part in a round, and this epsilon counts on nobody's seeing it: set"
    ' privacy.sampler = "cyclic", whose epsilon counts on no secret; or have every site in every round (leave out'
    " train.clients_per_round and privacy.adaptive_clip); or, if nobody whom the promise is against can see the traffic or the"
    ' server\'s log, say so by privacy.network = "unwatched".'
)


def refuse_paths(experiment: Experiment) -> None:
    """Refuses a file of epsilons, and a `path` of a source without files of the site's own: a site opens no path of the server's.

    Its rows, and a model's weights, are read from the paths in its site.toml; `data.test_path` is the server's. Raises: BadInput.
    """
    epsilon = experiment.privacy.epsilon
    if isinstance(epsilon, dict) and set(epsilon) == {"file"} and isinstance(epsilon["file"], str):
        raise BadInput("A site opens no file that the server names: write the epsilons into privacy.epsilon itself.")
    if experiment.data.name not in OWN_FILES and "path" in experiment.data.options():
        raise BadInput("A site opens no folder that the server names: leave out data.path.")


def refuse_undeployable(experiment: Experiment) -> None:
    """Refuses settings that make sense in one process only, such as a common ledger. Raises: BadInput."""
    data, privacy, options = experiment.data, experiment.privacy, experiment.data.options()
    own, declares = data.name in OWN_FILES, "test_path" in options or options.get("test_share") == 0
    for unfit, why in (
        (experiment.attack is not None, NOBODY_MALICIOUS),
        (
            own and data.partition != "natural",
            'In a deployment every site has its own rows: set data.partition = "natural".',
        ),
        (
            own and not declares,
            "The server of a deployment holds no client's rows: set data.test_path to public test rows, or, where nobody has"
            " public rows, data.test_share = 0.",
        ),
        (
            own and "client_column" in options,
            "In a deployment every site has its own file: leave out data.client_column.",
        ),
        (
            own and options.get("classes") == FROM_DATA,
            'In a deployment no site knows the labels of another: declare them, as in data.classes = ["no", "yes"].',
        ),
        (
            privacy.level == "maximum",
            'In a deployment no site exceeds its own budget: set privacy.level = "own" or "minimum".',
        ),
        (privacy.ledger is not None, "In a deployment every site keeps its own ledger: leave out privacy.ledger."),
        (experiment.secret_cohorts and privacy.network is None, WATCHED),
        (
            experiment.audit.canaries is not None,
            "In a deployment a site audits itself, and nobody else plants anything: leave out [audit], and set canaries in the"
            " site.toml of whoever wants to.",
        ),
        (
            experiment.train.control is not None,
            "SCAFFOLD tells the clients of a round the control variates of all of them, which a deployment does not send: leave"
            " out train.control.",
        ),
        (
            experiment.protect.key_file is not None,
            "A deployment makes its own keys, so that no file ever holds them all: leave out protect.key.",
        ),
    ):
        if unfit:
            raise BadInput(why)
    refuse_deployed(experiment)


def refuse_unpinned(experiment: Experiment) -> None:
    """Refuses csv rows whose columns every site would take from its own file, in its own order: one model on columns that mean
    different things, without an error. Raises: BadInput.
    """
    if experiment.data.name == "csv" and "columns" not in experiment.data.options():
        raise BadInput(
            "In a deployment every site reads the same columns in the same order: list them in data.columns."
        )


DEALT = "client-"  # how clients are named that rows are dealt out to


def proposed(experiment: Experiment, name: str) -> float:
    """The epsilon that an experiment names for a site; infinity where it promises nothing. Raises: Refused where it names none.

    A table names sites, a list those that rows are dealt out to (`client-0`, `client-1`, ...), and one number is for everybody.

    >>> proposed(Experiment(privacy={"kind": "local", "epsilon": {"north": 1.0, "coast": 3.0}}), "coast")
    3.0
    """
    epsilon = experiment.privacy.epsilon
    if isinstance(epsilon, dict):
        own = epsilon.get(name)
    elif isinstance(epsilon, tuple) and name.startswith(DEALT) and name.removeprefix(DEALT).isdecimal():
        index = int(name.removeprefix(DEALT))
        own = epsilon[index] if index < len(epsilon) else None
    else:
        own = math.inf if epsilon is None else epsilon
    if not isinstance(own, int | float):
        raise Refused(
            f"The experiment names no epsilon for {wire.shown(name)}: write one for every site into privacy.epsilon, as `tacit"
            " deploy init` does."
        )
    return float(own)


def everybody(experiment: Experiment, site: str, epsilon: float) -> dict[str, float] | None:
    """All sites as one of them knows them from the experiment, with the site's own epsilon, itself included; None if it cannot."""
    if experiment.data.name not in OWN_FILES:
        names = [f"{DEALT}{number}" for number in range(experiment.data.clients or 0)]
    else:
        names = list(experiment.privacy.epsilon) if isinstance(experiment.privacy.epsilon, dict) else []
    return dict.fromkeys(names, epsilon) if site in names else None
