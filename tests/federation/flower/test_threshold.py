"""Encrypted sums whose key is split among the sites: enough of them open a sum together, and fewer open nothing."""

import copy
import json
import shutil
import sqlite3
from dataclasses import replace
from types import SimpleNamespace

import pytest
from federation.flower.conftest import Line, lost
from known_keys import safe_prime_key
from redteam.lying_server import accept
from trained import same_model

import tacit
from tacit.crypto import keys
from tacit.crypto.keys import from_text
from tacit.deploy.server.client import LocalGrid, client_app
from tacit.deploy.server.messages import _content, new_nonce, read
from tacit.deploy.site import keys as key_files
from tacit.deploy.site.site import Site
from tacit.errors import TacitError
from tacit.experiment.privacy import Paillier, Unprotected
from tacit.privacy.distributed import kind
from tacit.types import Message
from tacit.wire import pack, unpack

SPLIT = {
    "privacy": {"kind": "distributed", "epsilon": 8.0, "clip": 0.5, "bits": 12, "fewest_reports": 2},
    "protect": {"kind": "paillier", "key": {"bits": 2048}, "threshold": 2},
}
ONE = {"rounds": 1}
TWO = {"rounds": 2}


@pytest.fixture(autouse=True)
def one_key_for_all_federations(monkeypatch):
    """Safe primes take seconds to find; every federation still deals shares of its own."""
    key = safe_prime_key()
    monkeypatch.setattr(key_files, "new_key", lambda experiment: key)
    monkeypatch.setattr(kind, "new_key", lambda experiment: key)


def openings(deployed, index):
    found = []
    for path in deployed.site(index).glob("openings-*.db"):
        with sqlite3.connect(path) as book:
            found += [round for (round,) in book.execute("SELECT round FROM openings")]
    return sorted(found)


def simulated(deployed, out, **protect):
    """The same experiment on this machine; as integers in the clear unless said otherwise."""
    section = Paillier(**protect) if protect else Unprotected()
    tacit.run(deployed.experiment.model_copy(update={"protect": section}), out=out)
    return out


def test_shares_give_the_simulators_model_bit_for_bit_and_every_site_answers_once_a_round(federation, tmp_path):
    deployed = federation(**SPLIT, train=TWO)
    history = deployed.run()
    split = simulated(deployed, tmp_path / "split", **SPLIT["protect"])
    common = simulated(deployed, tmp_path / "common", kind="paillier", key={"bits": 2048})
    assert same_model(common, split, history.out)
    assert [openings(deployed, index) for index in range(3)] == [[0, 1]] * 3
    assert "fewer than 2 of the 3 clients give the server their share of the key (none, if it asks" in history.sentence
    assert "Against the server once it has 2 clients' shares of the key" in history.sentence


def test_nobody_has_more_of_the_key_than_its_own_share(federation):
    deployed = federation(**SPLIT)
    server = [path.name for path in (deployed.folder / "server" / "keys").iterdir()]
    assert sorted(server) == [
        *(f"{name}.member.json" for name in sorted(deployed.names)),
        "public.json",
        "verification.json",
    ]
    shares = [keys.load_as(keys.Share, deployed.site(index) / "keys" / "share.json") for index in range(3)]
    assert [share.index for share in shares] == [1, 2, 3]
    texts = {index: "".join(path.read_text() for path in deployed.site(index).rglob("*.json")) for index in range(3)}
    for index, share in enumerate(shares):
        path = deployed.site(index) / "keys" / "share.json"
        record = json.loads(path.read_text())
        assert from_text(record["share"]) == share.value
        assert path.stat().st_mode & 0o077 == 0
        assert [number for number, text in texts.items() if record["share"] in text] == [index]
    assert not list(deployed.folder.rglob("secret.json"))
    assert '"p"' not in "".join(path.read_text() for path in deployed.folder.rglob("*.json"))


