"""Encrypted sums at sites: a server that tells every site another story, and sites that send what they should not."""

import json
import shutil
import sqlite3
from dataclasses import asdict, replace
from functools import cache, partial

import pytest
import torch
from engine.conftest import SMALL
from federation.flower.conftest import THREE, Federation
from redteam.cheating_site import CheatingSite, ciphertexts_of, message
from trained import same_model

import tacit
from tacit.crypto import keys, paillier
from tacit.crypto.keys import generate
from tacit.crypto.reports import RoundContext, opener_of, parse
from tacit.deploy.server.client import LocalGrid, client_app
from tacit.deploy.server.messages import _content, new_nonce, read
from tacit.deploy.site import agreement
from tacit.deploy.site import keys as key_files
from tacit.deploy.site.agreement import terms_of
from tacit.deploy.site.keys import seals_of
from tacit.deploy.site.requests import Roster
from tacit.deploy.site.rows import public_rows, shape
from tacit.deploy.site.site import Site
from tacit.engine.assemble import assemble
from tacit.errors import Refused, TacitError
from tacit.experiment.privacy import Unprotected
from tacit.types import Message
from tacit.wire import pack, unpack

PRIVACY = {"kind": "distributed", "epsilon": 8.0, "clip": 0.5, "bits": 12, "fewest_reports": 2}
PROTECT = {"kind": "paillier", "key": {"bits": 2048}}
SHORT = PROTECT | {"key": {"bits": 2048, "shape": "short-exponent"}}


@cache
def one_key(shape):
    """Primes take a second to find, and the attacks are not on them: one key of a shape serves all federations here."""
    return generate(bits=2048, shape=shape)


@pytest.fixture
def federation(tmp_path, monkeypatch):
    monkeypatch.setattr(key_files, "new_key", lambda experiment: one_key(experiment.protect.new_key.shape))

    def make(*, rounds=1, protect=PROTECT):
        values = SMALL | {"data": THREE["data"], "privacy": PRIVACY, "protect": protect}
        return Federation(tmp_path, tacit.Experiment(**values | {"train": SMALL["train"] | {"rounds": rounds}}))

    return make


class Line(LocalGrid):
    """Hands every question and every answer to whoever lies on the way."""

    def __init__(self, deployed, *, ask=None, answer=None):
        super().__init__(client_app(), [deployed.site(index) for index in range(3)])
        self.ask, self.answer, self.reports, self.asked, self.forged = ask, answer, {}, {}, []

    def push_messages(self, messages):
        names = []
        for sent in messages:
            head, body = read(sent)
            node = sent.metadata.dst_node_id
            if self.ask and (other := self.ask(head, body, node)):
                sent.content = _content(*other, new_nonce())
            if head["kind"] == "open":
                self.asked[head["round"]] = body
            names += super().push_messages([sent])
            reply = self._replies[names[-1]]
            if head["kind"] == "train" and not reply.has_error():
                self.reports[head["round"], node] = read(reply)[1]
            if self.answer and not reply.has_error() and (other := self.answer(head, *read(reply), node)) is not None:
                reply.content = _content({}, other, new_nonce())
        return names


def other_than_the_opener(deployed, run):
    """A node that does not open round 0."""
    opener = opener_of(deployed.names, run=f"{run}-all", round=0)
    return 1 + next(index for index, name in enumerate(deployed.names) if name != opener)


def told(deployed, change, *, to):
    """A server that tells one node of another roster, with the terms that follow from it."""

    def ask(head, body, node):
        if head["kind"] != "agree" or node != to(head["run"]):
            return None
        roster, rows = Roster.of(head["roster"] | change), public_rows(deployed.experiment)
        index = roster.names.index(deployed.names[node - 1])
        folder = deployed.folder / "server"
        sites = {path.name: path.read_bytes() for path in (folder / "keys").glob("*.member.json")}
        for name in set(deployed.names) - set(roster.names):  # only to compute the terms: its own folder is as it was
            (folder / "keys" / f"{name}.member.json").unlink()
        told = {"text": head["experiment"], "roster": roster.record()}
        seals = seals_of(deployed.experiment, folder, run=head["run"], site=None, **told)
        parts = assemble(deployed.experiment, rows, roster.population(shape(rows)), place="server", seals=seals)
        for name, raw in sites.items():
            (folder / "keys" / name).write_bytes(raw)
        client = parts.population[index]
        return head | {
            "roster": roster.record(),
            "terms": asdict(terms_of(parts, client, epsilon=client.budget.epsilon)),
        }, body

    return ask


