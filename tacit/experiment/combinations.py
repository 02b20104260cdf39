"""What cannot stand together in an experiment, across its sections; each in one sentence that says what to do."""

from typing import TYPE_CHECKING

from tacit import check, plugin
from tacit.errors import BadInput
from tacit.experiment.extras import refuse_attack, refuse_unauditable, refuse_unjudged, refuse_unkept, refuse_unpriced
from tacit.experiment.privacy import KINDS

if TYPE_CHECKING:
    from tacit.experiment import Experiment


def refuse_impossible(experiment: "Experiment") -> None:
    """Raises BadInput where a guarantee would not hold, or a setting would have no effect."""
    if experiment.privacy.kind == "distributed":
        _distributed(experiment)
    else:
        _whole_updates(experiment)
    privacy = experiment.privacy
    if experiment.train.views is not None and (privacy.kind != "local" or privacy.unit_kept != "record"):
        raise BadInput(
            'train.views averages gradients of records before they are clipped, which only privacy.kind = "local" with'
            ' unit = "record" does: leave it out.'
        )
    _descent(experiment)
    refuse_unpriced(experiment)
    refuse_attack(experiment)
    refuse_unauditable(experiment)
    refuse_unjudged(experiment)
    refuse_unkept(experiment)
    if experiment.privacy.bands is not None and (privacy.kind != "central" or experiment.train.sampler != "cyclic"):
        raise BadInput(
            'privacy.bands correlates the noise of clients that take turns: set privacy.kind = "central" and train.sampler ='
            ' "cyclic" too, or leave it out.'
        )
    if privacy.network is not None and not experiment.secret_cohorts:
        raise BadInput(
            'privacy.network = "unwatched" is for secret cohorts of privacy.kind = "central", and there are none: leave it out.'
        )
    if experiment.privacy.kind == "central":
        _central(experiment)
        if experiment.train.sampler == "cyclic":
            _cyclic(experiment)
    elif experiment.train.sampler == "poisson":
        raise BadInput(
            'train.sampler = "poisson" draws cohorts of random size for the price of privacy.kind = "central": leave it out.'
        )
    elif experiment.train.sampler == "cyclic":
        raise BadInput(
            'train.sampler = "cyclic" has clients take turns in public for the noise of privacy.kind = "central": leave it out.'
        )


def refuse_passed(experiment: "Experiment") -> None:
    """Refuses an experiment any of whose parts was passed from Python, where its file is all there is. Raises BadInput."""
    for key in plugin.PASSED_AS:
        section, _, name = key.partition(".")
        plugin.refuse_passed(getattr(getattr(experiment, section), name), key=key)


def _descent(experiment: "Experiment") -> None:
    train, kind = experiment.train, experiment.privacy.kind
    if train.control is not None and kind in ("central", "distributed"):
        raise BadInput(
            'train.control = "scaffold" follows what each client has released, and with privacy.kind = "central" or "distributed"'
            ' only sums are: set privacy.kind = "local" or "none", or leave it out.'
        )
    for key in ("schedule", "control"):
        if getattr(train, key) is not None and kind not in KINDS:
            raise BadInput(f"train.{key} is not told to a kind of privacy that is not Tacit's own: leave it out.")


def _central(experiment: "Experiment") -> None:
    train, privacy, aggregate = experiment.train, experiment.privacy, experiment.aggregate
    if train.sampler == "fixed" and privacy.accountant != "rdp":
        raise BadInput(
            'Cohorts of a fixed size are priced by RDP alone (replace one client): set privacy.accountant = "rdp",'
            ' or train.sampler = "poisson".'
        )
    if train.min_clients > 1:
        raise BadInput(
            "With central DP a round goes on whoever is drawn, even nobody (waiting for more would give away who took part):"
            " leave out train.min_clients."
        )
    if aggregate.rule not in (None, "mean"):
        raise BadInput(
            'With privacy.kind = "central" the server releases one noised sum, so aggregate.rule must be mean,'
            f" got {aggregate.rule!r}."
        )
    options = aggregate.options()
    if options.get("weights") == "examples" and privacy.weight_cap is None:
        raise BadInput(
            "Weights by examples have no bound, so no noise covers them: set privacy.weight_cap, the examples beyond which"
            " a client weighs no more."
        )
    extra = [key for key, value in options.items() if (key, value) != ("weights", "examples")]
    extra += ["most_share"] * (aggregate.most_share is not None)
    if extra:
        raise BadInput(f'aggregate.{extra[0]} has no effect with privacy.kind = "central": leave it out.')


def _cyclic(experiment: "Experiment") -> None:
    train, privacy = experiment.train, experiment.privacy
    if train.clients_per_round is None:
        raise BadInput(
            'train.sampler = "cyclic" deals the clients into groups that take turns: set train.clients_per_round, the size of one.'
        )
    if privacy.clip_quantile is not None:
        raise BadInput(
            "A clip that adapts counts clipped updates in every round, which the noise of a cycle is not priced for: leave out"
            ' privacy.clip_quantile, or train.sampler = "cyclic".'
        )
    if privacy.bands is not None:
        check.at_least(1, **{"privacy.bands": privacy.bands})
        if privacy.bands > train.rounds:
            raise BadInput(
                f"Noise of {privacy.bands} bands takes as many rounds to be whole, and there are {train.rounds}: raise"
                " train.rounds, or set privacy.bands lower."
            )
    if experiment.audit.canaries is not None:
        raise BadInput(
            "What a canary did is read off noise that is independent in every round, and that of a cycle is not: leave out"
            " [audit], and use `tacit audit EXPERIMENT`, which covers it."
        )


def _distributed(experiment: "Experiment") -> None:
    train, privacy = experiment.train, experiment.privacy
    if train.sampler is not None:
        raise BadInput(
            "With distributed DP the server knows who reports, so choosing clients at random earns nothing: leave out"
            " train.sampler."
        )
    if privacy.groups == 2 and train.clients_per_round and not privacy.fewest_reports:
        raise BadInput(
            "With two groups and a part of the clients in a round, how many of each report is random: set privacy.fewest_reports"
            " lower than train.clients_per_round."
        )


def _whole_updates(experiment: "Experiment") -> None:
    protect = experiment.protect
    if protect.kind != "none":
        raise BadInput(
            f'protect.kind = "{protect.kind}" seals integers with shares of noise: set privacy.kind = "distributed".'
        )
    for key in ("bits", "rotation"):
        if getattr(protect, key) is not None:
            raise BadInput(f'protect.{key} is for the integers of privacy.kind = "distributed": leave it out.')
