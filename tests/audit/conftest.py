"""One small experiment of each kind, built once: scikit-learn's digits among a few clients of unequal sizes."""

from functools import cache

import pytest

import tacit
from tacit.crypto.keys import generate
from tacit.deploy.site import keys
from tacit.lab.audit.mechanism import prepared

DATA = {"clients": 5, "partition": "dirichlet", "alpha": 1.0}
TRAIN = {"rounds": 40, "local_steps": 2, "sampling_rate": 0.2}
ONE_STEP = {"rounds": 40, "local_steps": 1}
ONCE = {"unit": "record", "epsilon": [2.0, 3.0, 4.0, 5.0, 6.0], "noise_multiplier": 4.0, "rate_cap": 4.0}
KINDS = {
    "record": {"privacy": {"kind": "local", "epsilon": [4.0, 5.0, 6.0, 7.0, 8.0]}},
    "client": {"privacy": {"kind": "local", "unit": "client", "epsilon": 8.0}},
    "central": {
        "train": TRAIN | {"clients_per_round": 2},
        "privacy": {"kind": "central", "epsilon": 8.0, "clip": 0.5, "network": "unwatched"},
    },
    "cyclic": {
        "train": TRAIN | {"clients_per_round": 2},
        "privacy": {"kind": "central", "sampler": "cyclic", "epsilon": 8.0, "clip": 0.5},
    },
    "distributed": {
        "privacy": {"kind": "distributed", "epsilon": 8.0, "clip": 0.5, "bits": 12},
        "protect": {"kind": "paillier", "key": {"bits": 2048}},
    },
    "central-records": {"train": ONE_STEP, "privacy": ONCE | {"kind": "central"}},
    "secret-records": {"train": ONE_STEP, "privacy": ONCE | {"kind": "distributed"}, "protect": {"kind": "masks"}},
}


def experiment(kind, **changes):
    """The experiment of a kind, with changes."""
    values = {"data": DATA, "train": TRAIN, "run": {"workers": 1}} | KINDS[kind]
    return tacit.Experiment(**values | {section: values.get(section, {}) | own for section, own in changes.items()})


@cache
def parts_of(kind):
    """The parts of a kind; an audit leaves them as they are."""
    return prepared(experiment(kind))


@cache
def one_key():
    return generate(bits=2048, shape="ordinary")


@pytest.fixture
def quick_keys(monkeypatch):
    """Primes take a second to find, and audits are not of them: one key serves all sites here."""
    monkeypatch.setattr(keys, "new_key", lambda experiment: one_key())
