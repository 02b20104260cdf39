"""Somebody who has a copy of a run's or a site's folder and a dictionary of rows: which of them are in it?

Whoever can make a value of the folder again from rows that were guessed has an oracle: equal means guessed right. So two starts
on equal rows must leave no hash in common that a start on other rows does not leave too. The ledger's secret is not in the copy.
"""

import multiprocessing
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from redteam.careless_researcher import natural_rows
from redteam.lying_server import Server, experiment
from safetensors.torch import load_file
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.data.population import row_hashes
from tacit.data.sources import digits
from tacit.errors import LedgerError, Refused
from tacit.lab.stats import stats
from tacit.privacy.ledger import disk
from tacit.privacy.ledger.ledger import Ledger
from tacit.report import plan
from tacit.wire import digest_of, tensor_bytes

HEX = re.compile(rb"(?=[0-9]*[a-f])[0-9a-f]{16,}")  # a number of many digits is no hash


def copied(folder):
    """Every file of a folder but the secrets of its ledgers."""
    return [file for file in folder.rglob("*") if file.is_file() and not file.name.endswith(".secret")]


def hashes(folder):
    """Whatever looks like a hash in a folder: in a text, in a column of a ledger, or in the name of a file."""
    found = set()
    for file in copied(folder):
        raw = file.read_bytes() + b" " + file.name.encode()
        found |= set(HEX.findall(raw))
        if raw.startswith(b"SQLite format 3"):
            with closing(sqlite3.connect(file)) as db:
                for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                    for value in (one for row in db.execute(f"SELECT * FROM {table}") for one in row):
                        raw = value if isinstance(value, bytes) else str(value).encode()
                        found |= {raw.hex().encode()} if isinstance(value, bytes) else set(HEX.findall(raw))
    assert found
    return found


def oracle(one, again, other):
    """The hashes that equal rows leave twice and other rows do not leave; that of the model is no more than the model itself."""
    kept = one / "checkpoint.safetensors"
    known = {digest_of("model", tensor_bytes(load_file(kept)["params"])).encode()} if kept.exists() else set()
    return (hashes(one) & hashes(again)) - hashes(other) - known


KINDS = {
    "natural": {"data": {"partition": "natural"}},
    "dealt out": {"data": {"partition": "iid"}},
    "held out": {"data": {"partition": "natural", "held_out": 0.3}},
    "central": {"data": {"partition": "iid"}, "privacy": {"kind": "central"}},
    "in turn": {
        "data": {"partition": "natural"},
        "train": {"rounds": 3, "clients_per_round": 1, "sampling_rate": None},
        "privacy": {"kind": "central", "sampler": "cyclic"},
    },
    "canaries": {"data": {"partition": "natural"}, "audit": {"canaries": 5}},
    "nothing promised": {"data": {"partition": "natural"}, "privacy": {"kind": "none"}},
}


def asked(path, **changes):
    values = {
        "data": {"name": "npz", "path": str(path), "clients": 3, "classes": 2, "examples_per_client": None},
        "model": {"name": "mlp"},
        "train": {"rounds": 2, "local_steps": 1, "sampling_rate": 0.5},
        "privacy": {"kind": "local", "epsilon": 5.0, "delta": 1e-5},
        "run": {"workers": 1},
    }
    for section, change in changes.items():
        values[section] = values.get(section, {}) | change
    if values["privacy"]["kind"] == "none":
        values["privacy"] = {"kind": "none"}
    return tacit.Experiment(**values)


def three(tmp_path, start):
    """The same start on rows, on equal ones, and on rows of which one is another."""
    arrays = natural_rows(tmp_path / "rows.npz", tests=20)
    for name, shift in (("one", 0.0), ("again", 0.0), ("other", 1.0)):
        x = arrays["x"].copy()
        x[0] += shift
        np.savez(tmp_path / "rows.npz", **arrays | {"x": x})
        start(arrays | {"x": x}, tmp_path / name)
    return oracle(*(tmp_path / name for name in ("one", "again", "other")))


@pytest.mark.parametrize("kind", [*KINDS, "statistics"])
def test_a_run_without_its_secret_tells_no_guessed_row_from_a_wrong_one(tmp_path, kind):
    def start(_, out):
        chosen = asked(tmp_path / "rows.npz", **KINDS.get(kind, KINDS["natural"]))
        stats(chosen, out=out) if kind == "statistics" else tacit.run(chosen, out=out, page=False)

    assert three(tmp_path, start) == set()


@pytest.mark.parametrize("kind", ["local", "none"])
def test_rows_from_python_cannot_be_guessed_from_a_runs_files(tmp_path, kind):
    def start(arrays, out):
        data = tacit.Dataset(
            arrays["x"],
            arrays["y"],
            clients=arrays["client"],
            classes=2,
            test=(arrays["x_test"], arrays["y_test"]),
        )
        said = asked("", privacy={"kind": kind}).model_dump(exclude_none=True, exclude={"data"})
        tacit.run(
            tacit.Experiment(**{key: value for key, value in said.items() if value}), data=data, out=out, page=True
        )

    assert three(tmp_path, start) == set()


@pytest.mark.parametrize("randomness", ["os", "seeded"])
def test_a_sites_folder_without_its_secret_tells_no_guessed_row_from_a_wrong_one(tmp_path, monkeypatch, randomness):
    real = digits.load

    def start(name, shift):
        monkeypatch.setattr(digits, "load", lambda self, **how: moved(real(self, **how), shift))
        asking = Server(tmp_path / name, experiment(run={"randomness": randomness}))
        asking.agree()
        asking.train(0)

    for name, shift in (("one", 0.0), ("again", 0.0), ("other", 0.01)):
        start(name, shift)
    assert oracle(*(tmp_path / name for name in ("one", "again", "other"))) == set()


