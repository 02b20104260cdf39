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
from tacit.data.population import Population
from tacit.privacy.distributed.plan import NAMES, DistributedPlan, distributed_plan
from tacit.privacy.local.plan import planned_participations
from tacit.protect import keys, proofs
from tacit.protect.quantise import Grid
from tacit.protect.lanes import WIDEST, Lanes
from tacit.protect.opening import Alone, Opens, Together
from tacit.protect.holder import Opener
from tacit.protect.paillier import SecretKey, generate
from tacit.protect.randomisers import Randomisers
from tacit.protect.seal import Plain, Seal, Sealed
from tacit.protect.signing import Signer
from tacit.protect.threshold import MOST_SHARES, Share, deal, fewest_shares
from tacit.rules import Rule
from tacit.rules._split import threshold

NOWHERE = ":memory:"  # one process is all parties of a simulation: that a sum was opened need not outlive it
TOLD = "one process"  # in the place of `envelope.common_hash`: nobody is told anything by anybody


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
    refuse_threshold(experiment, clients=len(population))
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


def refuse_threshold(experiment: Experiment, *, clients: int) -> None:
    """Raises BadInput where a split key could not keep the promise about colluding clients."""
    t, colluding = experiment.protect.threshold or 1, experiment.privacy.colluding or 0
    if t == 1:
        return
    if not 2 <= clients <= MOST_SHARES:
        raise BadInput(
            f"A key is split for 2 to {MOST_SHARES} clients, and there are {clients}: set protect.threshold = 1, which is one"
            " key that all of them have."
        )
    least = fewest_shares(of=clients, colluding=colluding)
    if not least <= t <= clients:
        helped = f" with the help of privacy.colluding = {colluding} of them" if colluding else ""
        raise BadInput(
            f"Expected protect.threshold of {least} to {clients} for {clients} clients, got {t}: with fewer a server could have"
            f" two sums of one round opened{helped}, and their difference can be a single report."
        )


def groups(experiment: Experiment, population: Population, rule: Rule, plan: DistributedPlan) -> Mapping[str, Group]:
    """Every client's group, by the client's name."""
    words, noise = NAMES[len(plan.noises)], plan.report_noise
    key, shares = _keys(experiment, clients=len(population)) if experiment.protect.kind == "paillier" else (None, [])
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
        seal = _seal(experiment, plan, number, key, shares, list(facts))
        group = Group(word, plan.noises[number], seal, facts, weights)
        found |= dict.fromkeys(facts, group)
    return found


def _keys(experiment: Experiment, *, clients: int) -> tuple[SecretKey, list[Share]]:
    """The run's key, and a share for every client where it is split."""
    protect = experiment.protect
    key = keys.load_secret(Path(protect.key)) if protect.key is not None else new_key(experiment)
    return key, deal(key, threshold=protect.threshold or 1, of=clients) if protect.split else []


def new_key(experiment: Experiment) -> SecretKey:
    """A new key as the experiment wants it."""
    return generate(bits=experiment.protect.key_bits or 3072, shape=experiment.protect.shape)


def _seal(
    experiment: Experiment,
    plan: DistributedPlan,
    number: int,
    key: SecretKey | None,
    shares: list[Share],
    clients: list[str],
) -> Seal:
    noise, grid = plan.noises[number], plan.grid
    room = key.public.plaintext_bits if key else WIDEST
    lanes = Lanes(grid.dimension, grid.largest + noise.tail, noise.most, room)
    if key is None:
        return Plain(lanes, noise.fewest)
    if noise.fewest < 2:
        raise BadInput("A sum of one report is that report: set privacy.fewest_reports to 2 or more.")
    signers = {client: Signer(client, Ed25519PrivateKey.generate()) for client in clients}
    expected = experiment.train.rounds * noise.most * lanes.numbers
    whole = None if shares else key  # where the key is split no client could use it to seal faster
    randomisers = Randomisers(key.public, secret=whole, expected=expected, workers=1)
    randomisers.warm()  # before the client processes fork, so that they share the tables
    proofs.warm(key.public)
    members = {client: signer.public for client, signer in signers.items()}
    opener = _opener(key, shares, at_least=noise.fewest)
    run = f"{secrets.token_hex(8)}-{number}"
    return Sealed(lanes, key.public, run, TOLD, members, signers, randomisers, opener=opener)


def _opener(key: SecretKey, shares: list[Share], *, at_least: int) -> Opens:
    if not shares:
        return Alone(Opener(NOWHERE, key.open, at_least=at_least))
    whole = shares[0].verification
    holders = [Opener(NOWHERE, share.open, at_least=at_least) for share in shares[: whole.threshold]]
    return Together(whole, holders)
