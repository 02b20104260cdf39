"""`tacit audit EXPERIMENT`: noise, clip, rate and divisor as run, for each trainer, without training to the end."""

from collections.abc import Container, Sequence
from dataclasses import replace

from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.check import one_of
from tacit.digest import mark
from tacit.engine.assemble import Parts, build
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.experiment.privacy import Unprotected
from tacit.lab.audit import kinds
from tacit.lab.audit.evidence import LEVEL, Audit, Check, confirmed, judge, unsure
from tacit.lab.audit.plants import plant_of, refuse
from tacit.lab.audit.probes import Prepare, probes_of
from tacit.lab.audit.trainers import TRAINERS, slow_key
from tacit.privacy.plan import kind_of

KINDS = {  # what an audit holds at the server, and at the clients
    LocalDP: (kinds.server_local, kinds.clients_local),
    CentralDP: (kinds.server_central, kinds.clients_central),
    Encrypted: (kinds.server_distributed, kinds.clients_distributed),
}

NOT_SEALED = "server: the sums are not sealed, or it would take too long to seal one"


def prepared(experiment: Experiment) -> Parts:
    """The parts of an experiment as an audit needs them: nothing is charged or written.

    Of local DP the rule is the mean, which is post-processing. A key that takes long to find (its primes are safe ones) is left
    out, and sums are then not sealed.

    Raises: BadInput where nothing is promised, or by a kind that an audit does not know; and as `build`.
    """
    if experiment.attack is not None:
        raise BadInput("An audit holds what honest clients are promised against the code: leave out [attack].")
    sections = {name: getattr(experiment, name) for name in Experiment.model_fields}
    plans = kind_of(experiment).plans
    if plans.priced and plans.traits.own_training:
        sections["aggregate"] = type(experiment.aggregate)(rule="mean")
    chosen = Experiment(**sections)
    if slow_key(chosen):
        chosen = chosen.model_copy(update={"protect": Unprotected()})
    parts = build(chosen)
    if not parts.plan.priced:
        raise BadInput("This experiment promises nothing, so that there is no claim to audit: set privacy.kind.")
    if type(parts.algorithm) not in KINDS:
        raise BadInput(
            f'privacy.kind = "{experiment.privacy.kind}" is somebody\'s own: an audit knows local, central and distributed DP.'
        )
    return parts


def audit(
    parts: Parts, *, seed: int = 0, plant: str | None = None, trainers: Sequence[str] = (), level: float = LEVEL
) -> Audit:
    """Audits the parts of `prepared`, by all trainers unless some are named; `plant` is a bug of `plants.PLANTS`.

    Guarantee: where every claim holds, one is rejected with probability at most `level` x `verdict.AGAIN`: what fails is measured
    a second time, with other randomness. What is drawn is keyed by the audit's seed, and never as a run's own noise is.

    Raises: BadInput for trainers and bugs that there are not, or that this experiment cannot have.
    """
    for name in trainers:
        one_of(TRAINERS, **{"--trainer": name})
    bug = _bug(plant, parts)
    checks, untried = _look(parts, bug, mark("audit", str(seed)), trainers)
    first = final = judge(checks, level=level)
    if unsure(first):
        places = {one.check.where for one in first if one.rejected}
        final = confirmed(first, _look(parts, bug, mark("audit", str(seed), "again"), trainers, places=places)[0])
    withdrawn = tuple(one for one, kept in zip(first, final, strict=True) if one.rejected and not kept.rejected)
    return Audit(parts.experiment.name, final, tuple(untried), plant, level, withdrawn)


def _look(
    parts: Parts, bug: Prepare, nonce: str, trainers: Sequence[str], *, places: Container[str] | None = None
) -> tuple[list[Check], list[str]]:
    """Measures everything, or what is at some places, with randomness of its own; and what could not be tried."""
    parts = replace(parts, nonce=nonce)

    def planted(changed: Parts) -> Parts:
        return bug(replace(changed, nonce=nonce))

    (server, clients), probes = KINDS[type(parts.algorithm)], probes_of(parts)
    checks: list[Check] = list(server(parts, planted, probes))
    untried = [NOT_SEALED] if isinstance(parts.algorithm, Encrypted) and not checks else []
    for name in trainers or TRAINERS:
        if places is not None and name not in places:
            continue
        try:
            checks += clients(name, parts, TRAINERS[name], planted, probes)
        except TacitError as error:
            if trainers:
                raise
            untried.append(f"{name}: {str(error).rstrip('.')}")
    return checks, untried


def _bug(plant: str | None, parts: Parts) -> Prepare:
    if plant is None:
        return lambda parts: parts
    found = plant_of(plant)
    refuse(plant, found, parts)
    return found.prepare
