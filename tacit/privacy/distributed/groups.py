"""Who is summed with whom, and under which seal: the wiring of encrypted sums.

A simulation makes its keys here and is all parties (`OneProcess`); a deployment brings its own seals (`wiring.Seals`).
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.algorithms._groups import Group
from tacit.experiment import Experiment
from tacit.privacy.wiring import Wiring
from tacit.protect import keys, proofs
from tacit.protect.holder import Opener
from tacit.protect.lanes import WIDEST, Lanes
from tacit.protect.opening import Alone, Opens, Together
from tacit.protect.paillier import PublicKey
from tacit.protect.randomisers import Randomisers
from tacit.protect.seal import Plain, Seal, Sealed
from tacit.protect.secret_key import SecretKey, generate
from tacit.protect.signing import Signer
from tacit.protect.threshold import Share, deal
from tacit.rules import Rule

if TYPE_CHECKING:
    from tacit.privacy.distributed.plan import DistributedPlan

ALL = "all"  # the group of everybody, where nobody is told apart
APART = ("private", "public")  # the words of PFA: tight budgets, and loose ones
NOWHERE = ":memory:"  # one process is all parties of a simulation: that a sum was opened need not outlive it
COMMON_HASH = "one process"  # instead of `envelope.common_hash`: nobody is told anything by anybody


def groups(plan: "DistributedPlan", rule: Rule, wiring: Wiring) -> Mapping[str, Group]:
    """Every client's group, by the client's name.

    Guarantee: every client is in exactly one group; its weight in the sum is at most 1, so that the grid bounds a weighted
    report. What is public of a client (records, epsilon, noise) is stated beside the sum, never beside a report. Tables and
    keys are made here, before client processes fork.

    Raises: BadInput or KeyRefused for seals that cannot be had, BadInput for lanes that do not fit the key.
    """
    population, noise = wiring.population, plan.report_noise
    seals = wiring.seals or OneProcess(wiring.experiment, len(population))
    members: dict[str, Group] = {}
    for number, word in enumerate(names_of(plan, rule)):
        facts: dict[str, dict[str, Any]] = {
            population.names[k]: {
                "examples": int(population.sizes[k]),
                "epsilon": float(population.epsilons[k]),
                "noise_std": float(noise[k]),
            }
            for k in np.flatnonzero(plan.groups == number)
        }
        raw = {name: rule.weight(fact) for name, fact in facts.items()}
        weights = {name: weight / max(raw.values()) for name, weight in raw.items()}
        plan.noises[number].prepare()  # before the client processes fork
        seal = seals.seal(plan, number, word, list(facts), population.names)
        members |= dict.fromkeys(facts, Group(word, plan.noises[number], seal, facts, weights))
    return members


def names_of(plan: "DistributedPlan", rule: Rule) -> tuple[str, ...]:
    """What the groups of a plan are called, in the order of their numbers.

    A rule that tells clients apart by their budgets (`split`) treats a "public" sum otherwise than any other one, and calls
    everybody public where all budgets are equal (tacit/rules/_split.py): so does the lone group here.
    """
    if len(plan.noises) > 1:
        return APART
    return APART[1:] if getattr(rule, "split", None) else (ALL,)


def lanes_of(plan: "DistributedPlan", number: int, public: PublicKey | None) -> Lanes:
    """How a group's integers are packed under a key, or without one.

    Guarantee: a lane has room for the sum of the most reports a round can have, each with its noise.

    Raises: BadInput where such lanes do not fit.
    """
    noise, grid = plan.noises[number], plan.grid
    room = public.plaintext_bits if public else WIDEST
    return Lanes(grid.dimension, grid.largest + noise.tail, noise.most, room)


def new_key(experiment: Experiment) -> SecretKey:
    """A new key as the experiment wants it, of 3072 bits unless said. Raises BadInput for a size that is too weak or not known."""
    return generate(bits=experiment.protect.key_bits or 3072, shape=experiment.protect.shape)


@dataclass(frozen=True, eq=False)
class OneProcess:
    """The seals of a simulation: one process makes the key, and is all parties.

    Guarantee: none against anybody, since one process holds the key and sees every report. What it shows is that the sums, and
    so the model, are those of a deployment.
    """

    experiment: Experiment
    clients: int

    @cached_property
    def keys(self) -> tuple[SecretKey, list[Share]]:
        """The run's key, and a share for every client where it is split.

        Raises: KeyRefused for a key file that cannot be used.
        """
        protect = self.experiment.protect
        key = keys.load_secret(Path(protect.key)) if protect.key is not None else new_key(self.experiment)
        return key, deal(key, threshold=protect.threshold or 1, of=self.clients) if protect.split else []

    def seal(
        self, plan: "DistributedPlan", number: int, word: str, clients: Sequence[str], everybody: Sequence[str]
    ) -> Seal:
        """Reports that can be read where nothing is sealed, else under the run's key.

        Guarantee: in either case a sum of fewer than the group's `fewest` reports is not opened.
        """
        noise = plan.noises[number]
        if self.experiment.protect.kind != "paillier":
            return Plain(lanes_of(plan, number, None), noise.fewest)
        key, shares = self.keys
        lanes = lanes_of(plan, number, key.public)
        signers = {client: Signer(client, Ed25519PrivateKey.generate()) for client in clients}
        expected = self.experiment.train.rounds * noise.most * lanes.numbers
        secret = None if shares else key  # where the key is split no client could use it to seal faster
        randomisers = Randomisers(key.public, secret=secret, expected=expected, workers=1)
        randomisers.warm()  # before the client processes fork, so that they share the tables
        proofs.warm(key.public)
        members = {client: signer.public for client, signer in signers.items()}
        run = f"{secrets.token_hex(8)}-{number}"
        opener = _opener(key, shares, at_least=noise.fewest)
        return Sealed(lanes, key.public, run, COMMON_HASH, members, signers, randomisers, opener=opener)


def _opener(key: SecretKey, shares: list[Share], *, at_least: int) -> Opens:
    if not shares:
        return Alone(Opener(NOWHERE, key.open, at_least=at_least))
    verification = shares[0].verification
    holders = [Opener(NOWHERE, share.open, at_least=at_least) for share in shares[: verification.threshold]]
    return Together(verification, holders)