def agreed(deployed):
    (folder,) = (deployed.site(0) / "runs").iterdir()
    return agreement.read(deployed.site(0), folder.name)


def log(deployed, index):
    return (deployed.site(index) / "log.jsonl").read_text()


def charges(deployed, index):
    with sqlite3.connect(deployed.site(index) / "ledger.db") as ledger:
        return ledger.execute("SELECT count(*) FROM charges").fetchone()[0]


def test_a_server_that_leaves_a_site_out_of_anothers_roster_gets_no_agreement(federation):
    deployed = federation()
    fewer = {"names": list(deployed.names[:2]), "sizes": [60, 60], "epsilons": [8.0, 8.0]}
    with pytest.raises(TacitError, match="client-0 does not agree"):
        deployed.run(Line(deployed, ask=told(deployed, fewer, to=lambda run: 1)))
    assert "need one list of sites everywhere" in log(deployed, 0)


@pytest.mark.parametrize("change", [{"sizes": [60, 60, 6000]}, {"epsilons": [8.0, 8.0, 80.0]}])
def test_a_report_made_with_noise_for_another_roster_is_in_no_sum_and_its_site_is_named(federation, change):
    """The site believes that another one has a larger budget or more rows, and would share its noise accordingly."""
    deployed = federation()
    history = deployed.run(Line(deployed, ask=told(deployed, change, to=partial(other_than_the_opener, deployed))))
    (record,) = history.rounds
    name = deployed.names[other_than_the_opener(deployed, agreed(deployed).run) - 1]
    assert "told of another experiment, other sites or other budgets" in record["refused"].pop(name)
    assert record["refused"] == {}
    assert record["opened"] == 1  # of the two others, who were told the same


def test_a_server_that_told_two_stories_has_no_holder_who_adds_the_reports(federation):
    """Whoever's turn it is refuses the sum, by the sender's name, although the server has waved the report through."""
    deployed = federation()
    lie = told(deployed, {"epsilons": [8.0, 8.0, 80.0]}, to=lambda run: 1)
    line = Line(deployed)

    def ask(head, body, node):
        if head["kind"] == "open":
            sent = [unpack(line.reports[0, node]).tensors["report"] for node in (1, 2, 3)]
            return head, pack(Message("server", {f"{i:06d}": report for i, report in enumerate(sent)}))
        return lie(head, body, node)

    line.ask = ask
    with pytest.raises(TacitError, match=r"The report of 'client-[0-2]' is refused: its site was told of another"):
        deployed.run(line)


def test_a_message_whose_turn_is_not_its_round_is_refused_by_the_site(federation):
    deployed = federation()

    def ask(head, body, node):
        if head["kind"] != "train" or node != 1:
            return None
        heard = unpack(body)
        return head, pack(replace(heard, facts=heard.facts | {"turn": 1}))

    history = deployed.run(Line(deployed, ask=ask))
    assert "asks for round 1 and sent the turn of another" in log(deployed, 0)
    assert list(history.summary["sites"]["absent"]) == ["client-0"]
    assert [charges(deployed, index) for index in range(3)] == [0, 1, 1]


@pytest.mark.parametrize("protect", [PROTECT, PROTECT | {"threshold": 2}])
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("experiments = [", "experiments = [] #", "is not among those that the site's budget.toml accepts"),
        ("most_rounds = 1", "most_rounds = 1\nmost_clients = 2", "asks for 3 clients; the site allows 2"),
        ("epsilon = 8.0", "epsilon = 7.0", "asks for epsilon 8; the site allows 7"),
    ],
)
def test_consent_that_is_withdrawn_after_a_report_opens_no_sum_not_even_one_that_was_opened_before(
    federation, protect, old, new, words
):
    deployed, asked = federation(protect=protect), {}

    def ask(head, body, node):
        if head["kind"] == "open" and node not in asked:  # between the report and its opening
            asked[node] = (head, body)
            path = deployed.site(node - 1) / "budget.toml"
            path.write_text(path.read_text().replace(old, new))
            assert new in path.read_text()

    with pytest.raises(TacitError, match=words):
        deployed.run(Line(deployed, ask=ask))
    for node in asked:
        path = deployed.site(node - 1) / "budget.toml"
        assert not list(path.parent.glob("runs/*/opened-*/*"))
        path.write_text(path.read_text().replace(new, old))
    deployed.run(resume=True)
    for node, (head, body) in asked.items():  # its answer is kept now, and is not given again either
        site = Site(deployed.site(node - 1))
        site.answer(head, body)
        path = site.folder / "budget.toml"
        path.write_text(path.read_text().replace(old, new))
        with pytest.raises(Refused, match=words):
            site.answer(head, body)


