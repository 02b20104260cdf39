"""What a run begins with and leaves: its ledger, who its clients are, its model, its summary and its history."""

import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

import tacit
from tacit.data import encoder as encoder_file
from tacit.engine import evaluate
from tacit.engine.assemble import Parts
from tacit.engine.malicious import BADGE
from tacit.engine.queries import in_summary
from tacit.engine.release import package, processor
from tacit.engine.run_folder import Folder
from tacit.engine.start import trained
from tacit.parts import metrics
from tacit.privacy.guarantee import sentence, spent_by
from tacit.privacy.ledger.ledger import Ledger
from tacit.store import cores, csv_of
from tacit.training.flat import frozen, named
from tacit.types import Guarantee

PACKAGES = ("torch", "numpy", "scipy", "dp-accounting", "scikit-learn")
PATIENCE = 10.0  # seconds that git may take to look at the package's files
MOST_COLUMNS = 2000  # of labels by clients; more clients share a column
PER_CLIENT = "per_client.json"
RAW = "From raw data: not covered by epsilon."
TRAINED_ON = "These are the rows that the clients trained on."
KEPT = "These are rows that each client kept for this (data.own_share) and trained on never."
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

    def __repr__(self) -> str:
        key = self.summary["metric"]
        value = self.summary["metrics"].get(key, {}).get("value")
        score = f", {metrics.words(key)} {value:.4f}" if value is not None else ""
        return f"History({str(self.out)!r}: {len(self.rounds)} rounds{score}; sentence says what is promised)"

    def _repr_html_(self) -> str:
        """In a notebook: the final metrics, the curve, and the sentence of the guarantee."""
        rows = "".join(
            f"<tr><th>{escape(metrics.words(key))}</th><td>{one['value']:.4f}</td></tr>"
            for key, one in self.summary["metrics"].items()
        )
        key = self.summary["metric"]
        curve = _sparkline([(one["round"] + 1, one[key]) for one in self.rounds if key in one], metrics.words(key))
        return f"<table>{rows}</table>{curve}<p>{escape(self.sentence)}</p>"

    def records(self) -> list[dict[str, Any]]:
        """A flat dict of scalars per round, as in rounds.csv: `pandas.DataFrame(history.records())`."""
        return flat_records(self.rounds, unit=self.guarantee.unit if self.guarantee else None)


def _sparkline(points: Sequence[tuple[float, float]], name: str) -> str:
    """A curve for a notebook, as SVG, with its first and last value in words; nothing for fewer than two points."""
    if len(points) < 2:
        return ""
    xs, ys = zip(*points, strict=True)
    (first, last), (low, high) = (min(xs), max(xs)), (min(ys), max(ys))
    wide, tall = 320 / ((last - first) or 1), 80 / ((high - low) or 1)
    drawn = " ".join(f"{(x - first) * wide:.1f},{84 - (y - low) * tall:.1f}" for x, y in points)
    label = escape(f"{name} by round: {points[0][1]:.4f} to {points[-1][1]:.4f}")
    style = 'fill="none" stroke="currentColor" stroke-width="1.5"'
    line = f'<svg width="320" height="88" role="img" aria-label="{label}"><polyline {style} points="{drawn}"/></svg>'
    return f"<figure>{line}<figcaption>{label}</figcaption></figure>"


def flat_records(rounds: Sequence[dict[str, Any]], *, unit: str | None) -> list[dict[str, Any]]:
    """One flat dict of scalars per round, all with the same keys; the name of an epsilon carries its unit.

    >>> flat_records([{"round": 0, "dropped": ["a"], "epsilon_loosest": 1.5}, {"round": 1}], unit="record")
    [{'round': 0, 'epsilon_per_record_loosest': 1.5}, {'round': 1, 'epsilon_per_record_loosest': None}]
    """
    return filled([scalars(record, unit=unit) for record in rounds])


def filled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = dict.fromkeys(key for row in sorted(rows, key=len, reverse=True) for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]


def scalars(record: dict[str, Any], *, unit: str | None) -> dict[str, Any]:
    kept = {key: value for key, value in record.items() if not isinstance(value, list | dict)}
    return {re.sub("^epsilon_", f"epsilon_per_{unit}_", key) if unit else key: value for key, value in kept.items()}


