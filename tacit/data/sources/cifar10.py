"""`cifar10`: CIFAR-10 (Krizhevsky 2009) from its binary version: the five batches and the test batch, or the archive they come in.

A record is one label byte and 3 x 32 x 32 pixel bytes; a batch is 10,000 records. The archive is read where it lies,
without unpacking it to disk.
"""

import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

from tacit.data import load as fetch
from tacit.data.dataset import Dataset
from tacit.errors import BadData

ARCHIVE = "cifar-10-binary.tar.gz"
CHECKSUM = "md5:c32a1d4ab5d03f1284b67883e8d87530"  # published beside the archive
INSIDE = "cifar-10-batches-bin"
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
RECORDS = 10_000
SHAPE = (3, 32, 32)
LARGEST = 255
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class cifar10:
    """CIFAR-10. `path` is its folder; None looks in $TACIT_DATA and the cache, and downloads it."""

    path: str | None = None  # its folder; nothing: $TACIT_DATA and the cache are searched, else it is downloaded

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads it as [n, 3, 32, 32] in [0, 1]. Raises BadData."""
        batches = _loose(self.path) or _packed(
            fetch.obtain("cifar10", {ARCHIVE: CHECKSUM}, path=self.path, progress=progress)[ARCHIVE]
        )
        x, y = _joined([batches[name] for name in TRAIN])
        test_x, test_y = _joined([batches[TEST]])
        return Dataset(name="cifar10", x=x, y=y, test_x=test_x, test_y=test_y, class_names=CLASS_NAMES)


def read_batch(raw: bytes, *, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Splits a batch into pixels [n, 3, 32, 32] and labels. Raises: BadData naming the bytes expected and found."""
    length = 1 + SHAPE[0] * SHAPE[1] * SHAPE[2]
    if len(raw) != RECORDS * length:
        raise BadData(f"{where} is not a whole CIFAR-10 batch: expected {RECORDS * length} bytes, found {len(raw)}.")
    records = np.frombuffer(raw, np.uint8).reshape(RECORDS, length)
    labels = records[:, 0]
    if labels.max() >= len(CLASS_NAMES):
        row = int(np.argmax(labels >= len(CLASS_NAMES)))
        raise BadData(
            f"{where} is damaged: record {row} has the label {labels[row]}, expected 0..{len(CLASS_NAMES) - 1}."
        )
    return records[:, 1:].reshape(-1, *SHAPE), labels


def _loose(path: str | None) -> dict[str, tuple[np.ndarray, np.ndarray]] | None:
    """The batches as files of their own, if all six lie in a folder that is searched."""
    for folder in fetch.folders("cifar10", path=path):
        for inside in (folder, folder / INSIDE):
            if all((inside / name).is_file() for name in (*TRAIN, TEST)):
                return {
                    name: read_batch((inside / name).read_bytes(), where=str(inside / name)) for name in (*TRAIN, TEST)
                }
    return None


def _packed(archive: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The batches inside the archive."""
    batches: dict[str, tuple[np.ndarray, np.ndarray]] = {}
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


def _joined(batches: list[tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Batches as one float tensor in [0, 1] and its labels, converted batch by batch to keep memory low."""
    x = torch.empty(sum(len(labels) for _, labels in batches), *SHAPE)
    for start, (pixels, _) in zip(range(0, len(x), RECORDS), batches, strict=True):
        x[start : start + RECORDS] = torch.from_numpy(pixels.copy())
    y = np.concatenate([labels for _, labels in batches]).astype(np.int64)
    return x.div_(LARGEST), torch.from_numpy(y)
