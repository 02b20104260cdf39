"""Distributed DP: each client adds an integer share of the noise, and nobody but the sum's readers sees a sum."""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.algorithms import Algorithm, PopulationStatistics, Rule, rules
from tacit.algorithms.encrypted import Encrypted, Group
from tacit.algorithms.rules.pfa import threshold
from tacit.crypto import keys, masked, proofs
from tacit.crypto.grid import WIDEST, Grid, Lanes
from tacit.crypto.keys import generate
from tacit.crypto.masks import refuse_two_sums
from tacit.crypto.paillier import PublicKey, Randomisers, SecretKey
from tacit.crypto.reports import Alone, Opener, Opens, Signer, Together
from tacit.crypto.seal import Plain, Seal, Sealed
from tacit.crypto.threshold import MOST_SHARES, Share, deal, fewest_shares
from tacit.data.population import Population
from tacit.errors import BadInput, NeedsRows, Refused
from tacit.experiment import Experiment
from tacit.privacy import samplers
from tacit.privacy.accounting import price
from tacit.privacy.distributed.mechanism import SHARES, SharedNoise, calibrate
from tacit.privacy.guarantee import EMPTIED, PUBLIC, WHO, Words
from tacit.privacy.plan import Kind, Plan, Remaining, Traits
from tacit.privacy.wiring import Wiring
from tacit.types import Client, Guarantee
from tacit.wire import digest_of

ACCOUNTANT = "RDP (arXiv:2110.04995, arXiv:2102.06387)"
MASKS = "the masks' keys and streams (Curve25519, AES) keep their assumptions"


def keys_kept(experiment: Experiment, *, clients: int) -> str:
    """How many clients may give their key away. Two sums of one round need 2t answers, so of n honest holders 2t - n refuse."""
    t = experiment.protect.threshold or 1
    if t == 1:
        return "the server gets no client's key"
    few = f"fewer than {t} of the {clients} clients give the server their share of the key"
    spare = 2 * t - clients - 1
    if spare == t - 1:  # every client is needed
        return few
    return f"{few} ({f'at most {spare}' if spare else 'none'}, if it asks for more than one sum of a round)"


# Who is summed with whom, and under which seal: the wiring of encrypted sums.


ALL = "all"  # the group of everybody, where nobody is told apart
APART = ("private", "public")  # the words of PFA: tight budgets, and loose ones
NOWHERE = ":memory:"  # one process is all parties of a simulation: that a sum was opened need not outlive it
COMMON_HASH = "one process"  # instead of `reports.common_hash`: nobody is told anything by anybody


def names_of(plan: "DistributedPlan", rule: Rule) -> tuple[str, ...]:
    """What the groups of a plan are called, in the order of their numbers. A rule that tells clients apart by their budgets
    (`split`) treats a "public" sum otherwise than any other one, and calls everybody public where all budgets are equal
    (`pfa.threshold`): so does the lone group here."""
    if len(plan.noises) > 1:
        return APART[:1] + APART[1:] * (len(plan.noises) - 1)  # one public sum, or one of each public client
    return APART[1:] if getattr(rule, "split", None) else (ALL,)


def lanes_of(plan: "DistributedPlan", number: int, public: PublicKey | None) -> Lanes:
    """How a group's integers are packed under a key, or without one. Guarantee: a lane has room for the sum of the most
    reports a round can have, each with its noise. Raises: BadInput where such lanes do not fit."""
    noise, grid = plan.noises[number], plan.grid
    room = public.plaintext_bits if public else WIDEST
    return Lanes(grid.dimension, grid.largest + noise.tail, noise.most, room)


def new_key(experiment: Experiment) -> SecretKey:
    """A new key as the experiment wants it, of 3072 bits unless said. Raises BadInput for a size that is too weak or not known."""
    wanted = experiment.protect.new_key
    return generate(bits=wanted.bits, shape=wanted.shape or "ordinary")


