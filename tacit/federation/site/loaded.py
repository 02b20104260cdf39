"""The runs of a site whose rows and model are in memory."""

from collections.abc import Callable
from pathlib import Path

from tacit.errors import Refused
from tacit.federation.site.agreement import Agreement
from tacit.federation.site.join import Joined, join
from tacit.federation.site.limits import read_limits
from tacit.federation.site.roster import Roster
from tacit.privacy.wiring import Local

Joining = Callable[..., Joined]  # as `join`
MOST = 2  # runs whose rows and model are held at a time


class Loaded:
    """The runs that were built last, at most `MOST` of them; any other is built again when it is asked about.

    Nothing here is missed after a restart: agreement, ledger and answers are files. `local` is training of somebody else's;
    `joining` is how a run is built, which an audit of the site itself wraps (tacit/audit).
    """

    def __init__(self, folder: Path, local: Local | None, joining: Joining = join):
        self.folder, self.local, self.joining = folder, local, joining
        self._joined: dict[str, Joined] = {}

    def __len__(self) -> int:
        return len(self._joined)

    def get(self, run: str) -> Joined | None:
        """The run as it was built last, or None where it is not in memory; the budget file may have changed since."""
        return self._joined.get(run)

    def build(self, run: str, text: str, roster: Roster, *, spends: bool = True) -> Joined:
        """Builds a run anew, without holding it: what follows may still refuse it. Raises: as `join`."""
        return self.joining(self.folder, run, text, roster, local=self.local, spends=spends)

    def hold(self, joined: Joined) -> Joined:
        """Keeps a run in memory, lets the one go that was built longest ago, and returns it."""
        self._joined.pop(joined.agreement.run, None)
        self._joined[joined.agreement.run] = joined
        while len(self._joined) > MOST:
            self._joined.pop(next(iter(self._joined)))
        return joined

    def current(self, agreed: Agreement, *, spends: bool = True) -> Joined:
        """The run of an agreement, under the budget file as it is now.

        Guarantee: its limits are those on disk at this moment: where the file has changed, or the run is not in memory, the run
        is built again, which refuses what is no longer allowed and opens the ledger anew. What of the model does not train is
        what was agreed. What does not spend is not held, for its budget may be less than the run's. Raises: as `join`.
        """
        held = self.get(agreed.run)
        if held is not None and held.limits == read_limits(self.folder):
            return held
        built = self.build(agreed.run, agreed.experiment, Roster.of(agreed.roster), spends=spends)
        if built.agreement.terms.frozen != agreed.terms.frozen:
            raise Refused("The model's weights at this site are others than when the run was agreed: put those back.")
        return self.hold(built) if spends else built
