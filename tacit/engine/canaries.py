"""The canaries of a run: committed to before the first round, planted, and what was seen of them kept, a file a round."""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.algorithms import Algorithm
from tacit.build.parts import Parts
from tacit.canaries.algorithms import with_canaries
from tacit.canaries.plan import Canaries, sizes_of
from tacit.canaries.records import with_rows
from tacit.canaries.sight import file_of, gathered, packed
from tacit.digest import mark
from tacit.engine.folder import Folder
from tacit.engine.folder import replace as replaced
from tacit.errors import BadData, BadInput, KeyRefused
from tacit.protect import owner_files
from tacit.train.flat import blocks
from tacit.types import Client

SECRET, COMMITMENT = "canaries.json", "canaries"  # the file of the key; the key, in run.json, of the hash
KEY_BYTES = 16
MOST_LAYERS = 1000  # of a model, that are told apart


def planted(parts: Parts, folder: Folder) -> Parts:
    """The parts with the canaries that the experiment asks for; without any, the very same ones.

    Guarantee: a hash of all coins is on disk before the first round, and a run goes on with the coins it began with.

    Raises: BadInput for more than fit, BadData where the coins are not those that were committed to.
    """
    if parts.experiment.audit.canaries is None:
        return parts
    sizes, file = sizes_of(parts), folder.path / "run.json"
    known = json.loads(file.read_text("utf-8"))
    if COMMITMENT in known:
        canaries = opened(folder.path, sizes)
    else:
        seeded = parts.experiment.run.randomness == "seeded" and not parts.nonce
        key = bytes.fromhex(mark("canaries", parts.releases.digest)) if seeded else secrets.token_bytes(KEY_BYTES)
        canaries = Canaries(key, *sizes)
        layers = [(block.name, block.start, block.stop) for block in blocks(parts.model)]
        secret = {"key": key.hex(), "layers": layers}
        owner_files.write(folder.path / SECRET, secret, mode=owner_files.SECRET, force=True)
        folder.write(file.name, json.dumps(known | {COMMITMENT: canaries.commitment}).encode())
    return replace(parts, algorithm=_planted(parts, canaries))


def _planted(parts: Parts, canaries: Canaries) -> Algorithm:
    if parts.experiment.audit.placement != "record":
        return with_canaries(parts, canaries)
    if parts.experiment.task.kind not in ("classification", "binary") or not parts.dataset.x.is_floating_point():
        raise BadInput('audit.placement = "record" makes up rows of numbers with a class: leave it out for this task.')
    return with_rows(parts, canaries, classes=max(2, parts.task.answer[-1]))


def opened(folder: Path, sizes: tuple[int, int, int, bool]) -> Canaries:
    """The canaries that a run was started with.

    Raises: BadData where their key cannot be read, or they are not those that were committed to.
    """
    committed = json.loads((folder / "run.json").read_text("utf-8")).get(COMMITMENT)
    try:
        key = owner_files.read(folder / SECRET, secret=True).get("key")
    except KeyRefused as error:
        raise BadData(
            f"{folder / SECRET} cannot be read ({str(error).rstrip('.')}): coins cannot be made again, put the file back."
        ) from None
    secret = str(key) if re.fullmatch(r"[0-9a-f]{32}", str(key)) else ""
    canaries = Canaries(bytes.fromhex(secret), *sizes)
    if canaries.commitment != committed:
        raise BadData(
            f"The coins in {folder / SECRET} are not those that were committed to before round 1: put the file back as it was."
        )
    return canaries


def layers_of(folder: Path) -> list[tuple[str, int, int]]:
    """Where the layers of the audited model lie in its vector; none where the file does not say it."""
    found = owner_files.read(folder / SECRET, secret=True).get("layers")
    known = found[:MOST_LAYERS] if isinstance(found, list) else []
    whole = (one for one in known if isinstance(one, list) and [type(part) for part in one] == [str, int, int])
    return [(name, start, stop) for name, start, stop in whole]


def keep_sight(
    parts: Parts,
    folder: Folder,
    round: int,
    cohort: Sequence[Client],
    told: Sequence[dict[str, Any]],
    info: dict[str, Any],
) -> None:
    """Writes down what was seen of the canaries in a round, where there are some; it is taken out of `told` and `info`."""
    canaries = getattr(parts.algorithm, "canaries", None)
    if not isinstance(canaries, Canaries):
        return
    file = file_of(folder.path, round)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    replaced(file, packed(gathered(canaries, cohort, told, info)))
