"""A site audits itself: canaries in what it releases, of which nobody else knows, and what became of them in its own folder.

`canaries = 500` in `site.toml` adds so many to the site's records (or, client level, stands them beside the site). Guarantee: they
change neither price nor noise nor whether the site answers; what leaves is a shift at coordinates that the site's secret decides
about, and no row."""

import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit import store
from tacit.algorithms.local_dp import LocalDP
from tacit.check import shown
from tacit.crypto import keys
from tacit.deploy.site import layout
from tacit.engine.assemble import Parts
from tacit.engine.canaries import OBSERVED, Canaries, file_of, observation, with_canaries
from tacit.errors import BadInput
from tacit.experiment.extras import refuse_unplain
from tacit.wire import digest_of

if TYPE_CHECKING:
    from tacit.deploy.site.agreement import Accepted

SECRET_BYTES = 32
MOST = 1 << 32  # clients, or parameters
SIZES = ("count", "clients", "size", "only")
DAMAGE = (OSError, ValueError, KeyError, TypeError, RecursionError)


def with_own_canaries(folder: Path, run: str, parts: Parts, index: int, settings: dict[str, Any]) -> Parts:
    """A site's parts of a run with its own canaries, if `site.toml` has any: as many as the run began with. Raises: BadInput."""
    count, size = settings.get("canaries"), parts.params.numel()
    if count is None:
        return parts
    with suppress(*DAMAGE):  # the run has not begun
        count = json.loads((layout.run_folder(folder, run) / layout.CANARIES).read_text("utf-8"))["count"]
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= size:
        raise BadInput(f"Expected canaries in site.toml to be a whole number from 2 to {size}, got {shown(count)}.")
    if type(parts.algorithm) is not LocalDP or not parts.plan.priced:
        raise BadInput("canaries in site.toml are for local DP, whose noise is the site's own: leave them out.")
    refuse_unplain(parts.experiment, "canaries in site.toml")
    return with_canaries(parts, Canaries(_key(folder, run), count, len(parts.population), size, only=index))


def commit(accepted: "Accepted") -> None:
    """Writes down the hash of a run's coins before the first of its answers; nothing where there are no canaries."""
    canaries, folder = accepted.parts.canaries, layout.run_folder(accepted.site, accepted.agreement.run)
    if canaries is not None:
        record = {name: getattr(canaries, name) for name in (*SIZES, "commitment")}
        store.create(folder / layout.CANARIES, json.dumps(record).encode())


def record_observation(accepted: "Accepted", round: int, info: dict[str, Any]) -> None:
    """Keeps what became of the canaries in a round, as training reported it. It raises nothing; what went wrong is in the log."""
    canaries, site, run = accepted.parts.canaries, accepted.site, accepted.agreement.run
    if OBSERVED not in info or canaries is None:
        return
    try:
        file = file_of(layout.run_folder(site, run), round)
        layout.make_folder(file.parent)
        layout.write(file, observation(canaries, [accepted.client], [info], {}))
    except Exception as error:  # noqa: BLE001 - of the site's own interest only, and the round's answer is kept already
        layout.note(site, verdict="failed", text=f"Canaries: {layout.discreet(error)}", run=run, round=round)


def own_canaries(site: Path, run: str) -> Canaries:
    """The canaries of a site in a run. Raises: BadInput for none, and for coins that were not committed to."""
    file = layout.run_folder(site, run) / layout.CANARIES
    try:
        record = json.loads(file.read_text("utf-8"))
        count, clients, size, only = (record[name] for name in SIZES)
        if not all(type(one) is int and 0 <= one <= MOST for one in (count, clients, size, only)) or count > size:
            raise ValueError
    except DAMAGE:
        raise BadInput(f"{file} is damaged: put it back as it was.") from None
    canaries = Canaries(_key(site, run), count, clients, size, only=only)
    if canaries.commitment != record.get("commitment"):
        raise BadInput(f"The coins in {file} are not those that were committed to before the first answer.")
    return canaries


def _key(folder: Path, run: str) -> bytes:
    file = folder / layout.COINS
    if not file.exists():
        keys.write(file, {"key": secrets.token_hex(SECRET_BYTES)}, mode=keys.SECRET)
    key = keys.read(file, secret=True).get("key")
    if not isinstance(key, str) or len(key) != 2 * SECRET_BYTES:
        raise BadInput(f"{file} is damaged: put it back as it was.")
    return bytes.fromhex(digest_of("site canaries", key, run))
