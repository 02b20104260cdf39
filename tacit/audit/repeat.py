"""An audit with many seeds: how often clean code is accused, or a planted bug is found."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy import stats

from tacit.audit.evidence import Rate
from tacit.audit.mechanism import audit
from tacit.audit.verdict import Audit
from tacit.build.parts import Parts

DOUBT = 0.01  # how unlikely so many false alarms may be of an auditor that keeps its level
SURE = 0.025  # of each limit


@dataclass(frozen=True)
class Repeated:
    """The audits of one experiment, a seed each."""

    audits: tuple[Audit, ...] = field(repr=False)

    @property
    def alarms(self) -> int:
        """How many of them reject a claim."""
        return sum(bool(one.rejected) for one in self.audits)

    @property
    def limits(self) -> tuple[float, float]:
        """Of the probability of an alarm, at 95 %."""
        return Rate(self.alarms, len(self.audits)).limits(SURE)

    @property
    def reasons(self) -> Counter[tuple[str, str, str]]:
        """How often each check rejected."""
        found = (one.check for run in self.audits for one in run.rejected)
        return Counter((check.where, check.quantity, check.part) for check in found)

    @property
    def alarming(self) -> bool:
        """A planted bug was found; or clean code is accused more often than a true claim may be."""
        if self.audits[0].planted is not None:
            return self.alarms > 0
        return float(stats.binom.sf(self.alarms - 1, len(self.audits), self.audits[0].false_alarm)) < DOUBT

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be tried."""
        return self.audits[0].notes

    @property
    def sentence(self) -> str:
        """What came of it."""
        low, high = self.limits
        share = (
            f"{self.alarms} of {len(self.audits)} audits ({100 * low:.1f} to {100 * high:.1f} % of all there could be)"
        )
        if self.audits[0].planted is not None:
            return f"The planted bug was found in {share}."
        more = "more than" if self.alarming else "no more than"
        return f"A claim was rejected in {share}: {more} the {100 * self.audits[0].false_alarm:.2f} % that true claims may be."

    def record(self) -> dict[str, Any]:
        """Plain values for --json."""
        low, high = self.limits
        reasons = [
            dict(zip(("where", "quantity", "part"), key, strict=True)) | {"alarms": n}
            for key, n in self.reasons.items()
        ]
        return {
            "experiment": self.audits[0].name,
            "planted": self.audits[0].planted,
            "audits": len(self.audits),
            "alarms": self.alarms,
            "low": low,
            "high": high,
            "sentence": self.sentence,
            "reasons": reasons,
        }


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
