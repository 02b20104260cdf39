"""Small runs whose bits are written down in golden.json: a change that should change none is held to that.

    python tests/golden.py        # writes golden.json anew: after a change that changes bits on purpose

Of every run: a hash of the model, of what the ledger charges (who, which round, which event; no times) and of all numbers of rounds
and summary that no clock has a part in. The code's digest and the machine's, which are in the key of every noise, are held fixed.
Another processor may round sums differently and from then on draws other noise: there only charges are compared, to TOLERANCE.
"""

import hashlib
import json
import sqlite3
import tempfile
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from federation.flower.conftest import Federation
from safetensors.torch import load_file

import tacit
from tacit.engine import release
from tacit.privacy.accounting.price import noise_multipliers

FILE = Path(__file__).with_name("golden.json")
TOLERANCE = 1e-4
VERSIONS = {"tacit": tacit.__version__, "torch": torch.__version__, "numpy": np.__version__}  # all in the key of noise
CLOCK = ("seconds", "cpu_", "provenance", "clients_at_once", "_milliseconds")

STRUCK = {"privacy": {"accountant": "pld"}}  # keys that experiments had when golden.json was written
STRUCK_OF_CSV = {"wide": {}, "indicators": [], "ignore": []}

FIXED = SimpleNamespace(uuid4=lambda: uuid.UUID(int=0))

SMALL = {
    "name": "golden",
    "data": {"clients": 4, "examples_per_client": 30},
    "train": {"rounds": 2, "local_steps": 2, "sampling_rate": 0.5},
    "privacy": {"kind": "local", "epsilon": [1.0, 2.0, 3.0, 9.0], "delta": 1e-3},
    "run": {"workers": 1},
}
WHOLE = {"sampling_rate": None, "batch_size": 10}
NONE = {"privacy": {"kind": "none", "epsilon": None}, "train": WHOLE}
CENTRAL = {"kind": "central", "epsilon": 6.0}
SUMS = {"privacy": {"kind": "distributed", "epsilon": 8.0, "clip": 0.5}, "train": WHOLE}
OWN = {"own_share": 0.3}
CSV = {"name": "csv", "label": "ill", "classes": ["no", "yes"], "numeric": {"age": [0, 120], "chol": "private"}}
CSV |= {"clients": None, "examples_per_client": None}
SITES = {"data": {"clients": 3}, "privacy": {"epsilon": [1.0, 2.0, 8.0]}}

