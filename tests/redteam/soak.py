"""A federation of three sites under attack for minutes: `python -m redteam.soak --minutes 10` (`make soak`).

First an honest run is measured; then, in a federation of its own, a stranger without a key and one registered site attack at the
same time. What must hold: the honest sites finish every round, the liar is named in every round in which it lied, and the memory
of the server's processes stays below `MOST_MEMORY` times that of the honest run. All of it on 127.0.0.1.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import httpx
from conftest_deploy import Running, until
from flwr.app import ConfigRecord
from flwr.proto.error_pb2 import Error
from flwr.proto.message_pb2 import ObjectTree
from redteam.fuzz import honest_objects, relinked, scrambled
from redteam.real_grid import Pushed, chain, framed, name_of, push
from redteam.test_gateway import BEAT, OBJECT, PUSH, Server

from tacit.deploy.operate.processes import descendants
from tacit.deploy.server.messages import BYTES, HEAD
from tacit.deploy.server.node import FleetNode

LIAR = "client-0"
MOST_MEMORY = 1.5
ROUND_SECONDS = 6.0  # for a silent liar, which every third lie is
LIE_SECONDS = 2.7  # that a round takes where lies of every kind take turns
TESTS = Path(__file__).resolve().parents[1]
EXPERIMENT = {
    "train": {"local_steps": 3, "min_clients": 2},
    "privacy": {"noise_multiplier": 300.0},
}


def soaked(folder, minutes):
    """What came of an honest run, and of one that is attacked for so many minutes. Raises: AssertionError."""
    rounds = max(5, round(60 * minutes / LIE_SECONDS))
    quiet = _run(folder / "quiet", min(rounds, 40))
    noisy = _run(folder / "noisy", rounds, attacked=True)
    assert noisy["peak"] < MOST_MEMORY * quiet["peak"], f"{noisy['peak']} MiB, where an honest run has {quiet['peak']}"
    return {"quiet": quiet, "attacked": noisy}


def _run(folder, rounds, *, attacked=False):
    train = EXPERIMENT["train"] | {"rounds": rounds}
    running = Running(folder, sites=3, train=train, privacy=EXPERIMENT["privacy"])
    with running.processes, contextlib.ExitStack() as attacks:
        if attacked:
            running.start_site = lambda name: (_start_liar if name == LIAR else Running.start_site)(running, name)
        running.start()
        server = Server(running.federation, running.processes)
        memory = attacks.enter_context(Memory(running.processes))
        stranger = attacks.enter_context(Stranger(server)) if attacked else None
        began, start = running.submit(seconds=ROUND_SECONDS if attacked else 60.0), time.monotonic()
        until(
            lambda: running.status(began).get("state") in ("finished", "failed"),
            seconds=600 + 30 * rounds,
            what="the end",
        )
        took = time.monotonic() - start
        status = running.status(began)
        assert status["state"] == "finished", status["text"]
        running.processes.refuse_ended()
        said = running.rounds()
        assert [record["round"] for record in said] == [*range(rounds)]
        for name in running.names[attacked:]:
            assert running.trained(name) == [*range(rounds)], f"{name} did not take part in every round"
        absent = [record["absent"] for record in said]
        assert all(set(names) <= {LIAR} for names in absent), f"an honest site is missing: {absent}"
        log = (running.federation.server / "gateway.log").read_text()
        assert "Traceback" not in log
        seen = {"rounds": rounds, "seconds": round(took), "peak": round(memory.peak), "parts": memory.parts}
        if attacked:
            lies = (running.federation.site(LIAR) / "lies").read_text().split("\n")[:-1]
            told = {int(round): name for round, _, name in (line.partition(" ") for line in lies)}
            unnamed = {told.get(round, "nothing") for round, names in enumerate(absent) if not names}
            assert unnamed <= {"mutated"}, f"the liar was not named where it lied: {unnamed}"
            seen |= {"lies": len(lies), "kinds": len(set(told.values())), "named": sum(map(len, absent))}
            seen["why"] = {
                told[round]: names[LIAR][:60] for round, names in enumerate(absent) if names and round in told
            }
            seen |= {
                "stranger": stranger.done,
                "database": (running.federation.server / "superlink.db").stat().st_size >> 20,
            }
            running.never_under_reported()
        return seen


class Memory(threading.Thread):
    """The most memory that gateway, SuperLink and what this has started ever had together, in MiB, by the kernel's own peaks."""

    def __init__(self, processes):
        super().__init__(daemon=True)
        self._processes, self._over, self.peak, self.parts = processes, threading.Event(), 0.0, {}

    def run(self):
        while not self._over.wait(0.25):
            parts = {"gateway": _peak(self._processes.running["gateway"].pid)}
            link = self._processes.running["SuperLink"].pid
            parts |= {"SuperLink": _peak(link), "ServerApp": sum(map(_peak, descendants(link)))}
            if sum(parts.values()) > self.peak:
                self.peak, self.parts = sum(parts.values()), {name: round(most) for name, most in parts.items()}

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self.join()