@dataclass(frozen=True, eq=False)
class OneProcess:
    """The seals of a simulation: one process makes the key, and is all parties. Guarantee: none against anybody, since one
    process holds the key and sees every report. What it shows is that the sums, and so the model, are those of a
    deployment."""

    experiment: Experiment
    clients: int

    @cached_property
    def keys(self) -> tuple[SecretKey, list[Share]]:
        """The run's key, and a share for every client where it is split. Raises: KeyRefused for a key file that cannot be
        used."""
        protect = self.experiment.protect
        key = keys.load_as(SecretKey, Path(protect.key_file)) if protect.key_file else new_key(self.experiment)
        return key, deal(key, threshold=protect.threshold or 1, of=self.clients) if protect.split else []

    def seal(
        self, plan: "DistributedPlan", number: int, word: str, clients: Sequence[str], everybody: Sequence[str]
    ) -> Seal:
        """Reports that can be read where nothing is sealed, else under the run's key. Guarantee: in either case a sum of
        fewer than the group's `fewest` reports is not opened."""
        noise, how = plan.noises[number], self.experiment.protect.kind
        if how == "masks":
            lanes = lanes_of(plan, number, None)
            return masked.one_process(lanes, clients, at_least=noise.fewest, colluding=noise.colluding)
        if how != "paillier":
            return Plain(lanes_of(plan, number, None), noise.fewest)
        key, shares = self.keys
        lanes = lanes_of(plan, number, key.public)
        signers = {client: Signer(client, Ed25519PrivateKey.generate()) for client in clients}
        expected = self.experiment.train.rounds * noise.most * lanes.numbers
        secret = None if shares else key  # where the key is split no client could use it to seal faster
        randomisers = Randomisers(key.public, secret=secret, expected=expected, workers=1)
        randomisers.warm()  # before the client processes fork, so that they share the tables
        if key.public.h_s is not None:
            proofs.comb(key.public)
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


# The plan of distributed DP: which clients are summed together, and the share of noise that each of them adds.


@dataclass(frozen=True, eq=False)
class DistributedPlan(Plan):
    """`noises[g]` is the share of the clients k with `groups[k] == g`; `participations` the rounds it is made to last.
    Guarantee: client level, empty one client, for whoever sees opened sums (or the models) and no single report. Nothing
    is claimed for choosing clients at random: the server knows who reports."""

    traits: ClassVar[Traits] = Traits(summed=True, own_training=False)

    grid: Grid
    noises: tuple[SharedNoise, ...]
    groups: np.ndarray = field(repr=False)
    participations: int
    sampler: samplers.Participation

    @property
    def training_clip(self) -> float:
        return self.grid.clip

    @property
    def noise_multipliers(self) -> np.ndarray:
        return np.array([noise.multiplier for noise in self.noises])[self.groups]

    @property
    def min_reports(self) -> int:
        """With fewer reports than this no sum can be opened."""
        return min(noise.fewest for noise in self.noises)

    @property
    def report_noise(self) -> np.ndarray:
        """The noise per coordinate of every client's own report, in the update's units: what a rule may weigh by, and public."""
        return np.array([self.grid.step * math.sqrt(noise.share_variance) for noise in self.noises])[self.groups]

    def mechanism(self, client: Client) -> SharedNoise:
        """The share that the client adds in one round, and what the sum costs it."""
        return self.noises[self.groups[client.index]]

    def key(self, client: Client | None) -> str:
        if client is None:
            return ""
        return repr((self.mechanism(client), self.participations, self.priced))

    def digest(self) -> str:
        return digest_of(repr((self.grid, self.noises)), self.groups.tobytes())

    def algorithm(self, wiring: Wiring) -> Algorithm:
        """Encrypted: each group with its noise and its seal. Raises BadInput or KeyRefused for seals that cannot be had."""
        population = wiring.population
        rule = wiring.rule(self.rule(wiring.experiment, population) or "mean")
        statistics = wiring.statistics(self.report_noise, wiring.takes_part(self.sampler.rate))
        members = self._members(rule, wiring, statistics)
        return Encrypted(members, self.grid, wiring.server(rule, statistics), wiring.training)

    def _members(self, rule: Rule, wiring: Wiring, statistics: PopulationStatistics) -> Mapping[str, Group]:
        """Every client's group, by the client's name; each is in exactly one, with a weight of at most 1, so that the grid
        bounds a weighted report. What is public of a client is stated beside the sum, never beside a report. Raises: BadInput
        or KeyRefused for seals that cannot be had."""
        population, known = wiring.population, list(wiring.facts(statistics))
        seals = wiring.seals or OneProcess(wiring.experiment, len(population))
        members: dict[str, Group] = {}
        for number, word in enumerate(names_of(self, rule)):
            facts: dict[str, dict[str, Any]] = {
                population.names[k]: known[k] for k in np.flatnonzero(self.groups == number)
            }
            raw = {name: rule.weight(fact) for name, fact in facts.items()}
            weights = {name: weight / max(raw.values()) for name, weight in raw.items()}
            self.noises[number].prepare()  # before the client processes fork
            if (
                rule.sees == "rows" and word == APART[1]
            ):  # a row by itself, under all of its own noise: nothing hides it
                word, seal = f"{word} {next(iter(facts))}", Plain(lanes_of(self, number, None), 1)
            else:
                seal = seals.seal(self, number, word, list(facts), population.names)
            members |= dict.fromkeys(facts, Group(word, self.noises[number], seal, facts, weights))
        return members

    def words(self, experiment: Experiment) -> Words:
        known, how = self.noises[0].colluding, experiment.protect.kind
        what = "noise and the shares of the key" if experiment.protect.split else "shares"
        helped = f", even with the {what} of {known} other client{'s' if known > 1 else ''}," if known else ""
        keyless = "the server, which holds no key, and everybody who sees the sums or the models"
        trusted = (
            "everybody who sees the sums or the models (the server is trusted to add reports and not to look at one)"
        )
        sums = " or ".join(dict.fromkeys(str(noise.fewest) for noise in self.noises))
        shares = f"sums of at least {sums} reports with {self.noises[0].law} shares"
        sampler = f"{shares} (nothing is claimed for choosing clients at random)"
        who = f"of the reports in a sum at most {known} come from clients that give away or leave out their noise"
        own = () if known else ("a client does not use that it knows its own share",)
        paillier = ("Paillier keeps its assumption", keys_kept(experiment, clients=len(self.groups)))
        keeps = {"none": (), "paillier": paillier, "masks": (MASKS,)}[how]
        against = (trusted if how == "none" else keyless) + helped
        return Words(against, EMPTIED, sampler, ACCOUNTANT, (who, *own, *keeps))

    def single_reports(self, guarantee: Guarantee, experiment: Experiment) -> tuple[Guarantee, ...]:
        """Against somebody who reads single reports, with the same unit, change and delta."""
        protect = experiment.protect
        reader = f"{protect.threshold} clients' shares of the key" if protect.split else "a client's key"
        readers = {
            "paillier": f"the server once it has {reader}",
            "masks": "whoever takes the masks off a single report",
        }
        other = replace(
            guarantee,
            adversary=readers.get(protect.kind, "a server that looks at single reports"),
            sampler="single reports, each with its own share of the noise",
            assumes=(*WHO[guarantee.unit], *PUBLIC),
        )
        return (other,)

    def title(self, experiment: Experiment) -> str:
        return f"distributed DP ({experiment.privacy.rule})"

    def rows(self, remaining: Remaining) -> list[dict[str, Any]]:
        table, delta = [], remaining.population.delta
        for number, noise in enumerate(self.noises):
            mine = np.flatnonzero(self.groups == number)
            rounds = [remaining.rounds(k, noise.event(), hint=self.participations) for k in remaining.ends(mine)]
            used = max(1, min(*rounds, self.participations))
            spent, alone = (price.epsilon(((event, used),), delta=delta) for event in (noise.event(), noise.alone()))
            table.append(
                {
                    **remaining.whose(mine),
                    "noise_multiplier": [noise.multiplier, noise.multiplier],
                    "fewest_reports": noise.fewest,
                    "planned_rounds": self.participations,
                    "affordable_rounds": [min(rounds), max(rounds)],
                    "epsilon_spent": spent,
                    "epsilon_single_reports": alone,
                    "guarantee": f"client level, {EMPTIED}, {noise.law} shares on the sum of the reports",
                }
            )
        return table