def test_the_bytes_of_openings_are_those_that_crossed_the_wire(federation):
    deployed = federation(**SPLIT, train=ONE)
    line = deployed.grid(Line)
    history = deployed.run(line)
    ((_, broadcast), *_) = [asked for asked in line.asked if asked[0]["kind"] == "train"]
    reports = sum(len(read(reply)[1]) for ask, reply in line.replied if ask["kind"] == "train")
    asked = [len(body) for ask, body in line.asked if ask["kind"] == "open"]
    answered = [len(read(reply)[1]) for ask, reply in line.replied if ask["kind"] == "open"]
    assert len(asked) == len(answered) == 3
    assert history.summary["uplink_bytes"] == reports + sum(answered)
    packing = 1000 * len(asked)  # names and lengths of the reports in a question are not counted
    assert 0 <= len(broadcast) * 3 + sum(asked) - history.summary["downlink_bytes"] < packing


def test_a_second_opening_is_refused_by_every_site_and_a_repeated_question_gets_the_same_bytes(federation):
    deployed = federation(**SPLIT, train=ONE)
    line = deployed.grid(Line)
    deployed.run(line)
    asks = [(ask, body) for ask, body in line.asked if ask["kind"] == "open"]
    said = [read(reply)[1] for ask, reply in line.replied if ask["kind"] == "open"]
    for index, ((ask, body), kept) in enumerate(zip(asks, said, strict=True)):
        site = Site(deployed.site(index))
        assert site.answer(ask, body)[1] == kept
        with pytest.raises(TacitError, match="another answer to it would be a second release"):
            site.answer(ask, other_sum(body))
        (answered,) = deployed.site(index).rglob("opened-*/round-*.answer")
        answered.unlink()  # as if the site had been killed before it kept its answer
        with pytest.raises(TacitError, match=r"Another sum of round 1 of run .* has been opened"):
            site.answer(ask, other_sum(body))
        values = [
            keys.load_as(keys.Verification, deployed.site(index) / "keys" / keys.VERIFICATION_FILE)
            .from_bytes(raw)
            .values
            for raw in (kept, site.answer(ask, body)[1])
        ]
        assert values[0] == values[1]  # only the proof's randomness is new
        assert openings(deployed, index) == [0]


def other_sum(body, reports=2):
    """The same question with fewer reports: two whole ones are enough."""
    tensors = unpack(body).tensors
    return pack(Message("server", {name: tensors[name] for name in sorted(tensors)[:reports]}))


def lying(deployed, nodes):
    """These nodes answer an opening with numbers that would shift the sum by one."""
    whole = keys.load_as(keys.Verification, deployed.folder / "server" / "keys" / "verification.json")

    def change(ask, node, message):
        if ask["kind"] == "open" and node in nodes:
            said, raw = read(message)
            partial = whole.from_bytes(raw)
            shifted = partial.values[0] * (1 + whole.public.n) % whole.public.n_squared
            message.content = _content(
                said, whole.to_bytes(replace(partial, values=(shifted, *partial.values[1:]))), new_nonce()
            )
        return message

    return change


def test_a_wrong_share_is_left_out_by_name_and_the_others_open(federation, tmp_path):
    deployed = federation(**SPLIT, train=ONE)
    history = deployed.run(deployed.grid(change=lying(deployed, nodes=(1,))))
    assert same_model(simulated(deployed, tmp_path / "simulated"), history.out)
    (record,) = history.rounds
    text = "Share 1 answered with something else than its part of this sum: leave it out."
    assert record["refused"] == {f"the share of {deployed.names[0]}": text}
    assert record["opened"] == 1


def test_another_sites_share_is_no_answer(federation):
    deployed = federation(**SPLIT, train=ONE)
    said = {}

    def copied(ask, node, message):
        if ask["kind"] == "open":
            said[node] = read(message)
            if node == 2:
                message.content = _content(*said[1], new_nonce())
        return message

    history = deployed.run(deployed.grid(change=copied))
    assert history.rounds[0]["refused"] == {
        f"the share of {deployed.names[1]}": "It answered with share 1, and its own is 2: leave it out."
    }


def test_with_too_few_good_answers_nothing_is_opened_and_the_run_goes_on_when_they_are_back(federation, tmp_path):
    deployed = federation(**SPLIT, train=TWO)
    said = (
        r"Round 1 is opened by 2 of 3 sites, and 1 gave their part \(.*client-0: Share 1 answered with something else"
    )
    with pytest.raises(TacitError, match=said):
        deployed.run(deployed.grid(change=lying(deployed, nodes=(1, 2))))
    assert (deployed.folder / "out" / "rounds.jsonl").read_text() == ""
    history = deployed.run(resume=True)
    assert same_model(simulated(deployed, tmp_path / "whole"), history.out)
    assert [openings(deployed, index) for index in range(3)] == [[0, 1]] * 3