def _peak(pid):
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError):  # it has gone
        return 0.0


class Stranger:
    """Whoever reaches the port and has no key: large bodies, empty messages, silence, and many connections; bounded in number."""

    MOST_SILENT, PAUSE = 300, 0.2

    def __init__(self, server):
        self._server, self._over = server, threading.Event()
        self.done = {"bodies": 0, "silent": 0, "handshakes": 0}
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._bodies, self._silence, self._many)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _bodies(self):
        empty = b"\x12\x00" * (3 << 20)
        for path, body in itertools.cycle(((PUSH, empty), (OBJECT, empty[: 5 << 20]), (BEAT, b"x" * 4000))):
            if self._over.wait(5 * self.PAUSE):
                return
            with contextlib.suppress(OSError, ValueError, IndexError):
                self._server.post(path, body)
                self.done["bodies"] += 1

    def _silence(self):
        lines = []
        while not self._over.wait(self.PAUSE):
            for _ in range(10):
                with contextlib.suppress(OSError):
                    lines.append(self._server.plain())
                    self.done["silent"] += 1
            while len(lines) > self.MOST_SILENT:
                lines.pop(0).close()
        for line in lines:
            line.close()

    def _many(self):
        while not self._over.wait(self.PAUSE):
            with contextlib.suppress(OSError), self._server.tls() as line:
                line.settimeout(5)
                line.sendall(b"POST /v1/fleet/push-messages HTTP/1.1\r\n" * 3 + b"\r\n")
                line.recv(100)
                line.shutdown(socket.SHUT_RDWR)
            self.done["handshakes"] += 1


# The registered liar: a real site, which trains and pays as any other, and pushes something else than its answer.


def _start_liar(running, name):
    folder = running.federation.site(name)
    command = [sys.executable, "-c", "from redteam.soak import lie; lie()", folder]
    paths = os.pathsep.join((str(TESTS), str(TESTS.parent)))
    return running.processes.start(
        f"site {name}", command, log=folder / "site.log", cwd=folder, environment={"PYTHONPATH": paths}
    )


def lie():
    """What the liar's process does, with its folder as the only argument."""
    from tacit.deploy.operate.site_process import run_site

    folder, fair, lies = Path(sys.argv[1]), FleetNode.push, itertools.cycle(LIES)
    sys.argv = ["tacit"]

    def push_lies(node, message):
        if message.metadata.message_type != "train":
            fair(node, message)
            return
        name = next(lies)
        with (folder / "lies").open("a") as file:
            file.write(f"{message.metadata.group_id} {name}\n")
        message.metadata.__dict__["_message_id"] = message.object_id
        told = message.metadata
        known = {"run_id": told.run_id, "message_id": told.reply_to_message_id, "message_type": told.message_type}
        asked = SimpleNamespace(metadata=SimpleNamespace(**known, created_at=time.time(), ttl=told.ttl))
        with contextlib.suppress(httpx.HTTPError, ValueError):
            LIES[name](Lie(node, asked, message, random.Random(told.reply_to_message_id)))

    FleetNode.push = push_lies
    run_site(folder)


