"""How much the sites of a finished run differ, in the units of `tacit plan --gain`: from what its rule estimated, at no price.

`random-effects` estimates tau^2, the variance between clients' updates, from updates that carry their noise (docs/derivations.md).
A client's noise has a variance s^2 in the same units, and v in those of a gain (tacit/report/gain.py, for one round). Both are of
the same noise, so that tau^2 there is tau^2 v / s^2.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.data.dataset import Dataset
from tacit.engine.run_files import read
from tacit.errors import BadInput
from tacit.privacy.kinds import kind_of
from tacit.report.gain import noises
from tacit.report.unread import sites_of

SOMETHING = Dataset(
    "", torch.zeros(1, 1), torch.zeros(1), torch.zeros(0, 1), torch.zeros(0), ()
)  # for rows of any kind


def tau_of(run: Path) -> float:
    """The tau of a run's last round, as a standard deviation between sites' optima in units of a row's own.

    Guarantee: it is a function of what the run released and of public numbers.

    Raises: BadInput for a folder that holds no such run, or whose rule does not estimate how much clients differ.
    """
    files = read(run)
    taus = [record["tau"] for record in files.rounds if isinstance(record.get("tau"), int | float)]
    if not taus or files.clients is None or files.summary is None:
        raise BadInput(
            f'{run} does not say how much its clients differ: only a finished run with aggregate.rule = "random-effects" does,'
            " which is the rule where epsilons differ; say --tau instead."
        )
    experiment = files.experiment
    if not experiment.privacy.noises_records:
        raise BadInput(f'{run} is no run of privacy.kind = "local" with unit = "record": say --tau instead.')
    names, sizes, size = tuple(files.clients["names"]), np.array(files.clients["records"]), files.summary["parameters"]
    population = sites_of(experiment, names, sizes, SOMETHING)
    plan: Any = kind_of(experiment).plan(experiment, population, size=size)
    sent = plan.update_noise(sizes, learning_rate=experiment.train.learning_rate) ** 2
    one_round = noises(experiment, population, sizes, parameters=size) * plan.participations
    return float(taus[-1] * np.sqrt(np.median(one_round / sent)))
