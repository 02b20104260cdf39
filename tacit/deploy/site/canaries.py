"""A site audits itself: canaries in what it releases, of which nobody else knows, and what became of them in its own folder.

`canaries = 500` in `site.toml` plants so many among the site's records (or, client level, beside the site), each by a coin that is
committed to before the first answer. `tacit audit SITE` reads them. Guarantee: they change neither price nor noise nor whether the
site answers; what leaves is a shift at coordinates that the site's secret decides about, and no row."""

import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit import store
from tacit.algorithms.local_dp import LocalDP
from tacit.check import shown
from tacit.crypto import keys
from tacit.deploy.site import layout
from tacit.deploy.site.layout import discreet, note
from tacit.engine.assemble import Parts
from tacit.engine.canaries import OBSERVED, Canaries, file_of, gathered, packed, with_canaries
from tacit.errors import BadInput
from tacit.experiment.extras import refuse_unplain
from tacit.wire import digest_of

if TYPE_CHECKING:
    from tacit.deploy.site.agreement import Accepted

SECRET_BYTES = 32
MOST = 1 << 32  # clients, or parameters


def with_own_canaries(folder: Path, run: str, parts: Parts, index: int, settings: dict[str, Any]) -> Parts:
    """A site's parts of a run with its own canaries, if `site.toml` has any: as many as the run began with. Raises: BadInput."""
    count, size = settings.get("canaries"), parts.params.numel()
    if count is None:
        return parts
    count = _begun(folder, run) or count
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= size:
        raise BadInput(f"Expected canaries in site.toml to be a whole number from 2 to {size}, got {shown(count)}.")
    if type(parts.algorithm) is not LocalDP or not parts.plan.priced:
        raise BadInput("canaries in site.toml are for local DP, whose noise is the site's own: leave them out.")
    refuse_unplain(parts.experiment, "canaries in site.toml")
    key = bytes.fromhex(digest_of("site canaries", _secret(folder), run))
    canaries = Canaries(key, count, len(parts.population), size, only=index)
    return replace(parts, algorithm=with_canaries(parts, canaries))


def _begun(folder: Path, run: str) -> object:
    try:
        return json.loads((layout.run_folder(folder, run) / layout.CANARIES).read_text("utf-8"))["count"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def commit(accepted: "Accepted") -> None:
    """Writes down the hash of a run's coins before the first of its answers; nothing where there are no canaries."""
    canaries, folder = _planted(accepted), layout.run_folder(accepted.site, accepted.agreement.run)
    if canaries is not None:
        sizes = {"count": canaries.count, "clients": canaries.clients, "size": canaries.size, "only": canaries.only}
        store.create(folder / layout.CANARIES, json.dumps(sizes | {"commitment": canaries.commitment}).encode())


def record_observation(accepted: "Accepted", round: int, said: dict[str, Any]) -> None:
    """Keeps what became of the canaries in a round, as the trainer `said`. It raises nothing; what went wrong is in the log."""
    canaries = _planted(accepted)
    if OBSERVED not in said or canaries is None:
        return
    site, run = accepted.site, accepted.agreement.run
    try:
        file = file_of(layout.run_folder(site, run), round)
        layout.make_folder(file.parent)
        layout.write(file, packed(gathered(canaries, [accepted.client], [said], {})))
    except Exception as error:  # noqa: BLE001 - of the site's own interest only, and the round's answer is kept already
        note(site, verdict="failed", text=f"Canaries: {discreet(error)}", run=run, round=round)


def _planted(accepted: "Accepted") -> Canaries | None:
    canaries = getattr(accepted.parts.algorithm, "canaries", None)
    return canaries if isinstance(canaries, Canaries) else None


def own_canaries(site: Path, run: str) -> Canaries:
    """The canaries that a site planted in a run. Raises: BadInput for none, and for coins that were not committed to."""
    file = layout.run_folder(site, run) / layout.CANARIES
    try:
        found = json.loads(file.read_text("utf-8"))
        sizes = [found[name] for name in ("count", "clients", "size", "only")]
        if not all(type(size) is int and 0 <= size <= MOST for size in sizes) or sizes[0] > sizes[2]:
            raise ValueError
    except FileNotFoundError:
        raise BadInput(f"The site has no canaries in run {run}: set canaries in site.toml before a run.") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"{file} is damaged: put it back as it was.") from None
    count, clients, size, only = sizes
    key = bytes.fromhex(digest_of("site canaries", _secret(site), run))
    canaries = Canaries(key, count, clients, size, only=only)
    if canaries.commitment != found.get("commitment"):
        raise BadInput(f"The coins in {file} are not those that were committed to before the first answer.")
    return canaries


def _secret(folder: Path) -> str:
    file = folder / layout.COINS
    if not file.exists():
        keys.write(file, {"key": secrets.token_hex(SECRET_BYTES)}, mode=keys.SECRET)
    key = keys.read(file, secret=True).get("key")
    if not isinstance(key, str) or len(key) != 2 * SECRET_BYTES:
        raise BadInput(f"{file} is damaged: put it back as it was.")
    return key