def test_a_copy_of_a_site_opens_no_second_sum_of_a_round_that_the_site_has_opened(federation):
    """Two sums that differ by one report give that report away; each folder has a list of openings of its own."""
    deployed, asked = federation(), []

    def ask(head, body, node):
        if head["kind"] == "open":  # reported and paid for, not yet opened: the copy's ledger is as far as the site's
            site = deployed.site(node - 1)
            (site / "node.pub").write_text("ssh-ed25519 the-key-of-one-site\n")
            asked.append((head, body, shutil.copytree(site, site.with_name("copied"))))

    deployed.run(Line(deployed, ask=ask))
    ((head, body, copied),) = asked
    heard = unpack(body)
    fewer = dict(list(heard.tensors.items())[:-1])
    with pytest.raises(Refused):
        Site(copied).answer(head, pack(replace(heard, tensors=fewer)))
    assert "one budget twice" in (copied / "log.jsonl").read_text().splitlines()[-1]


def cheating(deployed, answer, name="client-0"):
    """The cheating site behind an answer: it has its own folder, and knows the place from its honest report."""
    head = parse(unpack(answer).tensors["report"].numpy().tobytes())[0]
    folder = deployed.folder / "sites" / name / "keys"
    public, members = keys.load_as(paillier.PublicKey, folder / keys.PUBLIC_FILE), keys.load_members(folder)
    size = sum(tensor.numel() for tensor in unpack(answer).tensors.values()) // public.ciphertext_bytes
    context = RoundContext(head.run, head.round, public, head.roster, (size,), members)
    count = next(n for n in range(size, 0, -1) if replace(context, chunk_sizes=(n,)).body_bytes(0) == head.size)
    return CheatingSite(
        replace(context, chunk_sizes=(count,)), keys.load_signer(folder / f"{name}{keys.SIGNING}")
    ), count


def out_of_grid(deployed, *, rounds=(0,)):
    """The first site fills every lane in some rounds."""

    def answer(head, said, raw, node):
        if head["kind"] == "train" and node == 1 and head["round"] in rounds:
            cheat, count = cheating(deployed, raw)
            return pack(message("client-0", cheat.report([(1 << 2046) - 1] * count)))
        return None

    return answer


DROPPED = (
    "is out of range: a report did not keep to the grid; the round is dropped, one of client-0, client-1, client-2"
)


@pytest.mark.parametrize("protect", [PROTECT, SHORT])
def test_a_signed_report_out_of_the_grid_drops_its_round_and_the_run_goes_on(federation, protect):
    deployed = federation(rounds=2, protect=protect)
    history = deployed.run(Line(deployed, answer=out_of_grid(deployed)))
    assert [record["opened"] for record in history.rounds] == [0, 1]
    assert history.rounds[0]["refused"] == {"the sum of group all": f"the sum of round 1 {DROPPED}"}
    assert history.rounds[0]["update_norm"] == 0.0
    assert history.rounds[1]["refused"] == {}
    assert [charges(deployed, index) for index in range(3)] == [2, 2, 2]  # what was charged stays charged


def test_a_dropped_round_stays_dropped_when_the_run_is_resumed(federation, tmp_path):
    deployed = federation(rounds=2)
    cheat = Line(deployed, answer=out_of_grid(deployed))

    def ask(head, body, node):
        if head["kind"] == "open":
            raise KeyboardInterrupt  # the server is killed with the sum on its way
        return None

    cheat.ask = ask
    with pytest.raises(KeyboardInterrupt):
        deployed.run(cheat)
    history = deployed.run(Line(deployed, answer=out_of_grid(deployed)), resume=True)
    assert history.rounds[0]["refused"] == {"the sum of group all": f"the sum of round 1 {DROPPED}"}
    assert [record["opened"] for record in history.rounds] == [0, 1]


