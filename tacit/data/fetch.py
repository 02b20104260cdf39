"""Where the files of public data sets are: a folder you name, $TACIT_DATA, the cache, or a download into the cache.

A download is written beside its place and renamed into it after its checksum was seen to be right, so a file with the
right name is a whole file. The addresses below can be replaced by one mirror: $TACIT_MIRROR/<data set>/<file>.
"""

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from tacit.errors import BadData

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
