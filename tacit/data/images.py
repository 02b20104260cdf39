"""Public images: where their files are, and how they are read: MNIST and Fashion-MNIST (IDX), CIFAR-10, the digits of scikit-learn.

Their files are in a folder you name, $TACIT_DATA, the cache, or are downloaded into the cache, each held against its checksum."""

import gzip
import hashlib
import http.client
import math
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

from tacit.data.dataset import Dataset
from tacit.errors import BadData
from tacit.random import seeded

ADDRESSES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "cifar10": "https://www.cs.toronto.edu/~kriz",
}
TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 18


def cache(name: str) -> Path:
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
            if copy.is_file() and not (others and _checksum(copy) in others):
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
    mirror = os.environ.get("TACIT_MIRROR")
    if mirror and not mirror.startswith(("http://", "https://")):
        raise BadData(f"Expected TACIT_MIRROR to begin with http:// or https://, got {mirror!r}.")
    return f"{mirror.rstrip('/')}/{name}/{file}" if mirror else f"{ADDRESSES[name]}/{file}"


def download(url: str, target: Path, *, checksum: str, progress: Progress | None = None) -> None:
    """Downloads to a temporary file and renames it once its checksum ("sha256:..." or "md5:...") is right. Guarantee: whatever
    happens, `target` is either untouched or whole. Raises: BadData on a wrong checksum; OSError."""
    algorithm, _, expected = checksum.partition(":")
    request = urllib.request.Request(url, headers={"User-Agent": "tacit"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                digest, length = hashlib.new(algorithm, usedforsecurity=False), answer.headers.get("Content-Length")
                task = progress.add_task(target.name, total=int(length) if length else None) if progress else None
                while chunk := answer.read(CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
                    if progress and task is not None:
                        progress.advance(task, len(chunk))
            found = digest.hexdigest()
            if found != expected:
                raise BadData(
                    f"{url} has {algorithm} {found} instead of {expected} and was deleted: try again, "
                    "or set TACIT_MIRROR to another address."
                )
            os.replace(beside, target)
        finally:
            Path(beside).unlink(missing_ok=True)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


# IDX files, plain or .gz: two zero bytes, a type byte (8 for unsigned bytes), the number of dimensions, each dimension as a
# big-endian 32-bit number, then the values (LeCun et al. 1998; Fashion-MNIST: Xiao et al. 2017, arXiv:1708.07747).

SIDE = 28
LARGEST = 255
GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTES = 0x08
PARTS = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
CHECKSUMS = {
    "mnist": (
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion-mnist": (
        "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
}
CLASS_NAMES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}  # fmt: skip


def read(name: str, *, path: str | None = None, progress: Progress | None = None) -> Dataset:
    """A set of images by name, as [n, channels, height, width] in [0, 1]. Raises: BadData."""
    x, y, test_x, test_y = _cifar10(path, progress) if name == "cifar10" else _mnist(name, path, progress)
    return Dataset(name, x, y, test_x, test_y, CLASS_NAMES[name])


def _mnist(name: str, path: str | None, progress: Progress | None) -> list[torch.Tensor]:
    others = frozenset(value for other, values in CHECKSUMS.items() if other != name for value in values)
    wanted: dict[str, str] = dict(zip(PARTS, CHECKSUMS[name], strict=True))
    places = obtain(name, wanted, path=path, others=others, progress=progress)
    tensors = []
    for images, labels in ((places[PARTS[0]], places[PARTS[1]]), (places[PARTS[2]], places[PARTS[3]])):
        x, y = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
        if x.shape[1:] != (SIDE, SIDE):
            raise BadData(f"{images} holds images of {x.shape[1]} x {x.shape[2]}, expected {SIDE} x {SIDE}.")
        if len(x) != len(y):
            raise BadData(
                f"{images} holds {len(x)} images but {labels} holds {len(y)} labels: they do not belong together."
            )
        tensors += [torch.from_numpy(x).unsqueeze(1).to(torch.float32).div_(LARGEST), torch.from_numpy(y).long()]
    return tensors


def read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes. Raises: BadData naming the file with the bytes expected and found."""
    raw = path.read_bytes()
    try:
        raw = bytearray(gzip.decompress(raw) if raw[:2] == GZIP_MAGIC else raw)  # torch wants bytes that can be written
    except (EOFError, OSError, zlib.error) as error:
        raise BadData(f"{path} is cut short or damaged ({error}): delete it and download it again.") from error
    magic, header = bytes([0, 0, UNSIGNED_BYTES, dimensions]), 4 + 4 * dimensions
    if raw[:4] != magic:
        raise BadData(
            f"{path} is not the IDX file expected: it must begin with the bytes {magic.hex(' ')}, "
            f"found {raw[:4].hex(' ') or 'nothing'}."
        )
    if len(raw) < header:
        raise BadData(f"{path} is cut short: expected a header of {header} bytes, found {len(raw)}.")
    shape = np.frombuffer(raw, ">u4", count=dimensions, offset=4).tolist()
    expected = header + math.prod(shape)
    if len(raw) != expected:
        raise BadData(f"{path} is cut short or damaged: expected {expected} bytes, found {len(raw)}.")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


# CIFAR-10 (Krizhevsky 2009), binary version: a record is one label byte and 3 x 32 x 32 pixel bytes, a batch 10,000 records.
# The archive is read where it lies, without unpacking it to disk.

ARCHIVE = "cifar-10-binary.tar.gz"
CHECKSUM = "md5:c32a1d4ab5d03f1284b67883e8d87530"  # published beside the archive
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
RECORDS = 10_000
SHAPE = (3, 32, 32)
Batch = tuple[np.ndarray, np.ndarray]


def _cifar10(path: str | None, progress: Progress | None) -> list[torch.Tensor]:
    batches = _batches(obtain("cifar10", {ARCHIVE: CHECKSUM}, path=path, progress=progress)[ARCHIVE])
    tensors = []
    for names in (TRAIN, (TEST,)):
        pixels, labels = (np.concatenate(part) for part in zip(*(batches[name] for name in names), strict=True))
        tensors += [torch.from_numpy(pixels).to(torch.float32).div_(LARGEST), torch.from_numpy(labels).long()]
    return tensors


def read_batch(raw: bytes, *, where: str) -> Batch:
    """Splits a batch into pixels [n, 3, 32, 32] and labels. Raises: BadData naming the bytes expected and found."""
    length, classes = 1 + math.prod(SHAPE), len(CLASS_NAMES["cifar10"])
    if len(raw) != RECORDS * length:
        raise BadData(f"{where} is not a whole CIFAR-10 batch: expected {RECORDS * length} bytes, found {len(raw)}.")
    records = np.frombuffer(raw, np.uint8).reshape(RECORDS, length)
    labels = records[:, 0]
    if labels.max() >= classes:
        row = int(np.argmax(labels >= classes))
        raise BadData(f"{where} is damaged: record {row} has the label {labels[row]}, expected 0..{classes - 1}.")
    return records[:, 1:].reshape(-1, *SHAPE), labels


def _batches(archive: Path) -> dict[str, Batch]:
    batches: dict[str, Batch] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in filter(tarfile.TarInfo.isfile, tar):
                name = Path(member.name).name
                file = tar.extractfile(member) if name in (*TRAIN, TEST) else None
                if file is not None:
                    batches[name] = read_batch(file.read(), where=f"{name} in {archive}")
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise BadData(f"{archive} cannot be read ({error}): delete it and download it again.") from error
    absent = [name for name in (*TRAIN, TEST) if name not in batches]
    if absent:
        raise BadData(f"{archive} does not hold {', '.join(absent)}: delete it and download it again.")
    return batches


# Optical digits, 8 x 8 (Alpaydin and Kaynak 1998), as they come with scikit-learn: no file, no download.

MOST_INK = 16  # every pixel counts the ink in a 4 x 4 block
TEST_SHARE = 0.2  # the last fifth after one fixed shuffle: runs with different seeds are tested on the same rows
SPLIT_SEED = 0  # public and fixed: part of the data set, not of the run


def read_digits() -> Dataset:
    images, labels = digits_table()
    order = np.argsort(seeded(SPLIT_SEED)("digits", "test").uniform(len(labels)))
    x = torch.from_numpy((images[order] / MOST_INK).astype(np.float32)).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(labels[order].astype(np.int64))
    train = len(y) - int(TEST_SHARE * len(y))
    return Dataset("digits", x[:train], y[:train], x[train:], y[train:], tuple("0123456789"))


def digits_table() -> tuple[np.ndarray, np.ndarray]:
    """What `sklearn.datasets.load_digits` returns, from its file: to import scikit-learn takes a second and 20 MB."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise BadData("The digits come with scikit-learn, which is not installed: pip install scikit-learn")
    table = _table(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz")
    return table[:, :-1], table[:, -1].astype(int)


@lru_cache(maxsize=1)  # 1 MB, which takes longer to parse than a small round
def _table(path: Path) -> np.ndarray:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",")
    table.setflags(write=False)
    return table
