"""`membership`: was this record trained on? LiRA (Carlini et al. 2022, arXiv:2112.03570) and RMIA (Zarifzadeh, Liu, Shokri 2024,
arXiv:2312.03262) ask the final model; FedMIA (Zhu et al. 2024, arXiv:2402.06289) asks the updates that the server gets.

Half of every client's records train a model, drawn at random, and the other half its mirror. Every model is attacked in turn, with
all others but its mirror as shadow models; they are runs of the very experiment, with its noise, from the same first model, which a
server chooses. The server of the third attack watches one run, and judges each client's update by those of the others."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit import check
from tacit.engine.assemble import Parts, build
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.attacks import Attack, Estimate, Finding, Line, Place, Plot
from tacit.lab.attacks import _finding as roc
from tacit.lab.attacks._membership import FEWEST_MODELS, confidences, lira, rmia, server_view, shadows
from tacit.lab.attacks._records import halves, pooled, whole
from tacit.privacy.plan import kind_of

MOST_LISTED = 10  # clients in a table that people read
MOST_PUBLIC = 5000  # public rows that a record is compared with
TRUSTED = "Central DP trusts the server, which sees updates before their noise: what it promises is about models alone."
NO_UPDATES = "The server sees no single updates here, or never those of three clients, so its view is left out."


@dataclass(frozen=True)
class membership(Attack):
    """`models` runs are trained in all; `gamma` is RMIA's; `server = "no"` leaves out the server's view."""

    models: int = 12  # runs that are trained, an even number
    gamma: float = 2.0  # RMIA's threshold on ratios
    server: str = "yes"  # "no" leaves out the server's view

    def __post_init__(self) -> None:
        if self.models < FEWEST_MODELS or self.models % 2:
            raise BadInput(
                f"Expected an even number of models, at least {FEWEST_MODELS}, got {self.models}: one is attacked, its mirror is"
                " left out, and of at least four shadow models two have each record and two do not."
            )
        check.at_least(1, **{"with.gamma": self.gamma})
        check.one_of(("yes", "no"), **{"with.server": self.server})

    def perform(self, experiment: Experiment, place: Place) -> Finding:
        """Trains, asks and scores. Raises TacitError where the data cannot be read, or a run fails."""
        first, parts = pooled(experiment, number=0), build(whole(experiment))
        seed, population = experiment.run.seed, parts.population
        member = np.stack([halves(population, seed=seed, number=number) for number in range(self.models)])
        folders = shadows(experiment, place, models=self.models)
        phi, log_p = confidences(parts, folders, population.x, population.y)
        answers = {
            "LiRA": lira(phi, member),
            "RMIA": rmia(log_p, member, self._public(parts, folders, log_p), gamma=self.gamma),
        }
        rows = np.arange(phi.shape[1])
        pairs = np.arange(self.models)[:, None] // 2
        scored = {name: roc.Scored.of(scores, member, rows, pairs) for name, scores in answers.items()}
        notes = roc.too_few(scored["LiRA"])
        if self.server == "yes":
            seen = server_view(parts, first, place)
            if seen is None:
                notes.append(NO_UPDATES)
            else:
                known = np.isfinite(seen)
                scored["server"] = roc.Scored.of(seen[known], member[0][known], rows[known])
                notes += [f"The server's view: {note}" for note in roc.too_few(scored["server"])]
                notes += [TRUSTED] if kind_of(experiment).plans.traits.trusts_server else []
        return _finding(experiment, parts, scored, notes)

    def _public(self, parts: Parts, folders: list[Any], log_p: np.ndarray) -> np.ndarray:
        """What every model says of public rows; where there are none, of the clients' own."""
        x, y = parts.test_rows
        return confidences(parts, folders, x[:MOST_PUBLIC], y[:MOST_PUBLIC])[1] if len(y) else log_p


def _finding(experiment: Experiment, parts: Parts, scored: dict[str, roc.Scored], notes: list[str]) -> Finding:
    estimates: list[Estimate] = []
    for name, one in scored.items():
        estimates.append(roc.auc(one, of=name))
        estimates += [roc.found_at(one, rate, of=name) for rate in roc.RATES]
    clients = {name: _by_client(parts, one) for name, one in scored.items()}
    if len(parts.population) <= MOST_LISTED:
        estimates += [
            Estimate(auc.name, auc.value, auc.low, auc.high, f"{name}, {client}")
            for name, found in clients.items()
            for client, auc in found.items()
        ]
    lines = (*(roc.line(one, name) for name, one in scored.items()), roc.chance())
    curve = Plot("roc", "Members found", "false alarms", "members found", lines, log=True)
    attacked = (
        f"{len(parts.population.y)} records of {len(parts.population)} clients, {experiment.privacy.kind} privacy"
    )
    return Finding(
        "membership", experiment.name, attacked, tuple(estimates), (curve, _clients_plot(clients)), notes=tuple(notes)
    )


def _by_client(parts: Parts, scored: roc.Scored) -> dict[str, Estimate]:
    """The AUC within each client's records, where both kinds are there."""
    population, found = parts.population, {}
    whose = np.repeat(np.arange(len(population)), population.sizes)[scored.groups]
    for index, name in enumerate(population.names):
        own = whose == index
        if scored.member[own].any() and not scored.member[own].all():
            found[name] = roc.auc(scored.only(own))
    return found


def _clients_plot(clients: dict[str, dict[str, Estimate]]) -> Plot:
    lines = []
    for name, found in clients.items():
        ordered = sorted(found.values(), key=lambda auc: -auc.value)
        low, high = (tuple(float(getattr(auc, end) or 0.0) for auc in ordered) for end in ("low", "high"))
        places = tuple(float(place) for place in range(1, len(ordered) + 1))
        lines.append(Line(name, places, tuple(auc.value for auc in ordered), low, high))
    longest = max(len(line.x) for line in lines)
    lines.append(Line("chance", (1.0, float(longest)), (0.5, 0.5)))
    return Plot("clients", "AUC of each client, the highest first", "clients", "AUC", tuple(lines))
