"""IDX files: read back as written, and refused with the bytes expected and found."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tacit.data import images as mnist
from tacit.data.load import load
from tacit.errors import BadData
from tacit.experiment.data import DataSection

IMAGES = np.arange(4 * 28 * 28, dtype=np.uint8).reshape(4, 28, 28)
LABELS = np.array([3, 1, 4, 1], np.uint8)


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
    assert np.array_equal(mnist.read_idx(path, dimensions=values.ndim), values)


def test_images_become_floats_between_zero_and_one(folder):
    data = load(DataSection(name="mnist", path=str(folder)), seed=0)
    assert np.allclose(data.x.numpy()[:, 0] * 255, IMAGES)
    assert data.y.tolist() == LABELS.tolist()


def test_plain_files_serve_as_well_as_packed_ones(folder):
    for path in list(folder.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert len(load(DataSection(name="mnist", path=str(folder)), seed=0).x) == 4


def test_a_plain_file_cut_short_is_refused_with_its_bytes(tmp_path, idx):
    path = tmp_path / "images"
    path.write_bytes(idx(path, IMAGES)[:100])
    with pytest.raises(BadData, match=r"images is cut short or damaged: expected 3152 bytes, found 100"):
        mnist.read_idx(path, dimensions=3)


def test_a_packed_file_cut_short_is_refused_with_its_bytes(tmp_path, idx):
    path = tmp_path / "images.gz"
    noise = np.random.default_rng(0).integers(0, 256, (100, 28, 28))
    idx(path, noise)
    path.write_bytes(path.read_bytes()[:40_000])
    with pytest.raises(BadData, match=r"images.gz is cut short or damaged: expected 78416 bytes, found \d{5} that"):
        mnist.read_idx(path, dimensions=3)


def test_a_packed_file_without_its_end_is_refused_though_all_values_are_there(tmp_path, idx):
    path = tmp_path / "labels.gz"
    idx(path, LABELS)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(BadData, match="cut short or damaged"):
        mnist.read_idx(path, dimensions=1)


def test_a_packed_file_with_a_wrong_byte_is_refused(tmp_path, idx):
    path = tmp_path / "labels.gz"
    idx(path, LABELS)
    raw = bytearray(path.read_bytes())
    raw[-6] ^= 1
    path.write_bytes(raw)
    with pytest.raises(BadData, match="cut short or damaged: expected at least 8 bytes, found 0 to unpack"):
        mnist.read_idx(path, dimensions=1)


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
        mnist.read_idx(path, dimensions=1)


def test_images_and_labels_of_different_numbers_are_refused(folder, idx):
    idx(folder / "train-labels-idx1-ubyte.gz", LABELS[:3])
    with pytest.raises(BadData, match=r"holds 4 images but .* holds 3 labels"):
        load(DataSection(name="mnist", path=str(folder)), seed=0)


def test_images_of_another_size_are_refused(folder, idx):
    idx(folder / "t10k-images-idx3-ubyte.gz", IMAGES[:, :27])
    with pytest.raises(BadData, match="holds images of 27 x 28, expected 28 x 28"):
        load(DataSection(name="mnist", path=str(folder)), seed=0)


def test_a_label_beyond_the_classes_is_refused(folder, idx):
    idx(folder / "train-labels-idx1-ubyte.gz", LABELS + 9)
    with pytest.raises(BadData, match=r"label of mnist in 0..9, got 13"):
        load(DataSection(name="mnist", path=str(folder)), seed=0)


def test_files_of_the_other_set_with_the_same_names_are_not_taken_for_this_one(real):
    with pytest.raises(BadData, match=r"does not hold train-images-idx3-ubyte.gz, .* of fashion-mnist"):
        load(DataSection(name="fashion-mnist", path=str(real("mnist"))), seed=0)