def moved(rows, shift):
    return replace(rows, x=rows.x + shift)


def test_a_dictionary_of_values_finds_no_record_in_the_ledger(tmp_path):
    """400 records of 1,120 possible ones: all of them came back, although noise was the operating system's."""
    rng = np.random.default_rng(0)
    values = np.arange(1120, dtype=np.float32)[:, None]
    x, y, client = values[rng.choice(1120, 400, replace=False)], np.zeros(400, int), np.arange(400) % 4
    np.savez(tmp_path / "rows.npz", x=x, y=y, client=client, x_test=values[:2], y_test=[0, 1])
    chosen = asked(tmp_path / "rows.npz", data={"partition": "natural", "clients": 4}, run={"randomness": "os"})
    tacit.run(chosen, out=tmp_path / "run", page=False)
    found, guesses = hashes(tmp_path / "run"), torch.from_numpy(values)
    guessed = {row.hex().encode() for label in (0, 1) for row in row_hashes(guesses, torch.full((1120,), label))}
    assert not found & guessed
    key = disk.key_of(tmp_path / "run" / "ledger.db")
    known = {row.hex().encode() for row in row_hashes(torch.from_numpy(x), torch.zeros(400, dtype=int), key=key)}
    assert len(found & known) == 400, "with the secret they are there: the test looks where they stand"


def opened(ledger):
    return Ledger(ledger, population="rows", run="run")


def test_ledger_and_secret_are_their_owners_alone_while_a_charge_is_written_too(tmp_path):
    path = tmp_path / "ledger.db"
    book = opened(path)
    book._db.execute("BEGIN IMMEDIATE")
    book._db.execute("INSERT INTO draws VALUES ('a', 'b')")
    files = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert files == dict.fromkeys(["ledger.db", "ledger.db-journal", "ledger.db.secret"], 0o600)
    book._db.execute("ROLLBACK")
    book.close()
    path.chmod(0o644)
    opened(path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    disk.secret_of(path).chmod(0o640)  # a secret that others can read keeps nothing
    with pytest.raises(LedgerError, match="not yours alone"):
        opened(path)


def test_a_ledger_without_its_secret_pays_for_nothing_and_gets_no_new_one(tmp_path):
    """A new secret would make the same rows other ones, and every row could have a second client."""
    rows, one = tmp_path / "rows.npz", tmp_path / "one"
    natural_rows(rows, tests=20)
    shared = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.2, "noise_multiplier": 8.0}
    chosen = asked(rows, data={"partition": "natural"}, privacy=shared)
    tacit.run(chosen, out=one, page=False)
    kept = disk.secret_of(tmp_path / "shared.db")
    kept.rename(tmp_path / "elsewhere")
    before = (tmp_path / "shared.db").read_bytes()
    for start in (
        lambda: tacit.run(chosen, out=one, resume=True, page=False),
        lambda: tacit.run(chosen, out=tmp_path / "two", page=False),
        lambda: plan.of_experiment(chosen),
    ):
        with pytest.raises(LedgerError, match=r"shared\.db\.secret is gone, .* restore it with the ledger"):
            start()
    assert not kept.exists()
    kept.write_text("{")
    with pytest.raises(LedgerError, match="damaged, or not yours alone"):
        tacit.run(chosen, out=tmp_path / "three", page=False)
    kept.unlink()
    disk.key_of(tmp_path / "other.db")
    shutil.copy(disk.secret_of(tmp_path / "other.db"), kept)
    for start in (
        lambda: tacit.run(chosen, out=tmp_path / "four", page=False),
        lambda: plan.of_experiment(chosen),
    ):
        with pytest.raises(LedgerError, match="is the secret of another ledger"):
            start()
    assert (tmp_path / "shared.db").read_bytes() == before
    (tmp_path / "elsewhere").rename(kept)
    assert tacit.run(chosen, out=tmp_path / "two", page=False).guarantee.others.runs == 1


def test_a_site_whose_secret_is_lost_answers_nothing(tmp_path):
    asking = Server(tmp_path / "site", experiment())
    asking.agree()
    asking.train(0)
    disk.secret_of(asking.folder / "ledger.db").unlink()
    asking.restart()
    with pytest.raises(Refused):
        asking.train(1)
    with pytest.raises(Refused):
        asking.agree(run="1" * 32)
    assert "ledger.db.secret is gone" in asking.log()[-1]["text"]
    assert asking.charges() == [0]


def key_in(path, turn, found):
    turn.wait()
    book = opened(path)
    found.put(book._key)


def test_processes_that_begin_one_ledger_at_once_have_one_secret(tmp_path):
    context = multiprocessing.get_context("fork")
    for number in range(10):
        found, turn = context.Queue(), context.Barrier(4)
        path = tmp_path / str(number) / "ledger.db"
        all_of = [context.Process(target=key_in, args=(path, turn, found)) for _ in range(4)]
        for one in all_of:
            one.start()
        keys = {found.get(timeout=60) for _ in all_of}
        for one in all_of:
            one.join()
        assert keys == {disk.key_of(path)}


def test_a_backup_without_the_secret_is_said_to_be_one(tmp_path):
    opened(tmp_path / "ledger.db").close()
    (tmp_path / "backup").mkdir()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "backup")
    for place, code in ((tmp_path, 0), (tmp_path / "backup", 2)):
        done = CliRunner().invoke(app, ["ledger", str(place / "ledger.db"), "--verify"])
        assert (done.exit_code, "ledger.db.secret is gone" in " ".join(done.output.split())) == (code, code == 2)