@dataclass
class Lie:
    """A question and the honest answer to it, of which something else is made."""

    node: FleetNode
    asked: SimpleNamespace
    message: object
    rng: random.Random
    parts: Pushed = field(init=False)

    def __post_init__(self):
        self.parts = honest_objects(self.message)

    def push(self, pushed):
        """Says it in the answer's place."""
        push(self.node, self.asked, pushed)

    def with_part(self, place, content):
        """Says the answer with one of its parts exchanged."""
        self.push(relinked(self.parts.tree, self.parts.contents, place, content))


def _mutated(lie):
    place = lie.rng.randrange(len(lie.parts.contents))
    kind, _, body = lie.parts.contents[place].partition(b"\x00")
    words = kind.decode().split(" ")
    lie.with_part(place, framed(words[0], scrambled(body, lie.rng), words[1].split(",") if words[1] else []))


def _heavy(lie):
    record = next(place for place, part in enumerate(lie.parts.contents) if part.startswith(b"ConfigRecord"))
    lie.with_part(record, framed("ConfigRecord", b"\x0a\x00" * 400_000))


def _never_sent(lie):
    lie.push(Pushed(lie.parts.tree))


def _many(count, size):
    def said(lie):
        parts = [framed("ConfigRecord", lie.rng.randbytes(8) + bytes(size)) for _ in range(count)]
        root = framed("Message", lie.rng.randbytes(8), list(map(name_of, parts)))
        children = [ObjectTree(object_id=name_of(part)) for part in parts]
        lie.push(Pushed(ObjectTree(object_id=name_of(root), children=children), [*parts, root]))

    return said


def _too_many(lie):
    for _ in range(5):  # refused by the SuperLink, each of them
        with contextlib.suppress(httpx.HTTPError):
            _many(300, 1)(lie)


def _own_next_question(lie):
    """A part of what may be asked next, under its name with a child that is not its own."""
    tree = lie.parts.tree
    false = ObjectTree(object_id=name_of(lie.rng.randbytes(9)), children=[ObjectTree(object_id="ab" * 32)])
    lie.push(Pushed(ObjectTree(object_id=tree.object_id, children=[*tree.children, false]), lie.parts.contents))


def _repeated(lie):
    """One record of nearly an honest answer's size, which its table names for as many pieces of a body as have room in it."""
    head = ConfigRecord({"json": "{}"}).deflate()
    piece = ConfigRecord({BYTES: lie.rng.randbytes(900_000)}).deflate()
    names = {HEAD: name_of(head)} | {f"body-{place}" if place else "body": name_of(piece) for place in range(700)}
    table = framed("RecordDict", json.dumps(names).encode(), [name_of(head), name_of(piece)])
    root = _root(lie, table)
    leaves = [ObjectTree(object_id=name_of(part)) for part in (head, piece)]
    middle = ObjectTree(object_id=name_of(table), children=leaves)
    lie.push(Pushed(ObjectTree(object_id=name_of(root), children=[middle]), [head, piece, table, root]))


def _root(lie, table):
    kind, _, body = lie.parts.contents[-1].partition(b"\x00")
    return framed(kind.decode().split(" ")[0], body, [name_of(table)])


def _timeless(lie):
    said = chain(framed("ConfigRecord", lie.rng.randbytes(9)), framed("Message", lie.rng.randbytes(9)))
    said.metadata = {"created_at": math.nan}
    lie.push(said)


def _error(lie):
    said = chain(framed("Message", lie.rng.randbytes(9)))
    said.error = Error(code=lie.rng.choice((0, 1002, 1003, 2**40)), reason="\x1b[2J" + "x" * 20_000)
    lie.push(said)


def _silent(lie):
    """It has trained and paid, and says nothing."""


LIES = {
    "mutated": _mutated,
    "heavy": _heavy,
    "announced and never sent": _never_sent,
    "oversized": _many(3, 1 << 20),
    "many object ids": _many(250, 1),
    "too many object ids": _too_many,
    "its own next question": _own_next_question,
    "one piece many times": _repeated,
    "without a time": _timeless,
    "an error": _error,
    "silent": _silent,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    with tempfile.TemporaryDirectory() as folder:
        for what, seen in soaked(Path(folder), parser.parse_args().minutes).items():
            print(what, seen)


if __name__ == "__main__":
    main()
