"""Distributed DP: each client adds an integer share of the noise, and nobody but the sum's readers sees a sum."""

from tacit import rules
from tacit.data.population import Population
from tacit.errors import BadInput, NeedsRows, Refused
from tacit.experiment import Experiment
from tacit.privacy.distributed.plan import DistributedPlan, distributed_plan
from tacit.privacy.plan import Plan, planned_participations
from tacit.protect.quantise import Grid
from tacit.protect.threshold import MOST_SHARES, fewest_shares
from tacit.rules import Rule
from tacit.rules._split import threshold


class Distributed:
    """The kind `distributed`: client-level DP by sums that nobody's noise makes private alone.

    With `protect.kind = "paillier"` the server sees who reported and the opened sums, and no single report; without, it is
    trusted not to look at one. A client that holds the key sees the sums it opens. Each client pays for the rounds it reports
    in.
    """

    plans = DistributedPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """Grid, groups and shares of noise.

        Raises: BadInput for settings that would break the promise: a threshold by which one round could be opened twice,
        sealed sums of one report, more reports than clients, a multiplier that cannot pay for one round. NeedsRows for a rule
        that must see single updates.
        """
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
            raise BadInput(
                f"Expected privacy.fewest_reports <= {cohort} clients a round, got {privacy.fewest_reports}."
            )
        plan = distributed_plan(
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
        _refuse_single(experiment, plan)
        return plan

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Raises Refused where the server could read the site's own report."""
        if experiment.protect.kind != "paillier":
            raise Refused(
                "Shares of noise protect a sum, but the server would read the site's single report: the site wants"
                ' protect.kind = "paillier".'
            )


def summing_rule(experiment: Experiment) -> Rule:
    """The experiment's rule, if sums are all it needs.

    Raises: NeedsRows with the names of those that work; BadInput for a rule that is not there or options it does not take.
    """
    name = experiment.aggregate.rule or "mean"
    rule = rules.of(experiment.aggregate, name)
    if rule.sees != "sums":
        text = f'The rule {name} must see single updates, but privacy.kind = "distributed" opens only their sums'
        raise NeedsRows(f"{text}: use one of {', '.join(rules.seeing_sums())}.")
    return rule


def refuse_threshold(experiment: Experiment, *, clients: int) -> None:
    """Refuses a split key that could not keep the promise about colluding clients.

    Guarantee, of what passes: of one round no two different sums are opened unless more than `privacy.colluding` clients help.
    A common key (`threshold = 1`) passes: there each round has one opener.

    Raises: BadInput, which names the thresholds that work.
    """
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


def _refuse_single(experiment: Experiment, plan: DistributedPlan) -> None:
    if experiment.protect.kind == "paillier" and plan.fewest < 2:
        raise BadInput("A sum of one report is that report: set privacy.fewest_reports to 2 or more.")


KIND = Distributed()
