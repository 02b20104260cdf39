"""What a run begins with and leaves: its ledger, who its clients are, its model, its summary and its history."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from dp_accounting import DpEvent
from safetensors.torch import save
from torch import nn

import tacit
from tacit.build.clients import population_id
from tacit.build.parts import Parts
from tacit.data import encoder_file
from tacit.engine import neighbours, per_client
from tacit.engine.asking import told
from tacit.engine.evaluate import answers, backdoor, classes_measured, confusion, measurements
from tacit.engine.exports import clients_record, csv_text, flat_records
from tacit.engine.folder import Folder
from tacit.engine.provenance import provenance
from tacit.errors import LedgerError
from tacit.malicious import BADGE
from tacit.privacy.guarantee import sentence, spent_by
from tacit.privacy.ledger.conditions import Condition, Draws
from tacit.privacy.ledger.holdings import holdings
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.witness import NAME as MARK
from tacit.tasks import headline
from tacit.train.flat import named
from tacit.train.frozen import frozen
from tacit.types import Guarantee

Asking = Callable[[str], Mapping[str, DpEvent]]  # by a client's name, its queries with their price
FROZEN = "frozen"  # the key, in a model's file, of the hash of what does not train


@dataclass(frozen=True, eq=False)
class History:
    """What a run leaves: a record per round, the model, the guarantee, the ledger, and the folder with the files."""

    rounds: list[dict[str, Any]] = field(repr=False)
    summary: dict[str, Any] = field(repr=False)
    model: nn.Module = field(repr=False)
    guarantee: Guarantee | None
    ledger: Ledger | None = field(repr=False)
    out: Path

    @property
    def sentence(self) -> str:
        """The guarantee as a privacy officer reads it."""
        return sentence(self.guarantee)

    def records(self) -> list[dict[str, Any]]:
        """A flat dict of scalars per round, as in rounds.csv: `pandas.DataFrame(history.records())`."""
        return flat_records(self.rounds, unit=self.guarantee.unit if self.guarantee else None)


def open_ledger(parts: Parts, folder: Folder, *, once: bool = False, asked: Asking | None = None) -> Ledger | None:
    """The ledger of a run, or None where nothing is charged; of a run of one release and no other where that is `once`, beside the
    queries that are `asked` (unless said: those of the run's own plan, and none beside one release).

    Raises: LedgerError where it lacks what the folder's run released.
    """
    if not parts.plan.priced:
        return None
    experiment, releases = parts.experiment, parts.releases
    shared = experiment.privacy.ledger
    path = Path(shared) if shared else folder.path / "ledger.db"
    draws = parts.plan.together and experiment.run.randomness == "seeded" and not parts.elsewhere
    conditions: list[Condition] = [Draws(releases.server_key, releases.digest)] if draws else []
    if experiment.data.partition == "natural" and not parts.elsewhere:
        conditions.append(holdings(parts.population, parts.dataset))
    if shared:
        neighbours.refuse_lost(path, folder.path)
    ledger = Ledger(
        path,
        population=population_id(experiment, parts.population, elsewhere=parts.elsewhere),
        run=folder.run,
        delta=experiment.privacy.delta,
        rounds=1 if once else parts.plan.turns(None, rounds=experiment.train.rounds),
        accountant=experiment.privacy.accountant,
        asked=asked or ((lambda client: {}) if once else asked_by(parts)),
        spare=not once,
        marks=(folder.path / MARK, *([path.with_name(f"{path.name}.mark")] if shared else [])),
        conditions=conditions,
    )
    refuse_unknown(folder, ledger)
    if shared:
        neighbours.refuse_older(ledger, folder.path)
    return ledger


def asked_by(parts: Parts) -> Asking:
    """The queries that each client answers beside its rounds, by its name."""
    if not any(parts.plan.asked(0)):
        return lambda client: {}
    places = {name: index for index, name in enumerate(parts.population.names)}
    return lambda client: parts.plan.asked(places[client]) if client in places else {}


def refuse_unknown(folder: Folder, ledger: Ledger) -> None:
    """Refuses to go on where the folder holds rounds that its ledger was never charged for. Raises LedgerError."""
    _, first = folder.restore() or (None, 0)
    for round in chain(range(first), folder.logged()):  # the first that is not known ends it, however many are claimed
        if not ledger.knows(round):
            raise LedgerError(
                f"{folder.path} holds round {round + 1}, and its ledger {ledger.path} knows no charge for it: restore the ledger"
                " that was charged; nothing was released."
            )


def note_clients(parts: Parts, ledger: Ledger | None, folder: Folder, *, simulated: bool = True) -> None:
    """Writes down how rows are read, who the clients are and what they are promised: a report or a prediction needs nothing but
    the folder. Raises BadInput for names that no file can hold.
    """
    encoder = encoder_file.text(parts.dataset.reading)
    folder.write(encoder_file.NAME, encoder.encode())  # `finish` puts the model beside it
    blank = parts.promise if ledger else None
    way = os.path.relpath(ledger.path, folder.path) if ledger else None
    folder.write("clients.json", json.dumps(clients_record(parts, blank, ledger=way, simulated=simulated)).encode())


def finish(
    parts: Parts,
    ledger: Ledger | None,
    folder: Folder,
    params: torch.Tensor,
    stopped: str,
    *,
    at_clients: dict[str, Any] | None = None,
    personal: dict[str, Any] | None = None,
    notes: Iterable[str] = (),
) -> History:
    """Writes the model and the summary of a run that has ended; `at_clients` is what held-out rows say of it, `personal` what own
    models gave, and `notes` is what its reader should know beside what is noted of the rows.
    """
    experiment = parts.experiment
    rounds = folder.rounds(before=experiment.train.rounds)
    name, measured, matrix, by_class, loss = headline(experiment), {}, None, [], None
    if len(parts.dataset.test_y):
        found, loss = answers(parts, params)
        measured, matrix, by_class = measurements(parts, found), confusion(found), classes_measured(found)
        if rounds and name not in rounds[-1]:  # budgets ended between two tests
            rounds[-1] |= {name: measured[name]["value"], "loss": loss, **backdoor(parts, params)}
            folder.log_again(rounds)
    guarantee = None
    if ledger is not None:
        guarantee = spent_by(parts.promise, ledger, parts.population)
        guarantee = replace(guarantee, also=parts.plan.also(guarantee, experiment, ledger, parts.population))
    summary = {
        "name": experiment.name,
        f"test_{name}": measured[name]["value"] if measured else None,
        "test_loss": loss,
        "metric": name,
        "metrics": measured,
        "confusion": matrix,
        "per_class": by_class,
        "rounds": len(rounds),
        "stopped": stopped,
        "clients": len(parts.population),
        "parameters": parts.params.numel(),
        "frozen_parameters": sum(parameter.numel() for _, parameter in frozen(parts.model)),
        "rule": parts.plan.rule(experiment, parts.population),
        "seconds": sum(record["seconds"] for record in rounds),
        "uplink_bytes": sum(record["uplink_bytes"] for record in rounds),
        "downlink_bytes": sum(record["downlink_bytes"] for record in rounds),
        "noise_multiplier": None if parts.plan.noise_multipliers is None else _range(parts.plan.noise_multipliers),
        "out_of_budget": rounds[-1]["out_of_budget"] if rounds else None,
        "guarantee": guarantee.record() if guarantee else None,
        "other_runs": guarantee.others.runs if guarantee and guarantee.others else 0,
        "sentence": sentence(guarantee),
        **({"at_clients": at_clients} if at_clients else {}),
        **({"personal": personal} if personal else {}),
        **({"queries": queries} if (queries := told(parts, folder.path)) else {}),
        **({"attack": attacked(parts, params)} if parts.attack else {}),
        "notes": [*parts.dataset.notes, *notes],
        "version": tacit.__version__,
        "provenance": provenance(parts),
        "run": folder.run,
    }
    folder.write("model.safetensors", save(named(parts.model, params), {FROZEN: parts.frozen}))
    if experiment.metric.per_client and not parts.elsewhere:
        folder.write(per_client.NAME, json.dumps(per_client.record(parts, params)).encode())
    history = History(rounds, summary, parts.model.eval(), guarantee, ledger, folder.path)
    folder.write("rounds.csv", csv_text(history.records()).encode())
    folder.write("summary.json", json.dumps(summary, indent=2).encode())
    return history


def attacked(parts: Parts, params: torch.Tensor) -> dict[str, Any]:
    """Who was malicious in a run and what they reached, for its summary; empty where nobody was."""
    if parts.attack is None or parts.experiment.attack is None:
        return {}
    scene, _ = parts.attack
    return {
        "kind": parts.experiment.attack.kind,
        "malicious": [parts.population.names[index] for index in scene.malicious],
        "start": scene.start,
        "target": scene.class_names[scene.target],
        **backdoor(parts, params),
        "badge": BADGE,
    }


def _range(values: Any) -> dict[str, float]:
    tensor = torch.as_tensor(values, dtype=torch.float64)
    return {"min": float(tensor.min()), "median": float(tensor.quantile(0.5)), "max": float(tensor.max())}