def _noise(
    share: str, given: float | None, whole: float, left: float, delta: float, rounds: int, **settings: Any
) -> SharedNoise:
    """Shares with the given multiplier, or with the smallest that makes what is left of a group's tightest budget last.
    Guarantee: a given one pays for one round of the whole budget at least, and the ledger stops whoever has no more.
    Raises: BadInput for noise that cannot pay for a round, naming the smallest that can; where an infinite epsilon leaves
    nothing to derive noise from; and as `SharedNoise`."""
    if given is None:
        if left == math.inf:
            raise BadInput("epsilon = inf sets no limit, so there is no noise to derive: set privacy.noise_multiplier.")
        given = calibrate(share, epsilon=left, delta=delta, rounds=rounds, **settings)
    noise = SHARES[share](multiplier=given, **settings)
    if whole != math.inf and price.epsilon(((noise.event(), 1),), delta=delta) > whole:
        smallest = (calibrate(share, epsilon=whole, delta=delta, rounds=r, **settings) for r in (1, rounds))
        once, always = (f"{math.ceil(z * 1000) / 1000:.3f}" for z in smallest)  # rounded up, so that what is read works
        raise BadInput(
            f"privacy.noise_multiplier = {given:g} cannot pay for one round at epsilon = {whole:g}: the smallest that can is"
            f" {once}, and {always} lasts the {rounds} planned rounds; or leave it out."
        )
    return noise


