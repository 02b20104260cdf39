"""The verdict: every check of an audit at one level together, and the sentence that says what was rejected.

Two looks. The first has LEVEL, shared by Bonferroni: some true claim fails in it with probability at most LEVEL. What fails is
measured a second time, with other randomness, and is rejected if it fails again, at AGAIN, shared among those that failed: whatever
those are, the second look does not depend on the first, so that a true claim is rejected with probability at most LEVEL x AGAIN.
Fewer share the second, so that what is wrong fails there more surely than in the first. Checks without chance take none of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tacit.audit.evidence import NOT_JUDGED, Evidence, held_against

LEVEL = 0.05  # of all checks of a first look
AGAIN = 0.05  # of a second look at those that failed


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
    against: str = ""  # what it is held against, where it has no limits of its own

    @property
    def verdict(self) -> str:
        """One word, or a dash for what is shown and no claim."""
        return "rejected" if self.rejected else "–" if self.against == NOT_JUDGED else "stands"

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
            "held_against": self.against,
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
    withdrawn: tuple[Judged, ...] = field(
        default=(), repr=False
    )  # what failed at the first look, and not at the second

    @property
    def false_alarm(self) -> float:
        """The probability, at most, that any claim of clean code is rejected: it would have to fail in two independent looks.

        >>> Audit("clean", ()).false_alarm == LEVEL * AGAIN
        True
        """
        return self.level * AGAIN

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
        """What could not be tried, and what a second look took back, in words."""
        once = "failed at a first look, as one true claim may in twenty audits, and not at a second, independent one"
        back = tuple(f"Not rejected: {one.sentence} {once}." for one in self.withdrawn)
        return (*(f"Not tried: {text}." for text in self.untried), *back)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        first, *more = (*self.rejected, None)
        if first is not None:
            others = f" (and {len(more) - 1} more)" if len(more) > 1 else ""
            return f"The claim is rejected: {first.sentence}{others}."
        if self.planted is not None:
            return f"The planted bug was not found: {len(self.judged)} checks, none rejected."
        return (
            f"The claim stands: {len(self.judged)} checks, none rejected (of clean code one would be with probability at most"
            f" {self.false_alarm:.2g})."
        )

    def record(self) -> dict[str, Any]:
        """Plain values for --json."""
        return {
            "experiment": self.name,
            "planted": self.planted,
            "level": self.level,
            "false_alarm": self.false_alarm,
            "rejected": bool(self.rejected),
            "sentence": self.sentence,
            "checks": [one.record() for one in self.judged],
            "untried": list(self.untried),
            "withdrawn": [one.record() for one in self.withdrawn],
        }


def judge(checks: Sequence[Check], *, level: float = LEVEL) -> tuple[Judged, ...]:
    """Every check at its share of the level: those with chance in them share it evenly."""
    share = level / max(1, sum(check.evidence.tests for check in checks))
    return tuple(
        Judged(
            c,
            *c.evidence.limits(share),
            c.evidence.rejects(c.claimed, share),
            held_against(c.evidence, c.claimed, level=share, unit=c.unit),
        )
        for c in checks
    )


def unsure(judged: Sequence[Judged]) -> bool:
    """Whether claims failed, and each by chance for all that is known: what fails without chance in it is a fact."""
    failed = [one.check.evidence.tests for one in judged if one.rejected]
    return bool(failed) and min(failed) > 0


def confirmed(first: Sequence[Judged], second: Sequence[Check], *, level: float = AGAIN) -> tuple[Judged, ...]:
    """A first look with what a second one, of other randomness, did not reject again taken back.

    Guarantee: where every claim holds, one stays rejected with probability at most the first look's level times `level`. What the
    second look has no measurement of stays rejected.
    """
    failed = {_named(one.check) for one in first if one.rejected}
    again = {_named(one.check): one.rejected for one in judge([c for c in second if _named(c) in failed], level=level)}
    return tuple(replace(one, rejected=one.rejected and again.get(_named(one.check), True)) for one in first)


def _named(check: Check) -> tuple[str, str, str]:
    return check.where, check.quantity, check.part
