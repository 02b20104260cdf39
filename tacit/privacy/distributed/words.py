"""Distributed DP in words: what the sums promise, and what is left against who can read single reports."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.population import Population
from tacit.experiment import Experiment
from tacit.privacy.accounting import events, price
from tacit.privacy.distributed.mechanism import SharedNoise
from tacit.privacy.guarantee import EMPTIED, PUBLIC, WHO, Words, spent_by
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.purse import Purse
from tacit.types import Guarantee

if TYPE_CHECKING:
    from tacit.privacy.distributed.plan import DistributedPlan

ACCOUNTANT = "RDP (arXiv:2110.04995, arXiv:2102.06387)"


def promised(noises: Sequence[SharedNoise], experiment: Experiment, *, clients: int) -> Words:
    """What every client is promised, by sums of shares, sealed or not, and who must not give away what."""
    known, sealed = noises[0].colluding, experiment.protect.kind == "paillier"
    what = "noise and the shares of the key" if experiment.protect.split else "shares"
    helped = f", even with the {what} of {known} other client{'s' if known > 1 else ''}," if known else ""
    keyless = "the server, which holds no key, and everybody who sees the sums or the models"
    trusted = "everybody who sees the sums or the models (the server is trusted to add reports and not to look at one)"
    sums = " or ".join(str(noise.fewest) for noise in noises)
    shares = f"sums of at least {sums} reports with {noises[0].law} shares"
    sampler = f"{shares} (nothing is claimed for choosing clients at random)"
    who = f"of the reports in a sum at most {known} come from clients that give away or leave out their noise"
    own = () if known else ("a client does not use that it knows its own share",)
    paillier = ("Paillier keeps its assumption", keys_kept(experiment, clients=clients)) if sealed else ()
    return Words((keyless if sealed else trusted) + helped, EMPTIED, sampler, ACCOUNTANT, (who, *own, *paillier))


def keys_kept(experiment: Experiment, *, clients: int) -> str:
    """How many clients may give their key away.

    Two sums of one round need 2t answers, so of n honest holders 2t - n refuse.
    """
    t = experiment.protect.threshold or 1
    if t == 1:
        return "the server gets no client's key"
    few = f"fewer than {t} of the {clients} clients give the server their share of the key"
    spare = 2 * t - clients - 1
    if spare == t - 1:  # every client is needed
        return few
    return f"{few} ({f'at most {spare}' if spare else 'none'}, if it asks for more than one sum of a round)"


def seen_alone(guarantee: Guarantee, experiment: Experiment, ledger: Ledger, population: Population) -> Guarantee:
    """What is left against somebody who can read single reports: each is protected by its own share of the noise alone.

    Every charge of the ledger is priced again as one report (`events.alone`): the same unit, change and delta, a larger
    epsilon.
    """
    protect = experiment.protect
    reader = f"{protect.threshold} clients' shares of the key" if protect.split else "a client's key"
    sealed = f"the server once it has {reader}"
    other = replace(
        guarantee,
        adversary=sealed if protect.kind == "paillier" else "a server that looks at single reports",
        sampler="single reports, each with its own share of the noise",
        assumes=(*WHO["client"], *PUBLIC),
    )
    return spent_by(other, ledger, population, seen=events.alone)


def rows(plan: "DistributedPlan", purse: Purse) -> list[dict[str, Any]]:
    """One row for each group that is summed apart, with both prices: of the sums, and of single reports."""
    table, delta = [], purse.population.delta
    for number, noise in enumerate(plan.noises):
        mine = np.flatnonzero(plan.groups == number)
        rounds = [purse.rounds(k, noise.event(), hint=plan.participations) for k in purse.ends(mine)]
        used = max(1, min(*rounds, plan.participations))
        spent, alone = (price.epsilon(((event, used),), delta=delta) for event in (noise.event(), noise.alone()))
        table.append(
            {
                **purse.whose(mine),
                "noise_multiplier": [noise.multiplier, noise.multiplier],
                "fewest_reports": noise.fewest,
                "planned_rounds": plan.participations,
                "affordable_rounds": [min(rounds), max(rounds)],
                "epsilon_spent": spent,
                "epsilon_single_reports": alone,
                "accountant": "rdp",
                "guarantee": f"client level, {EMPTIED}, {noise.law} shares on the sum of the reports",
            }
        )
    return table
