"""Private ranges in a run: asked for before the first round, and then as good as declared."""

from dataclasses import replace

import numpy as np

from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.engine.assemble import Parts, build
from tacit.engine.ledgers import open_ledger
from tacit.engine.queries import Replies, ask
from tacit.engine.run_folder import Folder
from tacit.errors import BadData
from tacit.experiment import Experiment
from tacit.experiment.extras import RANGES
from tacit.privacy.plan import Plan
from tacit.privacy.queries.ranges import Range, Ranges, asked_ranges


def ranges_asked(experiment: Experiment, dataset: Dataset) -> Ranges | None:
    """The query for the ranges that an experiment calls private, whatever its noise hides; None where there are none."""
    columns = dataset.encoder.columns if dataset.encoder else ()
    return asked_ranges(experiment.data.options(), [(column.name, column.width) for column in columns])


def query_of(experiment: Experiment, dataset: Dataset, plan: Plan, population: Population) -> Ranges | None:
    """The query for the ranges that an experiment calls private, of rows that are read unscaled; None where there are none.

    Raises: BadInput where the noise would hide all but the very common values.
    """
    query = ranges_asked(experiment, dataset)
    if query is not None and plan.priced:
        sensitive = {"l2_squared": query.l2_squared, "cells": query.cells}
        noises = (plan.query_noise(RANGES, index, **sensitive) for index in range(len(population)))
        query.refuse_coarse(population.sizes, np.array([noise.noise_std for noise in noises if noise]))
    return query


def ranged(parts: Parts, folder: Folder) -> Parts:
    """The parts with every private range found: asked for and paid, or as the folder has it; the rows are read again with them.

    Guarantee: as `ask`. What is trained on are the rows that were asked about, scaled by what was released.

    Raises: as `ask`; BadData for files that have changed since they were first read.
    """
    query = query_of(parts.experiment, parts.dataset, parts.plan, parts.population)
    if query is None:
        return parts
    ledger = open_ledger(parts, folder)
    try:
        ranges, note = found(parts, query, ask(parts, ledger, folder, query))
    finally:
        if ledger is not None:
            ledger.close()
    made = build(parts.experiment, before=parts.before, ranges=ranges, mask=parts.population.mask)
    if not np.array_equal(made.population.offsets, parts.population.offsets):
        raise BadData("The data files have changed while they were read: start again when they are at rest.")
    notes = (*(_asked_for(each, ranges) for each in made.dataset.notes), note)
    return replace(made, trial_id=parts.trial_id, dataset=replace(made.dataset, notes=notes))


def found(parts: Parts, query: Ranges, answers: Replies) -> tuple[dict[str, Range], str]:
    """The ranges that the clients' answers say, and a note of them for whoever reads the run."""
    population = parts.population
    sizes = dict(zip(population.names, population.sizes.tolist(), strict=True))
    names = list(answers.counts)
    stds = np.array([answers.stds[name] for name in names])
    ranges = query.found([answers.counts[name] for name in names], np.array([sizes[name] for name in names]), stds)
    told = "; ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in ranges.items())
    whose = f"{len(names)} of {len(population)} clients"
    priced = "noised histograms, which are in the guarantee" if parts.plan.priced else "exact histograms, not protected"
    return ranges, f"ranges asked of {whose} by {priced}: {told}"


def _asked_for(note: str, ranges: dict[str, Range]) -> str:
    """A note on clamped values, where nobody declared the range."""
    for name in ranges:
        note = note.replace(f"of {name!r} into its declared range", f"of {name!r} into the range that was asked for,")
    return note
