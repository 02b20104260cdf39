"""Evaluation on rows that sites hold out, in a deployment: asked once at the end, answered with noise, combined as in a simulation."""

import json
import sqlite3

import numpy as np
import pytest
import torch
from trained import same_model

import tacit
from tacit.build.parts import build
from tacit.engine.asking import kept
from tacit.engine.wire import pack, unpack
from tacit.errors import BadInput, TacitError
from tacit.federation.flower import at_sites
from tacit.federation.flower.client import client_app
from tacit.federation.flower.local import LocalGrid
from tacit.federation.flower.messages import UNPAID, refusal
from tacit.federation.site.own_rows import refuse_undeployable
from tacit.privacy.ledger.tables import QUERY
from tacit.report.collect import run_page
from tacit.engine.run_files import read
from tacit.report.progress import facts
from tacit.types import Message

HELD = {"held_out": 0.25}


def charges(site):
    with sqlite3.connect(site / "ledger.db") as book:
        return [round for (round,) in book.execute("SELECT round FROM charges ORDER BY time, round")]


def log(site):
    return [json.loads(line) for line in (site / "log.jsonl").read_text().splitlines()]


class Stop(BaseException):
    pass


class Watching(LocalGrid):
    """A grid that shows every question to a function first: what that returns is answered in the site's place."""

    def __init__(self, deployed, see):
        super().__init__(client_app(), [deployed.site(index) for index in range(len(deployed.names))])
        self.see = see

    def push_messages(self, messages):
        names = []
        for message in messages:
            said = self.see(message)
            (name,) = super().push_messages([message]) if said is None else (self._put(message, said),)
            names.append(name)
        return names

    def _put(self, message, said):
        self._count += 1
        message.metadata.__dict__["_message_id"] = str(self._count)
        self._replies[str(self._count)] = said(message)
        return str(self._count)


def is_count(message):
    return message.metadata.message_type == "query.count"


def test_from_the_same_seed_sites_answer_what_a_simulations_clients_answer_bit_for_bit(federation, tmp_path):
    deployed = federation(data=HELD)
    simulated = tacit.run(deployed.experiment, out=tmp_path / "simulated", page=False)
    history = deployed.run()
    assert same_model(tmp_path / "simulated", history.out)
    ours, theirs = kept(history.out)["evaluation"], kept(tmp_path / "simulated")["evaluation"]
    assert ours.stds == theirs.stds
    assert all(np.array_equal(ours.counts[name], theirs.counts[name]) for name in deployed.names)
    told = history.summary["at_clients"]
    assert told.pop("missing") == {}
    assert told == simulated.summary["at_clients"]
    for key in ("guarantee", "queries", "test_accuracy"):
        assert history.summary[key] == simulated.summary[key]
