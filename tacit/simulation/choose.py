"""Who trains the clients of a run: each by itself, or many at once in one stack. Decided once and kept in `run.json`.

It is decided before round 1 and part of what every release is keyed by, because other sums round in another way: a run that goes on
goes on as it began. On an accelerator a stack is always faster; on a CPU that depends on model and cohort, so it is measured there
(tacit/simulation/measured.py), but not where a run is meant to repeat bit for bit: what a clock decides does not.
"""

import json
import logging
from dataclasses import replace

import torch

from tacit.build.parts import Parts
from tacit.engine.folder import Folder
from tacit.engine.trainers import make
from tacit.errors import BadInput
from tacit.simulation.measured import gain
from tacit.train.rowwise import Unsupported

LOG = logging.getLogger(__name__)
KEY = "clients_at_once"  # in run.json; 0: each by itself
ROWS_A_CLIENT = 8  # as long as the model, that a client of a stack holds at once
CHANCE = 4  # standard deviations of a Poisson cohort
ON_CPU = 2 << 30  # bytes
SHARE = 0.5  # of the device's memory for them: activations need some too


def with_trainer(parts: Parts, folder: Folder) -> Parts:
    """The parts with the number of clients that train at once, as the folder says, or as is decided now and written there.

    Raises: BadInput for a folder that says something else than a number.
    """
    file = folder.path / "run.json"
    known = json.loads(file.read_text("utf-8"))
    if KEY not in known:
        parts = decided(parts)
        folder.write("run.json", json.dumps(known | {KEY: parts.together}).encode())
        return parts
    count = known[KEY]
    if type(count) is not int or not 0 <= count <= len(parts.population):
        raise BadInput(f"{file} is damaged: {KEY} is no number of clients.")
    # what a stack gives depends on who is in it: it is only for runs of which every start is another release
    if count and not parts.nonce:
        raise BadInput(f"{file} is damaged: a run that can be repeated bit for bit trains each client by itself.")
    return replace(parts, together=count)


def decided(parts: Parts) -> Parts:
    """As many clients at once as memory lets in, on an accelerator, where the experiment says so or where that is faster here.

    Raises: BadInput with the reason where the experiment says so and they cannot be stacked.
    """
    run = parts.experiment.run
    if not _wanted(parts):
        return parts
    at_once = replace(parts, together=max(1, min(_largest(parts), _fitting(parts))))
    try:
        if run.at_once is True or parts.theta.is_cuda:
            make.stacked(at_once)
            return at_once
        times = gain(at_once)
    except Unsupported as error:
        if run.at_once is True:
            raise BadInput(f"run.at_once = true, but clients cannot be trained at once: {error}.") from None
        slower = ", which is slower" if parts.theta.is_cuda else ""
        return _noted(parts, f"clients are trained one by one{slower}: the model cannot be stacked ({error})")
    if times > 1:
        return _noted(at_once, f"clients are trained at once: {times:.1f} times as fast here as each by itself")
    longer = "cannot be done" if not times else f"would take {1 / times:.2g} times as long here"
    return _noted(parts, f"clients are trained each by itself: at once {longer}")


def _wanted(parts: Parts) -> bool:
    """Whether clients are to be stacked, or at least to be tried so. Left out, they are on an accelerator, and are tried on a CPU
    where no start repeats another one anyway; canary records are for clients that train by themselves.
    """
    run, audit = parts.experiment.run, parts.experiment.audit
    if run.engine != "tacit" or audit.placement == "record":
        return False
    return bool(parts.theta.is_cuda or run.randomness == "os" if run.at_once is None else run.at_once)


def _noted(parts: Parts, words: str) -> Parts:
    return replace(parts, dataset=parts.dataset.noting(words))


def _largest(parts: Parts) -> int:
    """The most clients that a round is likely to have: where chance decides about each, more than are expected."""
    margin = CHANCE * parts.cohort**0.5 if parts.plan.together else 0.0
    return min(len(parts.population), parts.cohort + int(margin))


def _fitting(parts: Parts) -> int:
    free = torch.cuda.mem_get_info(parts.theta.device)[0] if parts.theta.is_cuda else ON_CPU
    return int(SHARE * free) // (ROWS_A_CLIENT * 4 * max(1, parts.theta.numel()))