def test_a_site_that_opens_a_sum_with_no_sum_drops_the_round_only(federation):
    deployed = federation(rounds=2)

    def answer(head, said, raw, node):
        return raw[:-1] if head["kind"] == "open" and head["round"] == 0 else None

    history = deployed.run(Line(deployed, answer=answer))
    assert [record["opened"] for record in history.rounds] == [0, 1]
    opener = opener_of(deployed.names, run=f"{agreed(deployed).run}-all", round=0)
    text = f"the sum of round 1 is not known: {opener} opened it with something that is no sum; the round is dropped"
    assert history.rounds[0]["refused"] == {"the sum of group all": text}


def borrowing(deployed, line):
    """The first site signs the second's report of the round before as its own."""

    def answer(head, said, raw, node):
        if head["kind"] != "train" or node != 1 or head["round"] == 0:
            return None
        cheat, _ = cheating(deployed, raw)
        earlier = [tensor.numpy().tobytes() for tensor in unpack(line.reports[0, 2]).tensors.values()]
        theirs = ciphertexts_of(replace(cheat.context, round=0), earlier)
        line.forged = cheat.borrowed(theirs, times=1, offset=5)
        return pack(message("client-0", line.forged))

    return answer


def test_a_site_that_signs_anothers_last_report_is_named_and_is_in_no_sum(federation):
    deployed = federation(rounds=2)
    line = Line(deployed)
    line.answer = borrowing(deployed, line)
    history = deployed.run(line)
    assert [record["opened"] for record in history.rounds] == [1, 1]
    assert list(history.rounds[1]["refused"]) == ["client-0"]
    assert "nothing shows that it knows what it sealed" in history.rounds[1]["refused"]["client-0"]
    shown = [parse(tensor.numpy().tobytes())[0] for tensor in unpack(line.asked[1]).tensors.values()]
    assert sorted((header.client, header.round) for header in shown) == [("client-1", 1), ("client-2", 1)]


def test_a_server_that_shows_the_holders_a_borrowed_report_gets_no_sum(federation):
    deployed = federation(rounds=2)
    line = Line(deployed)
    line.answer = borrowing(deployed, line)

    def ask(head, body, node):
        if head["kind"] == "open" and head["round"] == 1:
            sent = [*unpack(body).tensors.values(), torch.frombuffer(bytearray(*line.forged), dtype=torch.uint8)]
            return head, pack(Message("server", {f"{i:06d}": report for i, report in enumerate(sent)}))
        return None

    line.ask = ask
    with pytest.raises(TacitError, match="The report of 'client-0' is refused: nothing shows that it knows"):
        deployed.run(line)


@pytest.mark.parametrize("bad", [b"", b"\xff" * 4096, "nested header", "nested facts", "anothers name"])
def test_a_message_that_is_no_report_costs_its_sender_the_round_and_nobody_else(federation, bad, tmp_path):
    deployed = federation()
    nested = b"[" * 2000 + b"]" * 2000

    def answer(head, said, raw, node):
        if head["kind"] != "train" or node != 1:
            return None
        honest = unpack(raw)
        other = {
            "nested header": lambda: message("client-0", [len(nested).to_bytes(4, "big") + nested + bytes(64)]),
            "nested facts": lambda: Message("client-0", honest.tensors, {"a": json.loads("[" * 500 + "]" * 500)}),
            "anothers name": lambda: Message("client-1", honest.tensors),
        }
        return bad if isinstance(bad, bytes) else pack(other[bad]())

    history = deployed.run(Line(deployed, answer=answer))
    (record,) = history.rounds
    assert record["opened"] == 1
    assert list(record["refused"]) == ["client-0"]


def test_proofs_leave_the_model_bit_for_bit_what_it_is_in_clear(federation, tmp_path):
    deployed = federation(rounds=2)
    history = deployed.run()
    clear = deployed.experiment.model_copy(update={"protect": Unprotected()})
    tacit.run(clear, out=tmp_path / "clear")
    assert same_model(tmp_path / "clear", history.out)