RUNS = {  # name: (how it is started, what differs from SMALL)
    "none": ("run", NONE),
    "none, network and Adam": (
        "run",
        {**NONE, "model": {"name": "mlp"}, "train": WHOLE | {"server_optimizer": "adam", "averaging": 0.5}},
    ),
    "none, control variates": ("run", {**NONE, "train": WHOLE | {"control": "scaffold"}}),
    "none, Krum": ("run", {**NONE, "aggregate": {"rule": "krum"}}),
    "none, trimmed mean": ("run", {**NONE, "aggregate": {"rule": "trimmed-mean"}}),
    "none, malicious": ("run", {**NONE, "attack": {"kind": "replacement", "clients": 1}}),
    "local, random effects": ("run", {}),
    "local, resumed": ("resume", {}),
    "local, stacked": ("run", {"run": {"at_once": True}}),
    "local, two processes": ("run", {"run": {"workers": 2}, "train": {"momentum": 0.5}}),
    "local, same noise, weighted": (
        "run",
        {"privacy": {"strategy": "same-noise", "noise_multiplier": 3.0}, "aggregate": {"rule": "weighted"}},
    ),
    "local, projected": ("run", {"aggregate": {"rule": "pfa"}}),
    "local, projected in fewer bytes": ("run", {"aggregate": {"rule": "pfa-plus"}}),
    "local, clients": ("run", {"privacy": {"unit": "client", "epsilon": 20.0}, "train": WHOLE}),
    "local, queries": ("run", {"data": {"held_out": 0.3}, "privacy": {"stats": ["label"], "epsilon": 5.0}}),
    "local, canaries": ("run", {"audit": {"canaries": 10}}),
    "local, own models in rounds": (
        "run",
        {"data": OWN, "personal": {"kind": "mean-regularised", "strength": 0.5, "when": "during"}},
    ),
    "local, numbers": (
        "numbers",
        {"data": {"clients": None, "examples_per_client": None}, "task": {"kind": "regression"}},
    ),
    "local, tables with a private range": ("csv", {"data": CSV, "privacy": {"epsilon": {"north": 3.0, "coast": 8.0}}}),
    "central": ("run", {"privacy": CENTRAL, "train": WHOLE}),
    "central, Poisson": ("run", {"privacy": CENTRAL, "train": WHOLE | {"clients_per_round": 2}}),
    "central, cyclic": (
        "run",
        {"privacy": CENTRAL | {"sampler": "cyclic"}, "train": WHOLE | {"clients_per_round": 1, "rounds": 5}},
    ),
    "central, clip that adapts": (
        "run",
        {"privacy": CENTRAL | {"adaptive_clip": {"quantile": 0.5, "count_noise": 2.0}}, "train": WHOLE},
    ),
    "distributed": ("run", SUMS),
    "distributed, resumed": ("resume", SUMS),
    "distributed, two sums": (
        "run",
        {**SUMS, "privacy": SUMS["privacy"] | {"epsilon": [2.0, 2.0, 9.0, 9.0], "groups": 2}},
    ),
    "encrypted": ("run", {**SUMS, "protect": {"kind": "paillier", "key": {"bits": 2048, "shape": "short-exponent"}}}),
    "deployed, local": ("deploy", SITES),
    "deployed, central": ("deploy", {**SITES, "privacy": CENTRAL, "train": WHOLE}),
    "deployed, distributed": ("deploy", {**SITES, **SUMS}),
}


class Stop(Exception):
    pass


def stop(record):
    raise Stop


def experiment(changes):
    """SMALL with changes; what is None is left out."""
    tables = {key: {**SMALL.get(key, {}), **changes.get(key, {})} for key in {*SMALL, *changes} - {"name"}}
    said = {name: {key: value for key, value in table.items() if value is not None} for name, table in tables.items()}
    return tacit.Experiment(name="golden", **said)


def tables(place):
    """Two hospitals' rows, with a column whose range nobody knows."""
    rng, folder = np.random.default_rng(0), place / "rows"
    folder.mkdir()
    for name in ("north", "coast"):
        rows = [
            f"{20 + rng.integers(70)},{90 + rng.integers(300)},{('no', 'yes')[rng.integers(2)]}" for _ in range(300)
        ]
        (folder / f"{name}.csv").write_text("\n".join(("age,chol,ill", *rows)) + "\n", "utf-8")
    return {"path": str(folder)}


def handed():
    """Numbers to be learned, of four clients."""
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 10, (160, 3)).astype(np.float32)
    y, names = x @ np.array([1.0, 2.0, -1.0]), np.repeat(list("abcd"), 40)
    return tacit.Dataset(x, y, clients=names, classes="numbers", test=(x[:50] + 1, y[:50] + 2))


def said_then(experiment, said=release.experiment_text):
    """What an experiment says, as keys of noise had it when golden.json was written: with keys that were struck since."""
    values = json.loads(said(experiment))
    for table, struck in STRUCK.items():
        values[table] |= struck
    values["data"] |= STRUCK_OF_CSV if values["data"]["name"] == "csv" else {}
    return json.dumps(values, sort_keys=True)


@contextmanager
def fixed():
    """One code and one machine, as far as keys of noise go."""
    with (
        mock.patch("tacit.engine.release.experiment_text", said_then),
        mock.patch("tacit.engine.release.package", return_value="golden"),
        mock.patch("tacit.engine.release.arithmetic", return_value="golden"),
        mock.patch("tacit.engine.stacked.uuid", FIXED),
        mock.patch("tacit.engine.assemble.uuid", FIXED),  # a stack is another release at every start
    ):
        yield