def provenance(parts: Parts) -> dict[str, Any]:
    """Where a run's numbers came from: version, commit, packages and machine. What cannot be found is None.
    Guarantee: no file is named, nor the machine or whoever uses it. `code` is a hash of what releases are a function of."""
    run, kinds = parts.experiment.run, {device.partition(":")[0] for device in parts.experiment.run.devices}
    return {
        "tacit": tacit.__version__,
        "commit": commit(Path(tacit.__file__).parents[1]),
        "code": package(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}".strip(),
        "processor": processor(),
        "cores": cores(),
        "workers": run.workers or cores(),
        "threads": parts.threads,
        "device": run.device,
        "gpus": [torch.cuda.get_device_name(name) for name in run.devices] if kinds == {"cuda"} else [],
        "cuda": torch.version.cuda if kinds == {"cuda"} else None,
    }


@lru_cache(maxsize=1)
def commit(home: Path) -> str | None:  # with "-dirty" behind it where files were changed
    if not (home / ".git").exists():  # installed, perhaps into an environment that lies in somebody else's checkout
        return None
    command = ["git", "-C", str(home), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # another checkout's
    try:
        done = subprocess.run(command, env=own, text=True, capture_output=True, check=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return str(getattr(sys.modules.get(name), "__version__", None) or version(name))
    except PackageNotFoundError:
        return None


def note_clients(parts: Parts, ledger: Ledger | None, folder: Folder, *, simulated: bool = True) -> None:
    """Writes down how rows are read, who the clients are and what they are promised: a report or a prediction needs nothing but
    the folder. True counts: for the researcher; labels are known where clients are simulated alone. Raises BadInput for names
    that no file can hold."""
    folder.write(
        encoder_file.NAME, encoder_file.text(parts.dataset.reading).encode()
    )  # `finish` puts the model beside it
    population, classes = parts.population, parts.dataset.classes
    together, labels = -(-len(population) // MOST_COLUMNS), []
    if simulated and parts.dataset.classified:
        owner = np.repeat(np.arange(len(population)), population.rows)
        columns = -(-len(population) // together)
        counts = np.bincount((owner // together) * classes + population.y.cpu().numpy(), minlength=columns * classes)
        labels = counts.reshape(columns, classes).tolist()
    record = {
        "names": list(population.names),
        "records": population.sizes.tolist(),
        "limits": [None if np.isinf(limit) else float(limit) for limit in population.epsilons],
        "classes": list(parts.dataset.class_names),
        "together": together,
        "all_pay": parts.plan.sampler.charges_all,
        "labels": labels,
        "metric": metrics.key(parts.metric),
        "guarantee": parts.promise.record() if ledger else None,
        "ledger": os.path.relpath(ledger.path, folder.path) if ledger else None,
        "parameters": parts.params.numel(),
        "notes": list(parts.dataset.notes),
    }
    if parts.plan.opted_out:
        record["opted_out"] = sorted(parts.plan.opted_out)
    if (shares := parts.plan.batch_shares) is not None:
        record["batch_shares"] = shares.tolist()
    folder.write("clients.json", json.dumps(record).encode())


def per_client(parts: Parts, params: torch.Tensor) -> dict[str, Any]:
    """The headline of each client with its 95 % interval, and how clients differ in it; None where rows cannot tell.
    It is measured on rows that clients keep for that (`data.own_share`), else on those that they trained on."""
    name, found = parts.metric, []
    kept = parts.population.held if parts.experiment.data.own_share is not None else None
    everybody = parts.population if kept is None else kept
    for index in range(len(parts.population)):
        client = everybody[index]
        measured = (
            metrics.table([name], evaluate.answers_to(parts, params, client.x, client.y)[0]) if len(client.y) else {}
        )
        found.append(measured.get(name))
    values = [one and one["value"] for one in found]
    return {
        "note": f"{RAW} {TRAINED_ON if kept is None else KEPT}",
        "metric": metrics.key(name),
        "clients": list(parts.population.names),
        "values": values,
        "intervals": [one and one["interval"] for one in found],
        "spread": spread(values, better=metrics.load(name).better),
    }


def spread(values: Sequence[float | None], *, better: str) -> dict[str, float] | None:
    """How a metric differs between clients, each of which counts once; None where no client's rows can tell.
    `worst_tenth` is the mean over the tenth of the clients, rounded up, that the model serves worst.

    >>> spread([0.5, 0.7, 0.9, None], better="higher")["worst_tenth"], spread([0.5, 0.7], better="lower")["worst"]
    (0.5, 0.7)
    """
    known = np.sort([value for value in values if value is not None])
    if not len(known):
        return None
    ordered = known if better == "higher" else known[::-1]  # the worst first
    return {
        "clients": len(ordered),
        "mean": float(ordered.mean()),
        "std": float(ordered.std()),
        "worst": float(ordered[0]),
        "worst_tenth": float(ordered[: math.ceil(len(ordered) / 10)].mean()),
        "median": float(np.median(ordered)),
        "best": float(ordered[-1]),
    }


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
    models gave, and `notes` is what its reader should know beside what is noted of the rows."""
    experiment, population = parts.experiment, parts.population
    rounds = folder.rounds(before=experiment.train.rounds)
    name, measured, matrix, by_class, loss = metrics.key(parts.metric), {}, None, [], None
    if len(parts.dataset.test_y):
        found, loss = evaluate.answers_to(parts, params, *parts.test_rows)
        measured, matrix = evaluate.measurements(parts, found), evaluate.confusion(found)
        by_class = metrics.per_class(found) if found.predictions.shape[-1] <= evaluate.MOST_CLASSES else []
        if rounds and name not in rounds[-1]:  # budgets ended between two tests
            rounds[-1] |= {name: measured[name]["value"], "loss": loss, **evaluate.backdoor(parts, params)}
            folder.log_again(rounds)
    guarantee = None
    if ledger is not None:
        guarantee = spent_by(parts.promise, ledger, population)
        guarantee = replace(guarantee, also=parts.plan.also(guarantee, experiment, ledger, population))
    multipliers = parts.plan.noise_multipliers
    if multipliers is not None:
        z = torch.as_tensor(multipliers, dtype=torch.float64)
        multipliers = {"min": float(z.min()), "median": float(z.quantile(0.5)), "max": float(z.max())}
    more = {"at_clients": at_clients, "personal": personal, "queries": in_summary(parts, folder.path)}
    more["attack"] = attacked(parts, params)
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
        "clients": len(population),
        "parameters": parts.params.numel(),
        "frozen_parameters": sum(parameter.numel() for _, parameter in frozen(parts.model)),
        "rule": parts.plan.rule(experiment, population),
        **{key: sum(record[key] for record in rounds) for key in ("seconds", "uplink_bytes", "downlink_bytes")},
        "noise_multiplier": multipliers,
        "out_of_budget": rounds[-1]["out_of_budget"] if rounds else None,
        "guarantee": guarantee.record() if guarantee else None,
        "other_runs": guarantee.others.runs if guarantee and guarantee.others else 0,
        "sentence": sentence(guarantee),
        **{key: value for key, value in more.items() if value},
        "notes": [*parts.dataset.notes, *notes],
        "version": tacit.__version__,
        "provenance": provenance(parts),
        "run": folder.run,
    }
    folder.write("model.safetensors", save(named(parts.model, params), {FROZEN: parts.frozen}))
    if experiment.metric.per_client and not parts.is_deployed:
        folder.write(PER_CLIENT, json.dumps(per_client(parts, params)).encode())
    history = History(rounds, summary, trained(parts.model.eval(), folder.run), guarantee, ledger, folder.path)
    folder.write("rounds.csv", csv_of(history.records(), ["round"]))
    folder.write("summary.json", json.dumps(summary, indent=2).encode())
    return history


def attacked(parts: Parts, params: torch.Tensor) -> dict[str, Any]:
    """Who was malicious in a run and what they reached; empty where nobody was."""
    if parts.attack is None or parts.experiment.attack is None:
        return {}
    scene, _ = parts.attack
    return {
        "kind": parts.experiment.attack.kind,
        "malicious": [parts.population.names[index] for index in scene.malicious],
        "start": scene.start,
        "target": scene.class_names[scene.target],
        **evaluate.backdoor(parts, params),
        "badge": BADGE,
    }
