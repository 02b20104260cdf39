"""The verdict: every check of an audit at one level together, and the sentence that says what was rejected.

Bonferroni: a true claim is rejected, by any of the checks, with probability at most LEVEL. Checks without chance take none of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.audit.evidence import Evidence

LEVEL = 0.05  # of all checks of one audit


@dataclass(frozen=True)
class Check:
    """One number of one trainer (or of the server), as claimed and as seen. `said` is the claim in a rejection's words."""

    where: str
    quantity: str
    claimed: float
    evidence: Evidence = field(repr=False)
    said: str
    part: str = ""  # a layer, or nothing for all
    unit: float = 1.0  # what both numbers are multiplied by to be shown


@dataclass(frozen=True)
class Judged:
    """A check with its limits, at its share of the level."""

    check: Check
    low: float
    high: float
    rejected: bool

    @property
    def sentence(self) -> str:
        """What is wrong, for a person."""
        check = self.check
        of = f" in {check.part}" if check.part else ""
        shown = check.evidence.value * check.unit
        limits = "" if check.evidence.tests == 0 else f" ({self.low * check.unit:.4g} to {self.high * check.unit:.4g})"
        return f"{check.where}: {check.said}{of}: {check.quantity} {shown:.4g}{limits}, claimed {check.claimed * check.unit:.4g}"

    def record(self) -> dict[str, Any]:
        """Plain values."""
        check = self.check
        return {
            "where": check.where,
            "quantity": check.quantity,
            "part": check.part,
            "claimed": check.claimed * check.unit,
            "as_run": check.evidence.value * check.unit,
            "low": self.low * check.unit,
            "high": self.high * check.unit,
            "exact": check.evidence.tests == 0,
            "rejected": self.rejected,
        }


@dataclass(frozen=True)
class Audit:
    """What an audit of one experiment found, and what it could not try, with the reason."""

    name: str
    judged: tuple[Judged, ...] = field(repr=False)
    untried: tuple[str, ...] = ()
    planted: str | None = None
    level: float = LEVEL

    @property
    def rejected(self) -> tuple[Judged, ...]:
        """The checks that refute their claim."""
        return tuple(one for one in self.judged if one.rejected)

    @property
    def alarming(self) -> bool:
        """Whether a claim is rejected."""
        return bool(self.rejected)

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be tried, in words."""
        return tuple(f"Not tried: {text}." for text in self.untried)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        first, *more = (*self.rejected, None)
        if first is not None:
            others = f" (and {len(more) - 1} more)" if len(more) > 1 else ""
            return f"The claim is rejected: {first.sentence}{others}."
        if self.planted is not None:
            return f"The planted bug was not found: {len(self.judged)} checks, none rejected."
        return f"The claim stands: {len(self.judged)} checks, none rejected ({self.level:.2g} over all of them)."

    def record(self) -> dict[str, Any]:
        """Plain values for --json."""
        return {
            "experiment": self.name,
            "planted": self.planted,
            "level": self.level,
            "rejected": bool(self.rejected),
            "sentence": self.sentence,
            "checks": [one.record() for one in self.judged],
            "untried": list(self.untried),
        }


def judge(checks: Sequence[Check], *, level: float = LEVEL) -> tuple[Judged, ...]:
    """Every check at its share of the level: those with chance in them share it evenly."""
    share = level / max(1, sum(check.evidence.tests for check in checks))
    return tuple(Judged(c, *c.evidence.limits(share), c.evidence.rejects(c.claimed, share)) for c in checks)
