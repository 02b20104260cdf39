"""`tacit audit EXPERIMENT`: noise, clip, rate and divisor as run, for each trainer, without training to the end."""

from collections.abc import Container, Sequence
from dataclasses import replace

from tacit.algorithms.encrypted import Encrypted
from tacit.check import one_of
from tacit.engine.assemble import Parts, build
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.experiment.privacy import Unprotected
from tacit.lab.audit.bugs import bug_of
from tacit.lab.audit.evidence import LEVEL, Audit, Check, confirmed, judge, unsure
from tacit.lab.audit.probes import Prepare, probes_of
from tacit.lab.audit.sums import KINDS
from tacit.lab.audit.trainers import TRAINERS, slow_key
from tacit.privacy.plan import kind_of
from tacit.wire import digest_of

NOT_SEALED = "server: the sums are not hidden, or it would take too long to seal one"


def prepared(experiment: Experiment) -> Parts:
    """The parts of an experiment as an audit needs them: nothing is charged or written. Under local DP the rule is the mean, which
    is post-processing; sums whose key takes long to find (its primes are safe ones) are not sealed.
    Raises: BadInput where nothing is promised, or by a kind that no audit can measure; and as `build`."""
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
        kind = experiment.privacy.kind
        raise BadInput(f'privacy.kind = "{kind}" cannot be audited: local, central, distributed can.')
    return parts


def audit(
    parts: Parts, *, seed: int = 0, plant: str | None = None, trainers: Sequence[str] = (), level: float = LEVEL
) -> Audit:
    """Audits the parts of `prepared`, by all trainers unless some are named; `plant` is one of `bugs.BUGS`.
    Guarantee: where every claim holds, one is rejected with probability at most `level` x `evidence.AGAIN`: what fails is
    measured again, with randomness keyed by the audit's seed, never as a run's own is. Raises BadInput for what there is not or
    cannot be."""
    for name in trainers:
        one_of(TRAINERS, **{"--trainer": name})
    bug: Prepare = (lambda parts: parts) if plant is None else bug_of(plant, parts)
    checks, untried = _look(parts, bug, digest_of("audit", str(seed)), trainers)
    first = final = judge(checks, level=level)
    if unsure(first):
        places = {one.check.where for one in first if one.rejected}
        final = confirmed(first, _look(parts, bug, digest_of("audit", str(seed), "again"), trainers, places=places)[0])
    withdrawn = tuple(one for one, kept in zip(first, final, strict=True) if one.rejected and not kept.rejected)
    return Audit(parts.experiment.name, final, tuple(untried), plant, level, withdrawn)


def _look(
    parts: Parts, bug: Prepare, nonce: str, trainers: Sequence[str], *, places: Container[str] | None = None
) -> tuple[list[Check], list[str]]:
    # measures everything, or what is at some places, with randomness of its own; and what could not be tried
    parts = replace(parts, nonce=nonce)
    subject = KINDS[type(parts.algorithm)](parts, lambda changed: bug(replace(changed, nonce=nonce)), probes_of(parts))
    checks = list(subject.server())
    untried = [NOT_SEALED] if isinstance(parts.algorithm, Encrypted) and not checks else []
    for name in trainers or TRAINERS:
        if places is not None and name not in places:
            continue
        try:
            checks += replace(subject, where=name, made_by=TRAINERS[name]).clients()
        except TacitError as error:
            if trainers:
                raise
            untried.append(f"{name}: {str(error).rstrip('.')}")
    return checks, untried
