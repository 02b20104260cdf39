"""`tacit audit EXPERIMENT`: noise, clip, rate and divisor as run, for each trainer, without training to the end; and
with many seeds, how often clean code is accused or a planted bug is found."""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scipy import stats

from tacit.algorithms.encrypted import Encrypted
from tacit.check import one_of
from tacit.engine.assemble import Parts, build
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.experiment.privacy import Unprotected
from tacit.lab.audit.evidence import LEVEL, Audit, Check, Rate, confirmed, judge, unsure
from tacit.lab.audit.kinds import KINDS
from tacit.lab.audit.plants import plant_of
from tacit.lab.audit.probes import Prepare, probes_of
from tacit.lab.audit.trainers import TRAINERS, slow_key
from tacit.privacy.plan import kind_of
from tacit.wire import digest_of

NOT_SEALED = "server: the sums are not sealed, or it would take too long to seal one"
DOUBT = 0.01  # how unlikely so many false alarms may be of an auditor that keeps its level
SURE = 0.025  # of each limit


def prepared(experiment: Experiment) -> Parts:
    """The parts of an experiment as an audit needs them: nothing is charged or written.
    Of local DP the rule is the mean, which is post-processing. A key that takes long to find (its primes are safe ones) is left
    out, and sums are then not sealed.
    Raises: BadInput where nothing is promised, or by a kind that an audit does not know; and as `build`."""
    if experiment.attack is not None:
        raise BadInput("An audit holds what honest clients are promised against the code: leave out [attack].")
    if experiment.privacy.sums_records:
        raise BadInput(
            'Sums of records that are noised once have no audit yet: audit privacy.kind = "local", or unit = "client".'
        )
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
            f'privacy.kind = "{experiment.privacy.kind}" cannot be audited: local, central, distributed can.'
        )
    return parts


def audit(
    parts: Parts, *, seed: int = 0, plant: str | None = None, trainers: Sequence[str] = (), level: float = LEVEL
) -> Audit:
    """Audits the parts of `prepared`, by all trainers unless some are named; `plant` is a bug of `plants.PLANTS`.
    Guarantee: where every claim holds, one is rejected with probability at most `level` x `evidence.AGAIN`: what fails is measured
    a second time, with other randomness. What is drawn is keyed by the audit's seed, and never as a run's own noise is.
    Raises: BadInput for trainers and bugs that there are not, or that this experiment cannot have."""
    for name in trainers:
        one_of(TRAINERS, **{"--trainer": name})
    bug: Prepare = (lambda parts: parts) if plant is None else plant_of(plant, parts)
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
    """Measures everything, or what is at some places, with randomness of its own; and what could not be tried."""
    parts = replace(parts, nonce=nonce)
    subject = KINDS[type(parts.algorithm)](parts, lambda changed: bug(replace(changed, nonce=nonce)), probes_of(parts))
    checks = list(subject.server())
    untried = [NOT_SEALED] if isinstance(parts.algorithm, Encrypted) and not checks else []
    for name in trainers or TRAINERS:
        if places is not None and name not in places:
            continue
        try:
            checks += replace(subject, where=name, making=TRAINERS[name]).clients()
        except TacitError as error:
            if trainers:
                raise
            untried.append(f"{name}: {str(error).rstrip('.')}")
    return checks, untried


@dataclass(frozen=True)
class Repeated:
    """The audits of one experiment, a seed each."""

    audits: tuple[Audit, ...] = field(repr=False)

    @property
    def alarms(self) -> int:
        return sum(one.alarming for one in self.audits)

    @property
    def limits(self) -> tuple[float, float]:
        return Rate(self.alarms, len(self.audits)).limits(SURE)

    @property
    def reasons(self) -> Counter[tuple[str, str, str]]:
        """How often each check rejected."""
        return Counter(one.check.name for run in self.audits for one in run.rejected)

    @property
    def alarming(self) -> bool:
        if self.audits[0].planted is not None:
            return self.alarms > 0
        return float(stats.binom.sf(self.alarms - 1, len(self.audits), self.audits[0].false_alarm)) < DOUBT

    @property
    def notes(self) -> tuple[str, ...]:
        return self.audits[0].notes

    @property
    def sentence(self) -> str:
        low, high = self.limits
        share = f"{self.alarms} of {len(self.audits)} audits (95 %: {100 * low:.1f} to {100 * high:.1f} %)"
        if self.audits[0].planted is not None:
            return f"The planted bug was found in {share}."
        more = "more than" if self.alarming else "no more than"
        return f"A claim was rejected in {share}: {more} the {100 * self.audits[0].false_alarm:.2f} % that true claims may be."

    def record(self) -> dict[str, Any]:
        low, high = self.limits
        reasons = [
            dict(zip(("where", "quantity", "part"), key, strict=True)) | {"alarms": n}
            for key, n in self.reasons.items()
        ]
        first = self.audits[0]
        counts = {"audits": len(self.audits), "alarms": self.alarms, "low": low, "high": high}
        said = {"sentence": self.sentence, "reasons": reasons}
        return {"experiment": first.name, "planted": first.planted} | counts | said


def repeated(
    parts: Parts,
    *,
    seeds: Sequence[int],
    plant: str | None = None,
    trainers: Sequence[str] = (),
    observe: Callable[[int], object] = lambda done: None,
) -> Repeated:
    """Audits with every seed. Raises as `audit`."""
    found: list[Audit] = []
    for seed in seeds:
        found.append(audit(parts, seed=seed, plant=plant, trainers=trainers))
        observe(len(found))
    return Repeated(tuple(found))
