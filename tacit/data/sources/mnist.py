"""`mnist`: MNIST (LeCun et al. 1998), and the reader it has in common with Fashion-MNIST: IDX files, plain or .gz.

An IDX file is two zero bytes, a type byte (8 for unsigned bytes), the number of dimensions, each dimension as a
big-endian 32-bit number, then the values.
"""

import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

from tacit.data import load as fetch
from tacit.data.dataset import Dataset
from tacit.errors import BadData

SIDE = 28
LARGEST = 255
GZIP_MAGIC = b"\x1f\x8b"
GZIP_WINDOW = 31  # zlib: the largest window, with a gzip header and checksum
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
}  # fmt: skip


@dataclass(frozen=True)
class mnist:
    """MNIST. `path` is its folder; None looks in $TACIT_DATA and the cache, and downloads it."""

    path: str | None = None  # its folder; nothing: $TACIT_DATA and the cache are searched, else it is downloaded

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads it as [n, 1, 28, 28] in [0, 1]. Raises BadData."""
        return read("mnist", path=self.path, progress=progress)


def read(name: str, *, path: str | None = None, progress: Progress | None = None) -> Dataset:
    """Reads MNIST or Fashion-MNIST as [n, 1, 28, 28] in [0, 1]. Raises: BadData."""
    others = frozenset(value for other, values in CHECKSUMS.items() if other != name for value in values)
    wanted: dict[str, str] = dict(zip(PARTS, CHECKSUMS[name], strict=True))
    places = fetch.obtain(name, wanted, path=path, others=others, progress=progress)
    x, y = images_and_labels(places[PARTS[0]], places[PARTS[1]])
    test_x, test_y = images_and_labels(places[PARTS[2]], places[PARTS[3]])
    return Dataset(name=name, x=x, y=y, test_x=test_x, test_y=test_y, class_names=CLASS_NAMES[name])


def images_and_labels(images: Path, labels: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Reads a pair of IDX files. Raises: BadData."""
    x, y = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
    if x.shape[1:] != (SIDE, SIDE):
        raise BadData(f"{images} holds images of {x.shape[1]} x {x.shape[2]}, expected {SIDE} x {SIDE}.")
    if len(x) != len(y):
        raise BadData(
            f"{images} holds {len(x)} images but {labels} holds {len(y)} labels: they do not belong together."
        )
    scaled = torch.from_numpy(x).unsqueeze(1).to(torch.float32).div_(LARGEST)
    return scaled, torch.from_numpy(y.astype(np.int64))


def read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes. Raises: BadData naming the file with the bytes expected and found."""
    raw, whole = _unpacked(path)
    magic, header = bytes([0, 0, UNSIGNED_BYTES, dimensions]), 4 + 4 * dimensions
    if not whole and len(raw) < header:
        raise BadData(f"{path} is cut short or damaged: expected at least {header} bytes, found {len(raw)} to unpack.")
    if raw[:4] != magic:
        raise BadData(
            f"{path} is not the IDX file expected: it must begin with the bytes {magic.hex(' ')}, "
            f"found {raw[:4].hex(' ') or 'nothing'}."
        )
    if len(raw) < header:
        raise BadData(f"{path} is cut short: expected a header of {header} bytes, found {len(raw)}.")
    shape = np.frombuffer(raw, ">u4", count=dimensions, offset=4).tolist()
    expected = header + math.prod(shape)
    if len(raw) != expected or not whole:
        raise BadData(f"{path} is cut short or damaged: expected {expected} bytes, found {len(raw)} that can be read.")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def _unpacked(path: Path) -> tuple[bytearray, bool]:
    """As much of a file as can be read, and whether that is all of it."""
    raw = path.read_bytes()
    if raw[:2] != GZIP_MAGIC:
        return bytearray(raw), True
    out = bytearray()
    while raw:  # a gzip file may have several members
        member = zlib.decompressobj(wbits=GZIP_WINDOW)
        try:
            out += member.decompress(raw)
        except zlib.error:
            return out, False
        if not member.eof:
            return out, False
        raw = member.unused_data
    return out, True