class Distributed:
    """The kind `distributed`: client-level DP by sums that nobody's noise makes private alone. With `protect.kind =
    "paillier"` the server sees who reported and the opened sums, and no single report; without, it is trusted not to look
    at one. A client that holds the key sees the sums it opens. Each client pays for the rounds it reports in."""

    plans: type[Plan] = DistributedPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """Grid, groups and shares of noise. Raises: BadInput for settings that would break the promise: a threshold by which
        one round could be opened twice, sealed sums of one report, more reports than clients, a multiplier that cannot pay
        for one round. NeedsRows for a rule that must see single updates."""
        privacy, rule = experiment.privacy, summing_rule(experiment)
        who = samplers.of(experiment, len(population))
        how, share = getattr(rule, "split", None), getattr(rule, "share", 0.1)
        apart = (privacy.groups or (2 if how else 1)) == 2
        if how and not apart:
            raise BadInput(
                f"The rule {experiment.aggregate.rule} compares two groups of clients: leave out privacy.groups."
            )
        refuse_threshold(experiment, clients=len(population))
        if privacy.fewest_reports and privacy.fewest_reports > who.cohort:
            raise BadInput(
                f"Expected privacy.fewest_reports <= {who.cohort} clients a round, got {privacy.fewest_reports}."
            )
        grid = Grid(size, privacy.clip, privacy.bits or 16, privacy.rotation or "none")
        cut = threshold(population.epsilons, how=how or "kmeans", share=share) if apart else -math.inf
        groups = (population.epsilons >= cut).astype(int)
        groups, rounds, noises, rows = (
            groups - groups.min(),
            who.planned(experiment.train.rounds),
            [],
            rule.sees == "rows",
        )
        if rows:  # every public client is a group of its own, and only the private ones are summed
            if not groups.any():
                raise BadInput(
                    f"All clients are public by their epsilons, so that no sum is left to hide: with {experiment.aggregate.rule}"
                    ' set privacy.kind = "local", or budgets that differ.'
                )
            groups[groups == 1] = 1 + np.arange(int(groups.sum()))
        for group in range(int(groups.max()) + 1):
            mine, alone = groups == group, rows and group > 0
            fewest = max(1, math.floor(float(mine.mean()) * (privacy.fewest_reports or who.cohort) + 1e-9))
            whole, left = float(population.epsilons[mine].min()), float(population.to_spread[mine].min())
            noise = _noise(
                privacy.share or "even",
                privacy.noise_multiplier,
                whole,
                left,
                population.delta,
                rounds,
                law=privacy.noise or "skellam",
                l2_squared=grid.l2_squared,
                dimension=grid.dimension,
                fewest=fewest,
                colluding=0 if alone else privacy.known_shares,  # nobody else has a share of a row's noise
                most=min(who.cohort, int(mine.sum())),
            )
            noises.append(noise)
        plan = DistributedPlan(grid, tuple(noises), groups, rounds, who)
        if experiment.protect.kind != "none" and (noises[0].fewest if rows else plan.min_reports) < 2:
            raise BadInput("A sum of one report is that report: set privacy.fewest_reports to 2 or more.")
        return plan

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Raises Refused where the server could read the site's own report."""
        if summing_rule(experiment).sees == "rows":
            raise Refused(
                f"With the rule {experiment.aggregate.rule} public clients are rows beside a secret sum, in simulations only: the"
                ' site wants aggregate.reading = "paper", or another rule.'
            )
        if experiment.protect.kind == "none":
            raise Refused(
                "Shares of noise protect a sum, but the server would read the site's single report: the site wants"
                ' protect.kind = "masks" or "paillier".'
            )


def summing_rule(experiment: Experiment) -> Rule:
    """The experiment's rule, if sums are all it needs, or all but the rows of public clients. Raises: NeedsRows with the names
    of those that work; BadInput for a rule that is not there or options it does not take."""
    name = experiment.aggregate.rule or "mean"
    rule = rules.of(experiment.aggregate, name)
    if rule.sees != "sums" and not rule.private_sum:
        text = f'The rule {name} must see single updates, but privacy.kind = "distributed" opens only their sums'
        raise NeedsRows(f"{text}: use one of {', '.join(rules.seeing_sums())}.")
    return rule


def refuse_threshold(experiment: Experiment, *, clients: int) -> None:
    """Refuses a split key, or masks, that could not keep the promise about colluding clients. Guarantee, of what passes: of one
    round no two different sums are opened unless more than `privacy.colluding` clients help. A common key (`threshold = 1`)
    passes: there each round has one opener. Raises: BadInput, which names the thresholds that work."""
    t, colluding = experiment.protect.threshold or 1, experiment.privacy.known_shares
    if (
        experiment.protect.kind == "masks"
        and experiment.privacy.groups != 2
        and not getattr(summing_rule(experiment), "split", None)
    ):
        # of two groups only a plan knows the sizes
        reports = experiment.privacy.fewest_reports or experiment.train.clients_per_round or clients
        refuse_two_sums(of=clients, at_least=reports, colluding=colluding)
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


def kind(experiment: Experiment) -> Kind:
    """Of whole updates, or of records where that is the unit."""
    if experiment.privacy.sums_records:
        from tacit.privacy.distributed.records import DistributedRecords

        return DistributedRecords()
    return Distributed()
