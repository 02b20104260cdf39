"""Public images: where files are looked for, downloads over real HTTP from this machine, and what damaged ones are refused with."""

import gzip
import hashlib
import io
import shutil
import socket
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from rich.console import Console
from rich.progress import Progress
from sklearn.datasets import load_digits

from tacit.data import images
from tacit.data.sources import load
from tacit.errors import BadData
from tacit.experiment.data import DataSection

CONTENT = b"ten bytes " * 100_000
CHECKSUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
IMAGES = np.arange(4 * 28 * 28, dtype=np.uint8).reshape(4, 28, 28)
LABELS = np.array([3, 1, 4, 1], np.uint8)


@pytest.fixture
def offline(monkeypatch):
    """A mirror where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("TACIT_MIRROR", f"http://127.0.0.1:{port}")


@pytest.fixture
def published(mirror):
    (mirror / "mnist").mkdir()
    (mirror / "mnist" / "file.gz").write_bytes(CONTENT)
    return mirror


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_a_file_with_the_right_checksum_is_downloaded_once(published, algorithm):
    wanted = {"file.gz": f"{algorithm}:{hashlib.new(algorithm, CONTENT).hexdigest()}"}
    with Progress(console=Console(file=io.StringIO())) as progress:
        places = images.obtain("mnist", wanted, progress=progress)
    (task,) = progress.tasks
    assert (task.description, task.total, task.completed) == ("file.gz", len(CONTENT), len(CONTENT))
    assert places["file.gz"] == images.cache("mnist") / "file.gz"
    assert places["file.gz"].read_bytes() == CONTENT
    (published / "mnist" / "file.gz").unlink()
    assert images.obtain("mnist", wanted) == places


def test_a_file_with_a_wrong_checksum_is_deleted_and_refused(published):
    with pytest.raises(BadData, match=r"file.gz has sha256 \w+ instead of 0+ and was deleted"):
        images.obtain("mnist", {"file.gz": "sha256:" + "0" * 64})
    assert list(images.cache("mnist").iterdir()) == []


def test_offline_one_sentence_names_the_files_and_the_folder(offline):
    with pytest.raises(BadData) as refusal:
        load(DataSection(name="mnist"), seed=0)
    sentence = str(refusal.value)
    assert sentence.startswith("Could not download mnist (")
    assert all(part in sentence for part in images.PARTS)
    assert f"into {images.cache('mnist')}, or set TACIT_DATA" in sentence
    assert "\n" not in sentence
    assert not images.cache("mnist").exists()


def test_a_mirror_that_lacks_the_file_or_is_no_web_address_is_refused(published, monkeypatch):
    with pytest.raises(BadData, match=r"Could not download mnist \(HTTP Error 404: File not found\): put other.gz"):
        images.obtain("mnist", {"other.gz": CHECKSUM})
    monkeypatch.setenv("TACIT_MIRROR", "/some/folder")
    with pytest.raises(BadData, match=r"Expected TACIT_MIRROR to begin with http:// or https://, got '/some/folder'"):
        images.obtain("mnist", {"file.gz": CHECKSUM})
    monkeypatch.delenv("TACIT_MIRROR")
    assert images.address("cifar10", "a.gz") == "https://www.cs.toronto.edu/~kriz/a.gz"


def test_folders_are_searched_in_order(tmp_path, monkeypatch, offline):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "shared"))
    in_cache = images.cache("mnist") / "file.gz"
    direct, below = tmp_path / "shared" / "file.gz", tmp_path / "shared" / "mnist" / "file.gz"
    for place in (in_cache, direct, below):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"")
        assert images.locate("mnist", "file.gz") == place
    named = tmp_path / "named"
    named.mkdir()
    (named / "file").write_bytes(b"")
    assert images.locate("mnist", "file.gz", path=str(named)) == named / "file"


def test_a_named_path_without_the_files_is_refused_and_nothing_else_is_taken(published, tmp_path):
    with pytest.raises(BadData, match=r"does not hold file.gz of mnist: correct data.path"):
        images.obtain("mnist", {"file.gz": CHECKSUM}, path=str(tmp_path))
    assert not images.cache("mnist").exists()


def test_mnist_comes_from_a_mirror_with_its_pinned_checksums_and_is_not_taken_for_the_other_set(real, mirror):
    (mirror / "mnist").mkdir()
    for part in images.PARTS:
        shutil.copy(real("mnist") / part, mirror / "mnist" / part)
    data = load(DataSection(name="mnist"), seed=0)
    assert (data.x.shape, data.test_x.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert data.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert abs(float(data.x.mean()) - 0.1307) < 1e-4  # the mean that everyone publishes
    with pytest.raises(BadData, match=r"does not hold train-images-idx3-ubyte.gz, .* of fashion-mnist"):
        load(DataSection(name="fashion-mnist", path=str(real("mnist"))), seed=0)


@pytest.fixture
def folder(tmp_path, idx):
    for part in ("train", "t10k"):
        idx(tmp_path / "files" / f"{part}-images-idx3-ubyte.gz", IMAGES)
        idx(tmp_path / "files" / f"{part}-labels-idx1-ubyte.gz", LABELS)
    return tmp_path / "files"


@given(values=arrays.arrays(np.uint8, arrays.array_shapes(min_dims=1, max_dims=3)), packed=st.booleans())
def test_an_idx_file_is_read_back_as_it_was_written(values, packed, tmp_path_factory):
    path = tmp_path_factory.mktemp("idx") / "values"
    raw = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    assert np.array_equal(images.read_idx(path, dimensions=values.ndim), values)


def test_images_become_floats_between_zero_and_one_from_packed_files_and_from_plain_ones(folder):
    data = load(DataSection(name="mnist", path=str(folder)), seed=0)
    assert np.allclose(data.x.numpy()[:, 0] * 255, IMAGES)
    assert data.y.tolist() == LABELS.tolist()
    for path in list(folder.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert torch.equal(load(DataSection(name="mnist", path=str(folder)), seed=0).x, data.x)


@pytest.mark.parametrize("kept", [5, 40, -4])
def test_a_packed_file_that_is_cut_short_or_has_a_wrong_byte_is_refused(tmp_path, idx, kept):
    path = tmp_path / "labels.gz"
    idx(path, np.arange(200) % 251)
    raw = path.read_bytes()
    for damaged in (raw[:kept], raw[:-6] + bytes([raw[-6] ^ 1]) + raw[-5:]):
        path.write_bytes(damaged)
        with pytest.raises(BadData, match=r"labels.gz is cut short or damaged"):
            images.read_idx(path, dimensions=1)


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "must begin with the bytes 00 00 08 01, found nothing"),
        (b"hello world", "must begin with the bytes 00 00 08 01, found 68 65 6c 6c"),
        (bytes([0, 0, 8, 3]) + bytes(20), "must begin with the bytes 00 00 08 01, found 00 00 08 03"),
        (bytes([0, 0, 8, 1, 0]), "expected a header of 8 bytes, found 5"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 7, 7]), "expected 10 bytes, found 11"),
        (bytes([0, 0, 8, 1, 255, 255, 255, 255, 7]), "expected 4294967303 bytes, found 9"),
    ],
)
def test_what_is_not_the_idx_file_expected_is_refused_with_the_bytes(tmp_path, raw, sentence):
    path = tmp_path / "labels"
    path.write_bytes(raw)
    with pytest.raises(BadData, match=sentence):
        images.read_idx(path, dimensions=1)


@pytest.mark.parametrize(
    ("file", "values", "sentence"),
    [
        ("train-labels-idx1-ubyte.gz", LABELS[:3], r"holds 4 images but .* holds 3 labels"),
        ("t10k-images-idx3-ubyte.gz", IMAGES[:, :27], "holds images of 27 x 28, expected 28 x 28"),
        ("train-labels-idx1-ubyte.gz", LABELS + 9, r"label of mnist in 0..9, got 13"),
    ],
)
def test_images_and_labels_that_do_not_fit_are_refused(folder, idx, file, values, sentence):
    idx(folder / file, values)
    with pytest.raises(BadData, match=sentence):
        load(DataSection(name="mnist", path=str(folder)), seed=0)


RECORDS = 20


@pytest.fixture
def batches(monkeypatch):
    """CIFAR-10 with fewer records than it has."""
    monkeypatch.setattr(images, "RECORDS", RECORDS)
    rng = np.random.default_rng(0)
    records = {n: rng.integers(0, 256, (RECORDS, 3073), dtype=np.uint8) for n in (*images.TRAIN, images.TEST)}
    for values in records.values():
        values[:, 0] %= 10
    return records


def packed(batches):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, values in batches.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = values.nbytes
            tar.addfile(member, io.BytesIO(values.tobytes()))
    return out.getvalue()


def test_cifar_is_downloaded_and_read_where_it_lies(batches, mirror, monkeypatch, tmp_path):
    raw = packed(batches)
    (mirror / "cifar10").mkdir()
    (mirror / "cifar10" / images.ARCHIVE).write_bytes(raw)
    monkeypatch.setattr(images, "CHECKSUM", f"md5:{hashlib.md5(raw).hexdigest()}")
    data = load(DataSection(name="cifar10"), seed=0)
    assert data.x.shape == (5 * RECORDS, 3, 32, 32)
    second = batches["data_batch_2.bin"]
    assert np.allclose(data.x[RECORDS + 3].flatten() * 255, second[3, 1:])
    assert data.y[RECORDS : 2 * RECORDS].tolist() == second[:, 0].tolist()
    assert data.test_y.tolist() == batches[images.TEST][:, 0].tolist()
    assert [path.name for path in (tmp_path / "cache" / "tacit" / "cifar10").iterdir()] == [images.ARCHIVE]


@pytest.mark.parametrize(
    ("name", "batch", "sentence"),
    [
        ("data_batch_4.bin", np.zeros((19, 3073), np.uint8), "not a whole .*expected 61460 bytes, found 58387"),
        (images.TEST, np.full((RECORDS, 3073), 10, np.uint8), r"record 0 has the label 10, expected 0..9"),
        ("data_batch_5.bin", None, r"does not hold data_batch_5.bin"),
    ],
)
def test_a_batch_that_is_damaged_or_absent_is_refused(batches, tmp_path, name, batch, sentence):
    batches[name] = batch
    kept = {name: values for name, values in batches.items() if values is not None}
    (tmp_path / images.ARCHIVE).write_bytes(packed(kept))
    with pytest.raises(BadData, match=sentence):
        load(DataSection(name="cifar10", path=str(tmp_path)), seed=0)
    (tmp_path / images.ARCHIVE).write_bytes(packed(kept)[:100_000])
    with pytest.raises(BadData, match=r"cannot be read .* delete it and download it again"):
        load(DataSection(name="cifar10", path=str(tmp_path)), seed=0)


def test_digits_are_shuffled_once_for_every_seed_and_read_as_scikit_learn_reads_them():
    first, second = (load(DataSection(name="digits"), seed=seed) for seed in (0, 1))
    assert (first.x.shape, first.test_x.shape) == ((1438, 1, 8, 8), (359, 1, 8, 8))
    assert (first.x.dtype, first.x.min(), first.x.max()) == (torch.float32, 0, 1)
    assert torch.equal(first.test_x, second.test_x)
    assert np.bincount(first.test_y, minlength=10).min() > 0.05 * len(first.test_y)
    assert len(torch.unique(torch.cat([first.x, first.test_x]).flatten(1), dim=0)) == 1797
    for ours, theirs in zip(images.digits_table(), load_digits(return_X_y=True), strict=True):
        assert ours.tolist() == theirs.tolist()
