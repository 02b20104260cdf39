"""What is charged to a ledger beside Tacit's own runs: a table of a report, an OpenDP measurement, another platform's training.

It is paid as a run is: sealed at its price, chained, on disk before `charge` returns, never beyond the budget, and added to what
runs have sealed by basic composition, within one unit. That it says all that was released is up to whoever charges it."""

import json
import math
import uuid
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from tacit import check, wire
from tacit.deploy.site import layout
from tacit.deploy.site.limits import read_limits
from tacit.errors import BadInput, BudgetExhausted
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import GAUSSIANS, EpsilonDeltaDpEvent
from tacit.privacy.guarantee import shown, shown_delta
from tacit.privacy.ledger import disk, reader
from tacit.privacy.ledger.disk import MOST_PURPOSE
from tacit.privacy.ledger.ledger import ROUNDING, Spent
from tacit.privacy.ledger.ledger import Ledger as Books
from tacit.types import Budget, Unit

MOST_EVENT = 10_000  # characters of an event's JSON
EXAMPLE = '{"event": "sampled-gaussian", "noise_multiplier": 4.0, "sampling_rate": 1.0, "steps": 1}'
KINDS = (*GAUSSIANS, EpsilonDeltaDpEvent)


class Release(Budget):
    """What bounds a release that may promise delta = 0."""

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta or 0.5, self.unit)


@dataclass(frozen=True)
class Charge:
    """A release that is paid for, on disk: (epsilon, delta) per unit, sealed in the ledger under the name `run`."""

    run: str
    purpose: str
    unit: Unit
    epsilon: float
    delta: float


@dataclass(frozen=True)
class Ledger:
    """The ledger of a site's folder, which `budget.toml` bounds as it is at each charge; or another one, of a run or shared by
    runs, which `budget` bounds, for one `client` or, left out, for every client.

    Guarantee: after a charge has returned it is on disk, and what all runs and other releases have sealed in its unit was within
    the budget; what raises has charged nothing. Raises: LedgerError where there is no ledger, or a lost or older one."""

    path: Path | str
    budget: Budget | None = None
    client: str = ""
    _file: Path = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_file", reader.find(Path(self.path)))
        if self._site and (self.budget is not None or self.client):
            raise BadInput(
                f"{self._site} is a site's folder, which budget.toml bounds: leave out the budget and the client."
            )

    @property
    def _site(self) -> Path | None:
        folder = self._file.parent
        return folder if (folder / layout.SETTINGS).is_file() else None

    @property
    def name(self) -> str:
        """Whom it charges; the empty name is every client."""
        return str(layout.read_settings(self._site)["name"]) if self._site else self.client

    @property
    def limit(self) -> Budget:
        """What bounds it now. Raises: BadInput where nothing does, or for a damaged budget.toml."""
        if self._site:
            return read_limits(self._site).budget
        if self.budget is None:
            raise BadInput(
                f"Nothing bounds {self._file}, which is no site's ledger: say its clients' budget (epsilon, delta, unit)."
            )
        return self.budget

    def spent(self) -> Spent:
        """(epsilon, delta) of what all runs and other releases have sealed in the unit of its limit."""
        return reader.read_before(self._file, unit=self.limit.unit).of(self.name)

    def left(self) -> Spent:
        """(epsilon, delta) of its limit that nothing has sealed."""
        limit, spent = self.limit, self.spent()
        return Spent(max(0.0, limit.epsilon - spent.epsilon), max(0.0, limit.delta - spent.delta))

    def charge(
        self,
        *,
        purpose: str,
        unit: Unit,
        epsilon: float | None = None,
        delta: float = 0.0,
        event: DpEvent | None = None,
    ) -> Charge:
        """Charges one release, before it is made: its (epsilon, delta), or an event, which is priced at `delta`. Raises:
        BudgetExhausted where the budget does not pay for it, BadInput for what cannot be charged, LedgerError."""
        if (epsilon is None) == (event is None):
            raise BadInput("A charge is for an epsilon or for an event: give one of the two.")
        one = _priceable(EpsilonDeltaDpEvent(epsilon, delta) if event is None else event)  # type: ignore[arg-type]
        delta, text, limit, run = _delta_of(one, delta), purpose_of(purpose), self.limit, uuid.uuid4().hex
        asked = Charge(run, text, unit, price.epsilon(price.compose([(one, 1)]), delta=delta), delta)
        budget = Release(limit.epsilon * (1 + ROUNDING), delta, unit)
        if unit != limit.unit:
            raise BadInput(
                f"The budget here is per {limit.unit}, and bounds no release per {unit}: nothing was charged."
            )
        if not disk.begun_at(self._file) and (asked.epsilon > limit.epsilon or delta > limit.delta):
            raise self.beyond(asked)  # so that nothing is begun for what is refused
        with closing(self._opened(run=run, population=None, delta=limit.delta, rounds=1, spare=False)) as ledger:
            ledger.open_round(0, run)
            if not ledger.charge(self.name, budget, one, purpose=text):
                raise self.beyond(asked)
        if self._site:
            said = f"epsilon {shown(asked.epsilon)} and delta {shown_delta(delta)} per {unit}, for {text}"
            layout.note(self._site, verdict="charged", kind="charge", run=run, text=said)
        return asked

    def _opened(self, **options: Any) -> Books:
        if self._site:
            from tacit.deploy.site.agreement import open_ledger  # loads torch

            return open_ledger(self._site, layout.read_settings(self._site), **options)
        own, shared = self._file.with_name(disk.NAME), self._file.with_name(f"{self._file.name}.mark")
        return Books(self._file, watermarks=[own if own.is_file() and not shared.is_file() else shared], **options)

    def beyond(self, asked: Charge) -> BudgetExhausted:
        """The refusal of what is not left, in words."""
        limit, spent = self.limit, self.spent()
        return BudgetExhausted(
            f"The budget does not pay for {asked.purpose!r}: of epsilon {limit.epsilon:g} and delta {limit.delta:g} per"
            f" {limit.unit}, epsilon {shown(spent.epsilon)} and delta {shown_delta(spent.delta)} are sealed, and this takes"
            f" epsilon {shown(asked.epsilon)} and delta {shown_delta(asked.delta)}. Nothing was charged."
        )


