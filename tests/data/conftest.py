"""What the tests of data share: an environment of their own, a web server on this machine, and where real data may be."""

import functools
import gzip
import http.server
import os
import threading
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve()
REAL = Path(os.environ.get("TACIT_DATA") or HERE.parents[2].parent / "shared" / "data")


@pytest.fixture(autouse=True)
def own_environment(tmp_path, monkeypatch):
    """No test sees the caller's data, cache, mirror or proxy."""
    for name in ("TACIT_DATA", "TACIT_MIRROR", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A folder served over HTTP as $TACIT_MIRROR."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    with serving(folder) as address:
        monkeypatch.setenv("TACIT_MIRROR", address)
        yield folder


class serving:
    """Serves a folder on a free port of 127.0.0.1."""

    def __init__(self, folder):
        handler = functools.partial(Quiet, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture
def real():
    """The folder of a real data set, or a skip that says what is absent."""

    def folder(name):
        if not (REAL / name / "train-images-idx3-ubyte.gz").is_file():
            pytest.skip(f"no {name} files in $TACIT_DATA or ../shared/data")
        return REAL / name

    return folder


@pytest.fixture
def idx():
    """Writes an array of bytes as an IDX file, gzipped where the name says so."""

    def write(path, values):
        values = np.asarray(values, np.uint8)
        head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
        raw = head + values.tobytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
        return raw

    return write
