"""Files of public data sets: where they are looked for, and downloads over real HTTP from this machine."""

import hashlib
import io
import shutil
import socket

import pytest
from rich.console import Console
from rich.progress import Progress

from tacit.data import images as fetch
from tacit.data.images import PARTS
from tacit.data.load import load
from tacit.errors import BadData
from tacit.experiment.data import DataSection

CONTENT = b"ten bytes " * 100_000
CHECKSUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


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


def test_a_file_with_the_right_checksum_is_downloaded_once(published):
    places = fetch.obtain("mnist", {"file.gz": CHECKSUM})
    assert places["file.gz"] == fetch.cache("mnist") / "file.gz"
    assert places["file.gz"].read_bytes() == CONTENT
    (published / "mnist" / "file.gz").unlink()
    assert fetch.obtain("mnist", {"file.gz": CHECKSUM}) == places


@pytest.mark.parametrize("checksum", ["sha256:" + "0" * 64, "md5:" + "0" * 32])
def test_a_file_with_a_wrong_checksum_is_deleted_and_refused(published, checksum):
    with pytest.raises(BadData, match=r"file.gz has (sha256|md5) \w+ instead of 0+ and was deleted"):
        fetch.obtain("mnist", {"file.gz": checksum})
    assert list(fetch.cache("mnist").iterdir()) == []


def test_an_md5_checksum_serves_too(published):
    places = fetch.obtain("mnist", {"file.gz": f"md5:{hashlib.md5(CONTENT).hexdigest()}"})
    assert places["file.gz"].is_file()


def test_the_progress_bar_reaches_the_length_of_the_file(published):
    with Progress(console=Console(file=io.StringIO())) as progress:
        fetch.obtain("mnist", {"file.gz": CHECKSUM}, progress=progress)
    (task,) = progress.tasks
    assert (task.description, task.total, task.completed) == ("file.gz", len(CONTENT), len(CONTENT))


def test_offline_one_sentence_names_the_files_and_the_folder(offline):
    with pytest.raises(BadData) as refusal:
        load(DataSection(name="mnist"), seed=0)
    sentence = str(refusal.value)
    assert sentence.startswith("Could not download mnist (")
    assert all(part in sentence for part in PARTS)
    assert f"into {fetch.cache('mnist')}, or set TACIT_DATA" in sentence
    assert "\n" not in sentence
    assert not fetch.cache("mnist").exists()


def test_a_file_that_the_mirror_lacks_is_refused_like_offline(published):
    with pytest.raises(
        BadData, match=r"Could not download mnist \(HTTP Error 404: File not found\): put other.gz into"
    ):
        fetch.obtain("mnist", {"other.gz": CHECKSUM})


def test_a_mirror_that_is_no_web_address_is_refused(monkeypatch):
    monkeypatch.setenv("TACIT_MIRROR", "/some/folder")
    with pytest.raises(BadData, match=r"Expected TACIT_MIRROR to begin with http:// or https://, got '/some/folder'"):
        fetch.obtain("mnist", {"file.gz": CHECKSUM})


def test_without_a_mirror_the_published_addresses_are_used():
    assert fetch.address("mnist", "a.gz") == "https://ossci-datasets.s3.amazonaws.com/mnist/a.gz"
    assert fetch.address("cifar10", "a.gz") == "https://www.cs.toronto.edu/~kriz/a.gz"


def test_folders_are_searched_in_order(tmp_path, monkeypatch, offline):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "shared"))
    in_cache = fetch.cache("mnist") / "file.gz"
    direct, below = tmp_path / "shared" / "file.gz", tmp_path / "shared" / "mnist" / "file.gz"
    for place in (in_cache, direct, below):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"")
        assert fetch.locate("mnist", "file.gz") == place
    named = tmp_path / "named"
    named.mkdir()
    (named / "file").write_bytes(b"")
    assert fetch.locate("mnist", "file.gz", path=str(named)) == named / "file"


def test_a_named_path_without_the_files_is_refused_and_nothing_else_is_taken(published, tmp_path):
    with pytest.raises(BadData, match=r"does not hold file.gz of mnist: correct data.path"):
        fetch.obtain("mnist", {"file.gz": CHECKSUM}, path=str(tmp_path))
    assert not fetch.cache("mnist").exists()


def test_the_cache_is_below_home_where_nothing_else_is_said(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch.cache("mnist") == tmp_path / ".cache" / "tacit" / "mnist"


def test_mnist_comes_from_a_mirror_with_its_pinned_checksums(real, mirror):
    (mirror / "mnist").mkdir()
    for part in PARTS:
        shutil.copy(real("mnist") / part, mirror / "mnist" / part)
    assert load(DataSection(name="mnist"), seed=0).x.shape == (60_000, 1, 28, 28)
    assert sorted(path.name for path in fetch.cache("mnist").iterdir()) == sorted(PARTS)