def purpose_of(text: object) -> str:
    """What a release is for, as it stands in a ledger: one printable line that begins with a letter or a digit, so that no
    spreadsheet takes it for a formula. Raises: BadInput."""
    said = wire.text(text, what="What the release is for", most=MOST_PURPOSE).strip()
    if not said[:1].isalnum():
        raise BadInput(f"What the release is for is {wire.shown(said)}: begin it with a letter or a digit.")
    return said


def event_of(path: Path) -> DpEvent:
    """The event of a JSON file, in the words of a ledger. Nothing in it is imported or run. Raises: BadInput, also for a part
    that the event does not have."""
    what = str(path)
    try:
        with path.open("rb") as file:
            text = file.read(MOST_EVENT + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({type(error).__name__}): name a JSON file with an event.") from None
    record = wire.json_object(text, what=what, most=MOST_EVENT, finite=True)
    try:
        event = price.from_text(json.dumps(record))
        if json.loads(price.to_text(event)) == record:
            return _priceable(event)
    except BadInput:
        pass
    raise BadInput(f"{what} holds no event that can be charged: write it as {EXAMPLE}, or give its epsilon and delta.")


def _priceable(event: object) -> DpEvent:
    """Raises: BadInput for what has no price that is this release's alone."""
    inner, times = price.counted(event) if isinstance(event, DpEvent) else (event, 1)
    if not isinstance(inner, KINDS):
        kinds = "a Gaussian, Poisson-sampled or not, or an EpsilonDeltaDpEvent"
        raise BadInput(f"Expected {kinds}, got a {type(inner).__name__}: give its epsilon and delta instead.")
    if times == 0:
        raise BadInput("The event happens 0 times, which is no release at all.")
    return event  # type: ignore[return-value]


def _delta_of(joint: DpEvent, delta: float) -> float:
    """The delta that is charged: what is asked for, or what the event itself states, as often as it happens."""
    one, times = price.counted(joint)
    if not isinstance(one, EpsilonDeltaDpEvent):
        check.probability(delta=delta)
        return delta
    exact = Fraction(one.delta) * times
    stated = float(exact)
    return stated if stated >= exact else math.nextafter(stated, math.inf)