def test_lost_answers_stop_the_run_and_come_back_unchanged(federation, tmp_path):
    deployed = federation(**SPLIT, train=ONE)
    line = deployed.grid(change=lost((2, 0), (3, 0), kinds=("open",)))
    with pytest.raises(
        TacitError,
        match=r"1 gave their part \(client-1: did not answer in 0\.2 s; client-2: did not answer in 0\.2 s\)",
    ):
        deployed.run(line, round_seconds=0.2)
    kept = [path.read_bytes() for path in sorted((deployed.folder / "sites").rglob("opened-*/round-*.answer"))]
    assert len(kept) == 3
    with pytest.raises(TacitError, match=r"1 gave their part \(client-1: is not connected; client-2: is not connected"):
        deployed.run(
            LocalGrid(client_app(), [deployed.site(0)]), resume=True, join_seconds=0.2, round_seconds=0.2
        )  # its own report alone would not be opened either: the question is the one that was kept
    two = LocalGrid(client_app(), [deployed.site(index) for index in (0, 2)])
    history = deployed.run(two, resume=True, join_seconds=0.2)
    assert [path.read_bytes() for path in sorted((deployed.folder / "sites").rglob("opened-*/round-*.answer"))] == kept
    assert same_model(simulated(deployed, tmp_path / "whole"), history.out)


@pytest.mark.parametrize("threshold", [1, 2])
def test_a_resumed_server_asks_for_the_sum_it_asked_for_although_other_reports_have_come(
    federation, tmp_path, threshold
):
    deployed = federation(privacy=SPLIT["privacy"], protect=SPLIT["protect"] | {"threshold": threshold}, train=ONE)
    twin = copy.copy(deployed)
    twin.folder = tmp_path / "twin"
    shutil.copytree(deployed.folder / "sites", twin.folder / "sites")
    shutil.copytree(deployed.folder / "server", twin.folder / "server")
    late = lost((3, 0))

    def nothing(ask, node, message):
        return None if ask["kind"] == "open" else late(ask, node, message)

    with pytest.raises(TacitError, match="--resume"):
        deployed.run(deployed.grid(change=nothing), round_seconds=0.2)
    resumed = deployed.run(resume=True)  # now the third report is there too, and every site has answered for two
    assert resumed.rounds[0]["opened"] == 1
    assert resumed.rounds[0]["answered"] == 3
    assert same_model(resumed.out, twin.run(twin.grid(change=late), round_seconds=0.2).out)


def test_a_server_that_shows_sites_different_reports_opens_nothing(federation):
    deployed = federation(**SPLIT, train=ONE)

    def two_sums(message):
        ask, body = read(message)
        if ask["kind"] == "open" and message.metadata.dst_node_id < 3:
            reports = (2, 1)[message.metadata.dst_node_id - 1]
            message.content = _content(ask, other_sum(body, reports), new_nonce())

    with pytest.raises(
        TacitError, match=r"client-0: Share 1 answered .*client-1: 1 whole reports arrived and 2 are needed"
    ):
        deployed.run(deployed.grid(see=two_sums))


def test_a_site_with_another_sites_share_takes_no_part(federation):
    deployed = federation(**SPLIT, train=ONE)
    shutil.copy(deployed.site(1) / "keys" / "share.json", deployed.site(0) / "keys" / "share.json")
    with pytest.raises(TacitError, match="client-0 does not agree"):
        deployed.run()
    assert "is share 2, and client-0 has share 1" in (deployed.site(0) / "log.jsonl").read_text()


def test_a_site_refuses_keys_that_fewer_sites_could_open_than_was_agreed(federation):
    deployed = federation(privacy=SPLIT["privacy"], protect=SPLIT["protect"] | {"threshold": 3}, train=ONE)
    lower = deployed.experiment.protect.model_copy(update={"threshold": 2})
    text = deployed.experiment.model_copy(update={"protect": lower})
    for index in range(3):
        accept(SimpleNamespace(folder=deployed.site(index), experiment=text))
    with pytest.raises(TacitError, match=r"is for 3 of 3 sites, and the experiment wants 2 of 3"):
        deployed.run(experiment=text)
