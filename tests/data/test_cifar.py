"""CIFAR-10 batches, loose or in their archive, with fewer records than the real ones."""

import hashlib
import io
import tarfile

import numpy as np
import pytest

from tacit.data import images as cifar
from tacit.data.load import load
from tacit.errors import BadData
from tacit.experiment.data import DataSection

RECORDS = 20
FILES = (*cifar.TRAIN, cifar.TEST)


@pytest.fixture
def batches(monkeypatch):
    monkeypatch.setattr(cifar, "RECORDS", RECORDS)
    rng = np.random.default_rng(0)
    records = {name: rng.integers(0, 256, (RECORDS, 3073), dtype=np.uint8) for name in FILES}
    for values in records.values():
        values[:, 0] %= 10
    return records


def packed(batches):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, values in batches.items():
            member = tarfile.TarInfo(f"{cifar.INSIDE}/{name}")
            member.size = values.nbytes
            tar.addfile(member, io.BytesIO(values.tobytes()))
    return out.getvalue()


def test_loose_batches_become_images_between_zero_and_one(batches, tmp_path):
    (tmp_path / cifar.INSIDE).mkdir()
    for name, values in batches.items():
        (tmp_path / cifar.INSIDE / name).write_bytes(values.tobytes())
    data = load(DataSection(name="cifar10", path=str(tmp_path)), seed=0)
    assert data.x.shape == (5 * RECORDS, 3, 32, 32)
    second = batches["data_batch_2.bin"]
    assert np.allclose(data.x[RECORDS + 3].flatten() * 255, second[3, 1:])
    assert data.y[RECORDS : 2 * RECORDS].tolist() == second[:, 0].tolist()
    assert data.test_y.tolist() == batches[cifar.TEST][:, 0].tolist()


def test_the_archive_is_downloaded_and_read_where_it_lies(batches, mirror, monkeypatch, tmp_path):
    raw = packed(batches)
    (mirror / "cifar10").mkdir()
    (mirror / "cifar10" / cifar.ARCHIVE).write_bytes(raw)
    monkeypatch.setattr(cifar, "CHECKSUM", f"md5:{hashlib.md5(raw).hexdigest()}")
    data = load(DataSection(name="cifar10"), seed=0)
    assert data.y[:RECORDS].tolist() == batches["data_batch_1.bin"][:, 0].tolist()
    assert [path.name for path in (tmp_path / "cache" / "tacit" / "cifar10").iterdir()] == [cifar.ARCHIVE]


def test_a_batch_cut_short_is_refused_with_its_bytes(batches, tmp_path):
    for name, values in batches.items():
        (tmp_path / name).write_bytes(values.tobytes())
    (tmp_path / "data_batch_4.bin").write_bytes(bytes(3073 * 19))
    with pytest.raises(BadData, match=r"data_batch_4.bin is not a whole .*expected 61460 bytes, found 58387"):
        load(DataSection(name="cifar10", path=str(tmp_path)), seed=0)


def test_a_label_that_does_not_exist_is_refused_by_its_record(batches):
    batches[cifar.TEST][7, 0] = 10
    with pytest.raises(BadData, match=r"test is damaged: record 7 has the label 10, expected 0..9"):
        cifar.read_batch(batches[cifar.TEST].tobytes(), where="test")


def test_a_damaged_archive_is_refused(batches, tmp_path):
    (tmp_path / cifar.ARCHIVE).write_bytes(packed(batches)[:100_000])
    with pytest.raises(BadData, match=r"cannot be read .* delete it and download it again"):
        load(DataSection(name="cifar10", path=str(tmp_path)), seed=0)


def test_an_archive_without_a_batch_is_refused(batches, tmp_path):
    del batches["data_batch_5.bin"]
    (tmp_path / cifar.ARCHIVE).write_bytes(packed(batches))
    with pytest.raises(BadData, match=r"does not hold data_batch_5.bin"):
        load(DataSection(name="cifar10", path=str(tmp_path)), seed=0)
