"""From the `[data]` table to a data set in memory."""

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from tacit import plugin
from tacit.data.dataset import Dataset
from tacit.data.sources import Source
from tacit.errors import BadData, BadInput, TacitError
from tacit.experiment.data import DataSection

ROOM = "tacit.data.sources"


def names() -> list[str]:
    """The sources that ship with Tacit, by file."""
    return plugin.names(ROOM)


def source(section: DataSection) -> Source:
    """The source that a section names, with its options checked; no row is read yet. Raises BadInput.

    >>> from tacit.data.load import source
    >>> source(DataSection(name="csv", path="records.csv", classes=["no", "yes"])).label
    'label'
    """
    factory = plugin.find(ROOM, section.name, key="data.name")
    made = plugin.make(factory, section.options(), table="data", keys=type(section).model_fields)
    if not callable(getattr(made, "load", None)):
        raise BadInput(
            f"Expected data.name = {section.name!r} to make a source with a method `load`, got {made!r:.60}."
        )
    return made


def settings(section: DataSection) -> dict[str, Any]:
    """How a section's rows are read and shared: every key as it counts, whether it was written out or not."""
    own = section.model_dump(include=set(type(section).model_fields))
    if section.part is not None:
        return own | section.part.settings()
    made = source(section)
    options = asdict(made) if is_dataclass(made) and not isinstance(made, type) else section.options()
    return own | options


def load(section: DataSection, *, seed: int, progress: Progress | None = None) -> Dataset:
    """Reads the data set that the section names, downloading a public one that is nowhere on this machine, or takes the one that
    was passed from Python.

    The seed chooses only which rows are held out where a source holds some out. Raises BadInput, BadData; what somebody's own
    source raises is one sentence, too.

    >>> load(DataSection(name="digits"), seed=0).x.shape
    torch.Size([1438, 1, 8, 8])
    """
    if section.part is not None:
        return section.part.rows
    made = source(section)
    try:
        found = made.load(seed=seed, progress=progress)
    except TacitError:
        raise
    except Exception as error:
        words = plugin.said(error)  # may quote a row
        raise BadData(f"The data {section.name!r} cannot be read ({words!r}).", cell=words) from error
    if not isinstance(found, Dataset):
        got = f"{type(found).__module__}.{type(found).__qualname__}"
        raise BadInput(f"Expected data.name = {section.name!r} to give a tacit.data.dataset.Dataset, got a {got}.")
    return found


# Where the files of public data sets are: a folder you name, $TACIT_DATA, the cache, or a download into the cache.

ADDRESSES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "cifar10": "https://www.cs.toronto.edu/~kriz",
}
TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 18


def cache(name: str) -> Path:
    """The folder that downloads of a data set go to: $XDG_CACHE_HOME/tacit/<name>, or ~/.cache/tacit/<name>."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "tacit" / name


def folders(name: str, *, path: str | None = None) -> list[Path]:
    """The folders searched, in order. A path that was named is the only one: no other copy silently takes its place."""
    if path is not None:
        return [Path(path).expanduser(), Path(path).expanduser() / name]
    shared = os.environ.get("TACIT_DATA")
    return ([Path(shared) / name, Path(shared)] if shared else []) + [cache(name)]


def locate(name: str, file: str, *, path: str | None = None, others: frozenset[str] = frozenset()) -> Path | None:
    """The first place of a file, with or without its .gz, passing over those whose checksum is among `others`."""
    for folder in folders(name, path=path):
        for copy in (folder / file, folder / file.removesuffix(".gz")):
            if copy.is_file() and not (others and checksum(copy, "sha256") in others):
                return copy
    return None


def obtain(
    name: str,
    checksums: Mapping[str, str],
    *,
    path: str | None = None,
    others: frozenset[str] = frozenset(),
    progress: Progress | None = None,
) -> dict[str, Path]:
    """Finds every file of a data set, downloading what is nowhere. Raises: BadData naming the files and a folder."""
    found = {file: locate(name, file, path=path, others=others) for file in checksums}
    absent = [file for file, path in found.items() if path is None]
    if absent and path is not None:
        raise BadData(
            f"{path} does not hold {', '.join(absent)} of {name}: correct data.path, or remove it to download them."
        )
    for file in absent:
        try:
            download(address(name, file), cache(name) / file, checksum=checksums[file], progress=progress)
        except (OSError, http.client.HTTPException) as error:
            raise BadData(
                f"Could not download {name} ({error}): put {', '.join(absent)} into {cache(name)}, "
                "or set TACIT_DATA to a folder that holds them."
            ) from error
    return {file: path or cache(name) / file for file, path in found.items()}


def address(name: str, file: str) -> str:
    """The URL of a file. Raises: BadData if $TACIT_MIRROR is not a web address."""
    mirror = os.environ.get("TACIT_MIRROR")
    if mirror and not mirror.startswith(("http://", "https://")):
        raise BadData(f"Expected TACIT_MIRROR to begin with http:// or https://, got {mirror!r}.")
    return f"{mirror.rstrip('/')}/{name}/{file}" if mirror else f"{ADDRESSES[name]}/{file}"


def download(url: str, target: Path, *, checksum: str, progress: Progress | None = None) -> None:
    """Downloads to a temporary file and renames it once its checksum ("sha256:..." or "md5:...") is right.

    Guarantee: whatever happens, `target` is either untouched or whole. Raises: BadData on a wrong checksum; OSError.
    """
    algorithm, _, expected = checksum.partition(":")
    request = urllib.request.Request(url, headers={"User-Agent": "tacit"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                found = _copy(answer, file, algorithm=algorithm, title=target.name, progress=progress)
            if found != expected:
                raise BadData(
                    f"{url} has {algorithm} {found} instead of {expected} and was deleted: try again, "
                    "or set TACIT_MIRROR to another address."
                )
            os.replace(beside, target)
        finally:
            Path(beside).unlink(missing_ok=True)


def _copy(
    answer: http.client.HTTPResponse, file: BinaryIO, *, algorithm: str, title: str, progress: Progress | None
) -> str:
    """Copies an answer into a file and returns the checksum of what was copied."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    length = answer.headers.get("Content-Length")
    task = progress.add_task(title, total=int(length) if length else None) if progress else None
    while chunk := answer.read(CHUNK_BYTES):
        digest.update(chunk)
        file.write(chunk)
        if progress and task is not None:
            progress.advance(task, len(chunk))
    return digest.hexdigest()


def checksum(path: Path, algorithm: str) -> str:
    """The checksum of a file as "algorithm:hex"."""
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def bar() -> Progress:
    """A bar for downloads, on standard error: `with bar() as progress: load(section, seed=0, progress=progress)`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
