"""The part of `build` for distributed DP: from an experiment to its grid, shares, groups and seals."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit import rules
from tacit.algorithms._groups import Group
from tacit.errors import BadInput, NeedsRows
from tacit.experiment import Experiment
from tacit.population import Population
from tacit.privacy.distributed_plan import NAMES, DistributedPlan, distributed_plan
from tacit.privacy.plan import planned_participations
from tacit.protect import keys
from tacit.protect.grid import Grid
from tacit.protect.lanes import WIDEST, Lanes
from tacit.protect.opener import Opener
from tacit.protect.paillier import SecretKey, generate
from tacit.protect.randomisers import Randomisers
from tacit.protect.seals import Plain, Seal, Sealed
from tacit.protect.signing import Signer
from tacit.rules import Rule
from tacit.rules._split import threshold

NOWHERE = ":memory:"  # one process is all parties of a simulation: that a sum was opened need not outlive it


def summing_rule(experiment: Experiment) -> Rule:
    """The experiment's rule, if sums are all it needs. Raises NeedsRows with the names of those that work."""
    name = experiment.aggregate.rule or "mean"
    rule = rules.load(name, **experiment.aggregate.options())
    if rule.sees != "sums":
        text = f'The rule {name} must see single updates, but privacy.kind = "distributed" opens only their sums'
        raise NeedsRows(f"{text}: use one of {', '.join(rules.seeing_sums())}.")
    return rule


def make_distributed_plan(experiment: Experiment, population: Population, *, size: int) -> DistributedPlan:
    """Grid, groups and shares for a model of `size` parameters."""
    privacy, protect, rule = experiment.privacy, experiment.protect, summing_rule(experiment)
    cohort = experiment.train.clients_per_round or len(population)
    how, share = getattr(rule, "split", None), getattr(rule, "share", 0.1)
    apart = (privacy.groups or (2 if how else 1)) == 2
    if how and not apart:
        raise BadInput(
            f"The rule {experiment.aggregate.rule} compares two groups of clients: leave out privacy.groups."
        )
    if privacy.fewest_reports and privacy.fewest_reports > cohort:
        raise BadInput(f"Expected privacy.fewest_reports <= {cohort} clients a round, got {privacy.fewest_reports}.")
    return distributed_plan(
        population,
        grid=Grid(size, privacy.clip, protect.bits or 16, protect.rotation or "none"),
        cohort=cohort,
        participations=planned_participations(rounds=experiment.train.rounds, share=cohort / len(population)),
        law=privacy.noise or "skellam",
        share=privacy.share or "even",
        multiplier=privacy.noise_multiplier,
        fewest=privacy.fewest_reports,
        colluding=privacy.colluding or 0,
        split=(lambda epsilons: threshold(epsilons, how=how or "kmeans", share=share)) if apart else None,
    )


def groups(experiment: Experiment, population: Population, rule: Rule, plan: DistributedPlan) -> Mapping[str, Group]:
    """Every client's group, by the client's name."""
    words, noise = NAMES[len(plan.noises)], plan.report_noise
    key = _key(experiment) if experiment.protect.kind == "paillier" else None
    found: dict[str, Group] = {}
    for number, word in enumerate(words):
        mine = np.flatnonzero(plan.groups == number)
        facts: dict[str, dict[str, Any]] = {
            population.names[k]: {
                "examples": int(population.sizes[k]),
                "epsilon": float(population.epsilons[k]),
                "noise_std": float(noise[k]),
            }
            for k in mine
        }
        raw = {name: rule.weight(fact) for name, fact in facts.items()}
        weights = {name: weight / max(raw.values()) for name, weight in raw.items()}
        plan.noises[number].prepare()  # before the client processes fork
        seal = _seal(experiment, plan, number, key, list(facts))
        group = Group(word, plan.noises[number], seal, facts, weights)
        found |= dict.fromkeys(facts, group)
    return found


def _key(experiment: Experiment) -> SecretKey:
    protect = experiment.protect
    if protect.key is not None:
        return keys.load_secret(Path(protect.key))
    return generate(bits=protect.key_bits or 3072, shape=protect.key_shape or "ordinary")


def _seal(
    experiment: Experiment, plan: DistributedPlan, number: int, key: SecretKey | None, clients: list[str]
) -> Seal:
    noise, grid = plan.noises[number], plan.grid
    room = key.public.plaintext_bits if key else WIDEST
    lanes = Lanes(grid.dimension, grid.largest + noise.tail, noise.most, room)
    if key is None:
        return Plain(lanes, noise.fewest)
    if noise.fewest < 2:
        raise BadInput("A sum of one report is that report: set privacy.fewest_reports to 2 or more.")
    signers = {client: Signer(client, Ed25519PrivateKey.generate()) for client in clients}
    randomisers = Randomisers(
        key.public, secret=key, expected=experiment.train.rounds * noise.most * lanes.numbers, workers=1
    )
    randomisers.warm()  # before the client processes fork, so that they share the table
    members = {client: signer.public for client, signer in signers.items()}
    opener = Opener(NOWHERE, key.open, at_least=noise.fewest)
    return Sealed(lanes, key.public, f"{secrets.token_hex(8)}-{number}", members, signers, randomisers, opener)
