"""What an experiment asks beside training: which queries, and the share of epsilon that each may cost."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tacit import check
from tacit.errors import BadInput
from tacit.experiment.data import DataSection

if TYPE_CHECKING:
    from tacit.experiment import Experiment

PRIVATE = "private"  # in the place of a range: it is asked for
RANGES, EVALUATION, STATS = "ranges", "evaluation", "stats"
USUAL = {
    RANGES: 0.05,
    EVALUATION: 1.0,
    STATS: 0.1,
}  # of epsilon, unless said; held-out rows are asked about nothing else
WORDS = {
    RANGES: "the ranges of data.numeric",
    EVALUATION: "results on the rows of data.held_out",
    STATS: "statistics of the columns of privacy.stats",
}
TRAINED_ON, HELD_OUT = "trained on", "held out"  # the sides of the coin that every record has tossed
SIDES = {RANGES: TRAINED_ON, EVALUATION: HELD_OUT, STATS: TRAINED_ON}  # whom each query is about
PAID = {  # how the price of a query stands to that of training, by whom it is about
    TRAINED_ON: "which is part of the epsilon of training and not added to it",
    HELD_OUT: "which the records held out pay, while those trained on pay for training: no record pays for both",
}


def shares(experiment: "Experiment") -> dict[str, float]:
    """The queries of an experiment, by name, and the share of every client's epsilon that each may cost by itself.

    >>> from tacit.experiment import Experiment
    >>> shares(Experiment(data={"name": "csv", "path": "a.csv", "classes": 2, "numeric": {"chol": "private"}}))
    {'ranges': 0.05}
    """
    asked = {
        RANGES: bool(private_columns(experiment.data)),
        EVALUATION: experiment.data.held_out is not None,
        STATS: bool(experiment.privacy.stats),
    }
    said = {query: getattr(experiment.privacy, f"{query}_share") for query in asked}
    return {query: USUAL[query] if said[query] is None else said[query] for query, wanted in asked.items() if wanted}


def split(experiment: "Experiment") -> str:
    """The name of the coin that decides which records are held out; empty where none are."""
    from tacit.digest import mark  # it needs torch, which takes seconds to load

    share = experiment.data.held_out
    return "" if share is None else mark(HELD_OUT, repr((experiment.seeds.data, share)))


def private_columns(data: DataSection) -> tuple[str, ...]:
    """The csv columns whose ranges are asked for, in alphabetical order."""
    numeric = data.options().get("numeric") if data.name == "csv" else None
    return tuple(sorted(name for name, said in numeric.items() if said == PRIVATE)) if isinstance(numeric, dict) else ()


def read_with(data: DataSection, ranges: Mapping[str, tuple[float, float]]) -> DataSection:
    """The section that reads rows with ranges which were found, in the place of those that it calls private.

    >>> read_with(DataSection(name="csv", path="a.csv", numeric={"chol": "private"}), {"chol": (0.0, 512.0)}).options()["numeric"]
    {'chol': (0.0, 512.0)}
    """
    return data.model_copy(update={"numeric": data.options()["numeric"] | dict(ranges), "wide": {}}) if ranges else data


def refuse_per_client(experiment: "Experiment", why: str) -> None:
    """Refuses an experiment whose promise is not per record and each client's own. Raises BadInput, which begins with why."""
    privacy = experiment.privacy
    per_record = privacy.kind == "local" and privacy.unit_kept == "record" and privacy.noise_formula is None
    if privacy.kind != "none" and not per_record:
        raise BadInput(f'{why}: set privacy.kind = "local" with unit = "record" and no noise_formula, or do not ask.')


def refuse_unpriced(experiment: "Experiment") -> None:
    """Refuses queries that no ledger would pay for, and shares that no query has. Raises BadInput."""
    privacy, asked = experiment.privacy, shares(experiment)
    for query in USUAL:
        said = getattr(privacy, f"{query}_share")
        if said is not None:
            (check.rate if query == EVALUATION else check.probability)(**{f"privacy.{query}_share": said})
        if said is not None and query not in asked:
            raise BadInput(f"privacy.{query}_share is for {WORDS[query]}, which are not asked for: leave it out.")
    what = " and ".join(WORDS[query] for query in asked)
    if asked and experiment.run.engine != "tacit":
        raise BadInput(f"Flower's simulation engine does not ask for {what}: leave out run.engine.")
    if not asked or privacy.kind == "none":
        return
    refuse_per_client(experiment, f"Asking the clients for {what} is priced per record")