def measured(name, place):
    """What is written down of a run, which is made in a folder."""
    how, changes = RUNS[name]
    with fixed():
        if how == "deploy":
            federation = Federation(place, experiment(changes))
            out, ledgers = federation.run().out, [federation.site(index) for index in range(len(federation.names))]
        else:
            out, ledgers, more = place / "run", [place / "run"], {"data": handed()} if how == "numbers" else {}
            if how == "csv":
                changes = {**changes, "data": {**changes["data"], **tables(place)}}
            if how == "resume":
                with suppress(Stop):
                    tacit.run(experiment(changes), out=out, observe=stop, page=False)
                more["resume"] = True
            tacit.run(experiment(changes), out=out, page=False, **more)
    rows = sorted(row for ledger in ledgers for row in charges(ledger / "ledger.db"))
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text("utf-8").splitlines()]
    return {
        "model": model(out / "model.safetensors"),
        "ledger": hashed(rows),
        "rounds": hashed(list(numbers(records))),
        "summary": hashed(list(numbers(json.loads((out / "summary.json").read_text("utf-8"))))),
        "charged": [[json.loads(event), count] for event, count in sorted(Counter(row[-1] for row in rows).items())],
    }


def charges(path):
    """(table, client, round or query, unit, event) of everything that a ledger has charged or sealed."""
    if not path.exists():
        return
    db = sqlite3.connect(path)
    for name, table, columns in (
        ("charges", "charges", "client, round, unit"),
        ("everybody", "everybody", "'', round, unit"),
        ("asked", "queries", "client, query, ''"),  # the first word is that of golden.json
    ):
        yield from (
            (name, *map(str, row))
            for row in db.execute(f"SELECT {columns}, text FROM {table} JOIN events ON events.id = {table}.event")
        )
    db.close()


def model(path):
    """A hash of all weights."""
    return hashed([(name, tensor.numpy().tobytes().hex()) for name, tensor in sorted(load_file(path).items())])


def numbers(value, path=""):
    """(path, number) of everything below that no clock has a part in."""
    if isinstance(value, dict):
        for key, part in sorted(value.items()):
            if not any(word in key for word in CLOCK):
                yield from numbers(part, f"{path}.{key}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from numbers(part, f"{path}.{index}")
    elif isinstance(value, int | float):
        yield path, value


def hashed(value):
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


def probe():
    """A hash of what processors round differently: torch's kernels, products, convolutions, gradients, sums, functions, a price."""
    made = torch.Generator().manual_seed(0)
    found = []
    for rows, inner, columns in ((10, 64, 10), (33, 784, 200), (200, 33, 64)):
        found.append(torch.randn(rows, inner, generator=made) @ torch.randn(inner, columns, generator=made))
    x, w = torch.randn(3, 1, 28, 28, generator=made), torch.randn(8, 1, 5, 5, generator=made).requires_grad_()
    found += torch.autograd.grad(torch.nn.functional.conv2d(x, w).tanh().logsumexp(1).sum(), [w])
    found += [torch.linalg.svd(found[0])[0], found[1].sum(), found[1].norm(), found[1].log_softmax(1), found[1].exp()]
    grid = np.linspace(0.01, 20, 1000)
    found += [torch.from_numpy(function(grid)) for function in (np.exp, np.log, np.sin)]
    found.append(torch.from_numpy(noise_multipliers(np.array([1.0, 5.0]), delta=1e-3, sampling_rate=0.5, steps=4)))
    kernels = torch.backends.cpu.get_cpu_capability()
    return hashed([kernels, *(part.detach().contiguous().numpy().tobytes().hex() for part in found)])


def main():
    torch.set_num_threads(1)
    runs = {}
    for name in RUNS:
        with tempfile.TemporaryDirectory() as place:
            runs[name] = measured(name, Path(place))
    lines = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(run)}" for name, run in runs.items()
    )  # a line a run: diffs are short
    head = json.dumps({"versions": VERSIONS, "probe": probe(), "runs": {}})
    FILE.write_text(f"{head[:-2]}\n{lines}\n}}}}\n", "utf-8")
    print(f"{len(runs)} runs are written to {FILE.name}: say in the commit why their bits changed.")


if __name__ == "__main__":
    main()
