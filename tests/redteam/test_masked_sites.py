"""A lying server and sums under masks: real sites, on whose folders nothing but honest questions may leave a trace."""

import json
import shutil
import sqlite3
from dataclasses import replace

import pytest
import torch
from federation.flower.conftest import Federation, Line
from trained import changed

from tacit.crypto import keys
from tacit.crypto.keys import new_signer
from tacit.crypto.masks import Attempt, Joined, Party, Setup
from tacit.deploy.site import legs
from tacit.deploy.site.masks import framed, listed, parted, read_list
from tacit.deploy.site.replies import Paid, question_hash
from tacit.deploy.site.requests import Roster
from tacit.deploy.site.site import UNSAID, Site
from tacit.errors import Refused
from tacit.types import Message
from tacit.wire import pack, unpack

BASE = {
    "name": "masked",
    "data": {"clients": 4, "examples_per_client": 30},
    "train": {"rounds": 2, "local_steps": 1},
    "privacy": {"kind": "distributed", "epsilon": 8.0, "delta": 1e-3, "fewest_reports": 3},
    "protect": {"kind": "masks"},
    "run": {"randomness": "os", "workers": 1},
}
EVERYBODY = [f"client-{k}" for k in range(4)]


class Liar:
    """A server that is honest up to the first question of a kind in a round, and knows all that it was sent by then."""

    def __init__(self, folder, *, stop, round=0, without=()):
        self.deployed, self.bodies, self.sent, self.heads = Federation(folder, changed(BASE, {})), {}, {}, {}

        def see(message):
            head = json.loads(message.content["tacit"]["json"])
            if (head["kind"], head.get("round")) == (stop, round):
                raise KeyboardInterrupt

        def change(ask, node, reply):
            self.heads[ask["kind"], node] = ask
            if ask["kind"] == "train" and node - 1 in without and ask["round"] == round:
                return None
            self.sent[ask["kind"], ask.get("round"), node - 1] = reply
            return reply

        line = self.deployed.grid(Line, see=see, change=change)
        assert isinstance(line, Line)
        with pytest.raises(KeyboardInterrupt):
            self.deployed.run(line, round_seconds=2, join_seconds=120)
        self.bodies = {(ask["kind"], ask.get("round")): body for ask, body in line.asked}
        (self.run,) = {path.name for path in (self.deployed.site(0) / "runs").iterdir()}
        self.line = line

    def ask(self, index, kind, body=b"", *, round=0, **more):
        """Any question to one site, which is as new as after a restart."""
        ask = {"kind": kind, "run": self.run, "round": round, "group": "all"}
        if kind == "train":
            ask = {"kind": kind, "run": self.run, "round": round}
        return Site(self.deployed.site(index)).answer(ask | more, body)[1]

    def sign(self, index, survivors, **how):
        return self.ask(index, "sign", listed(survivors), **how)

    def unmask(self, index, survivors, signatures, **how):
        return self.ask(index, "unmask", listed(survivors, signatures), **how)

    def signer(self, index):
        """The key of a site that is on the server's side."""
        return keys.load_signer(self.deployed.site(index) / "keys" / f"client-{index}{keys.SIGNING}")

    def joined(self, index, round=0, body=None):
        """An attempt as a site on the server's side has joined it: it signs whatever it likes."""
        legs, body = self.legs(index), body or self.bodies["train", round]
        setups = parted(body, "all", legs.roster)[1]
        joined = legs.party.join(Attempt(legs.roster, round), setups.values(), model=question_hash(body).hex())
        return joined

    def legs(self, index):
        site = Site(self.deployed.site(index))
        site.answer({**self.heads["agree", index + 1]}, b"")
        return site._held[self.run].parts.algorithm.groups[f"client-{index}"].seal.legs  # type: ignore[attr-defined]

    def forged(self, index, survivors):
        mine = self.joined(index)
        return mine.party.signer.sign(mine.attempt.survivors(mine.model, mine.shares, survivors))

    def charges(self, index):
        with sqlite3.connect(self.deployed.site(index) / "ledger.db") as ledger:
            try:
                return [round for (round,) in ledger.execute("SELECT round FROM charges ORDER BY round")]
            except sqlite3.OperationalError:
                return []

    def traces(self, index, kind):
        return [path.name for path in (self.deployed.site(index) / "runs" / self.run).glob(f"{kind}-all/*")]


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Everybody has reported in round 0; nobody has been asked for more. Tests copy it."""
    return Liar(tmp_path_factory.mktemp("reported") / "federation", stop="sign")


@pytest.fixture
def liar(reported, tmp_path):
    return copied(reported, tmp_path)


def copied(known, tmp_path):
    """The same federation in another folder, as it stands."""
    made = object.__new__(Liar)
    made.__dict__ |= known.__dict__
    made.deployed = object.__new__(Federation)
    made.deployed.__dict__ |= known.deployed.__dict__ | {"folder": tmp_path / "copy"}
    shutil.copytree(known.deployed.folder, made.deployed.folder)
    return made


LISTS = {
    "two names": (["client-0", "client-1"], "has 2 survivors, and a sum needs 3"),
    "without itself": (EVERYBODY[1:], "does not name this client"),
    "a foreign name": (["client-0", "client-1", "client-2", "stranger"], "does not take part"),
    "a name twice": (["client-0", "client-0", "client-1", "client-2"], "names a client twice"),
    "another order": (EVERYBODY[::-1], "names a client twice"),
}


@pytest.mark.parametrize("which", LISTS)
def test_a_list_that_no_honest_server_makes_is_neither_signed_nor_unmasked_and_leaves_nothing(liar, which):
    survivors, why = LISTS[which]
    for ask in (lambda: liar.sign(0, survivors), lambda: liar.unmask(0, survivors, {})):
        with pytest.raises(Refused, match=why):
            ask()
    assert liar.traces(0, "signed") == liar.traces(0, "unmasked") == []
    assert liar.sign(0, EVERYBODY)  # it goes on


def test_a_site_signs_one_list_of_a_round_and_the_same_again_also_after_a_restart(liar):
    first = liar.sign(0, EVERYBODY)
    for other in (EVERYBODY[:3], ["client-0", "client-1", "client-3"]):
        with pytest.raises(Refused, match="answered already"):
            liar.sign(0, other)
    assert liar.sign(0, EVERYBODY) == first
    signatures = {name: liar.forged(int(name[-1]), EVERYBODY[:3]) for name in EVERYBODY[:3]}
    with pytest.raises(Refused, match="asked with other parameters"):  # all the others are on the server's side
        liar.unmask(0, EVERYBODY[:3], signatures)


def test_of_each_participant_a_site_gives_one_share_for_ever_whoever_signs(liar):
    some, everybody = EVERYBODY[:3], EVERYBODY
    signed = {name: liar.sign(int(name[-1]), some) for name in some}
    given = liar.unmask(0, some, signed)
    forged = {name: liar.forged(int(name[-1]), everybody) for name in everybody}
    with pytest.raises(Refused, match="answered already"):
        liar.unmask(0, everybody, forged)
    assert liar.unmask(0, some, signed) == given
    mine = liar.joined(0)
    own, key = mine.shares["client-3"]
    assert given[-33:] == key.to_bytes(33, "big") != own.to_bytes(33, "big")


def test_nothing_is_unmasked_below_t_signatures_of_distinct_survivors_on_this_very_list(liar):
    signed = {name: liar.sign(int(name[-1]), EVERYBODY) for name in EVERYBODY}
    two = dict(list(signed.items())[:2])
    wrong = {
        "too few": two,
        "one repeated": two | dict.fromkeys(("client-2", "client-3"), signed["client-0"]),
        "another list": two | {"client-2": liar.forged(2, EVERYBODY[:3])},
        "a stranger's": two | {"stranger": new_signer("stranger").sign(b"anything")},
        "under another name": two | {"client-2": signed["client-3"]},
    }
    for which, signatures in wrong.items():
        with pytest.raises(Refused, match="2 survivors signed this list, and 3 must"):
            liar.unmask(0, EVERYBODY, signatures)
        assert liar.traces(0, "unmasked") == [], which
    assert liar.unmask(0, EVERYBODY, signed)


def test_two_sums_of_a_round_take_more_than_n_minus_2t_helpers(liar):
    """Four members, t = 3: with one on the server's side only one of two lists is opened, with two both are."""
    one, other = ["client-0", "client-2", "client-3"], ["client-1", "client-2", "client-3"]
    signed = {"client-0": liar.sign(0, one), "client-2": liar.sign(2, one), "client-3": liar.forged(3, one)}
    assert liar.unmask(0, one, signed)
    signed = {"client-1": liar.sign(1, other), "client-3": liar.forged(3, other)}
    with pytest.raises(Refused, match="answered already"):
        liar.sign(2, other)
    with pytest.raises(Refused, match="2 survivors signed this list, and 3 must"):
        liar.unmask(1, other, signed)
    assert liar.unmask(1, other, signed | {"client-2": liar.forged(2, other)})


def test_a_site_that_was_dropped_helps_to_open_no_sum_of_that_round(tmp_path):
    liar = Liar(tmp_path / "federation", stop="sign", without=(3,))
    some = EVERYBODY[:3]
    signed = {name: liar.sign(int(name[-1]), some) for name in some}
    with pytest.raises(Refused, match="does not name this client"):
        liar.sign(3, some)
    with pytest.raises(Refused, match="does not name this client"):
        liar.unmask(3, some, signed)


def test_a_site_that_has_not_reported_signs_and_unmasks_nothing(tmp_path):
    liar = Liar(tmp_path / "federation", stop="train")
    for ask in (lambda: liar.sign(0, EVERYBODY), lambda: liar.unmask(0, EVERYBODY, {})):
        with pytest.raises(Refused, match="has no report of round 1"):
            ask()
    with pytest.raises(Refused, match="in no such sum"):
        liar.ask(0, "sign", listed(EVERYBODY), group="../../x")
    with pytest.raises(Refused, match="list of survivors cannot be read"):
        liar.ask(0, "sign", b"nothing")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Everybody has reported in round 0 and given its setup for round 1, and nobody has been asked to train in it."""
    return Liar(tmp_path_factory.mktemp("prepared") / "federation", stop="train", round=1)


@pytest.fixture
def next_round(prepared, tmp_path):
    return copied(prepared, tmp_path)


def setups_of(liar, round):
    """Everybody's honest setups for a round, by name."""
    found, roster = {}, liar.legs(0).roster
    for index, name in enumerate(EVERYBODY):
        found[name] = Setup.of(name, liar.ask(index, "prepare", round=round), roster)
    return found, roster


def question(liar, setups, roster, *, params=None):
    inner = unpack(parted(liar.bodies["train", 0], "all", roster)[0])
    tensors = inner.tensors if params is None else {"params": params}
    return framed(
        pack(replace(inner, tensors=tensors, facts=inner.facts | {"turn": 1})), {"all": setups}, {"all": roster}
    )


CRAFTED = {
    "of the round before": lambda one, two, old, liar: old,
    "another key": lambda one, two, old, liar: replace(one, key=two.key),
    "no key": lambda one, two, old, liar: resigned(liar, replace(one, key=bytes(32))),
    "another's signature": lambda one, two, old, liar: replace(one, signature=two.signature),
    "exchanged ciphertexts": lambda one, two, old, liar: replace(
        one, envelopes=two.envelopes | {"client-2": bytes(82)}
    ),
    "ciphertexts for another": lambda one, two, old, liar: replace(
        one, envelopes=one.envelopes | {"client-0": one.envelopes["client-3"]}
    ),
    "no ciphertexts": lambda one, two, old, liar: replace(one, envelopes={}),
    "of a stranger": lambda one, two, old, liar: stranger(liar, one),
}


def resigned(liar, setup):
    legs = liar.legs(1)
    return replace(setup, signature=legs.party.signer.sign(setup.content(Attempt(legs.roster, 1))))


def stranger(liar, setup):
    party = Party(new_signer("client-1"), bytes(32))
    return replace(setup, signature=party.signer.sign(setup.content(Attempt(liar.legs(1).roster, 1))))


@pytest.mark.parametrize("which", CRAFTED)
def test_crafted_setups_are_refused_before_anything_is_paid_or_drawn(next_round, which):
    liar = next_round
    setups, roster = setups_of(liar, 1)
    old = parted(liar.bodies["train", 0], "all", roster)[1]["client-1"]
    bad = CRAFTED[which](setups["client-1"], setups["client-2"], old, liar)
    with pytest.raises(Refused, match="The round's masks are refused"):
        liar.ask(0, "train", question(liar, setups | {"client-1": bad}, roster), round=1)
    assert liar.charges(0) == [0]
    assert liar.ask(0, "train", question(liar, setups, roster), round=1)  # the honest question is answered
    assert liar.charges(0) == [0, 1]


def test_too_few_participants_or_a_round_without_itself_or_without_setups_are_refused_for_nothing(next_round):
    liar = next_round
    setups, roster = setups_of(liar, 1)
    few = {name: setups[name] for name in EVERYBODY[:2]}
    others = {name: setups[name] for name in EVERYBODY[1:]}
    bare = parted(question(liar, setups, roster), "all", roster)[0]
    for body in (question(liar, few, roster), question(liar, others, roster), bare):
        with pytest.raises(Refused, match="The round's masks are refused"):
            liar.ask(0, "train", body, round=1)
    assert liar.charges(0) == [0]


def test_sites_that_were_sent_two_models_sign_nothing_for_each_other(next_round):
    liar = next_round
    setups, roster = setups_of(liar, 1)
    size = unpack(parted(liar.bodies["train", 0], "all", roster)[0]).tensors["params"].numel()
    for index in range(4):
        told = question(liar, setups, roster, params=torch.full((size,), 0.1 * (index == 0)))
        liar.ask(index, "train", told, round=1)
    signed = {name: liar.sign(int(name[-1]), EVERYBODY, round=1) for name in EVERYBODY}
    with pytest.raises(Refused, match="1 survivors signed this list"):
        liar.unmask(0, EVERYBODY, signed, round=1)
    with pytest.raises(Refused, match="2 survivors signed this list"):
        liar.unmask(1, EVERYBODY, {name: signed[name] for name in EVERYBODY[:3]}, round=1)


def test_signatures_and_lists_of_one_round_open_no_other(next_round):
    liar = next_round
    setups, roster = setups_of(liar, 1)
    before = {name: liar.forged(int(name[-1]), EVERYBODY) for name in EVERYBODY}
    for index in range(4):
        liar.ask(index, "train", question(liar, setups, roster), round=1)
    with pytest.raises(Refused, match="0 survivors signed this list"):
        liar.unmask(0, EVERYBODY, before, round=1)
    with pytest.raises(Refused):  # what it held of round 0 is gone
        liar.unmask(0, EVERYBODY[:3], before, round=0)


def test_a_site_that_was_told_of_another_roster_joins_no_round(tmp_path):
    """Budgets are in the label of every key, so that nobody's shares can be read under two of them."""
    deployed = Federation(tmp_path / "federation", changed(BASE, {}))
    refused = []

    def see(message):
        head = json.loads(message.content["tacit"]["json"])
        if head["kind"] == "agree" and message.metadata.dst_node_id == 1:
            roster = Roster.of(head["roster"])
            head["roster"] = replace(roster, sizes=(*roster.sizes[:3], 29)).record()
            message.content["tacit"]["json"] = json.dumps(head)

    history = deployed.run(deployed.grid(see=see))
    refused = [record["absent"].get("client-0") for record in history.rounds]
    assert all(record["opened"] == 1 for record in history.rounds)  # of the three that were told the same
    assert all(why for why in refused)
    with sqlite3.connect(deployed.site(0) / "ledger.db") as ledger:
        assert ledger.execute("SELECT count(*) FROM charges").fetchone() == (0,)


@pytest.mark.parametrize("again", [False, True])
def test_a_report_leaves_as_the_very_same_bytes_or_not_at_all_whatever_became_of_its_files(liar, again):
    """Somebody restores the runs of yesterday beside today's ledger: under the same masks the difference of two reports is bare."""
    site = liar.deployed.site(0)
    if again:
        first = liar.ask(0, "train", liar.bodies["train", 0])
        assert liar.ask(0, "train", liar.bodies["train", 0]) == first
    for path in (site / "runs" / liar.run).glob("round-*"):
        path.unlink()
    charged = liar.charges(0)
    with pytest.raises(Refused, match="a second report would leave under the same masks"):
        liar.ask(0, "train", liar.bodies["train", 0])
    assert liar.charges(0) == charged
    kept = (site / "runs" / liar.run / "round-0000000.answer").exists()
    assert not kept


def test_a_report_that_was_kept_before_the_site_was_killed_is_noted_before_it_leaves(next_round, monkeypatch):
    """Killed between the answer's file and the ledger's note, it is sent after a restart; then somebody deletes the file."""
    liar = next_round
    setups, roster = setups_of(liar, 1)
    body = question(liar, setups, roster)

    def killed(*about):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(legs, "note_report", killed)
        with pytest.raises(KeyboardInterrupt):
            liar.ask(0, "train", body, round=1)
    assert liar.ask(0, "train", body, round=1)
    for path in (liar.deployed.site(0) / "runs" / liar.run).glob("round-*"):
        path.unlink()
    with pytest.raises(Refused, match="a second report would leave under the same masks"):
        liar.ask(0, "train", body, round=1)


def test_a_site_that_was_killed_before_its_report_signs_and_unmasks_nothing(next_round, monkeypatch):
    """It has joined the round, which is on its disk, and nothing that the list could be about has left."""
    liar = next_round
    setups, roster = setups_of(liar, 1)

    def killed(*about):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Paid, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            liar.ask(0, "train", question(liar, setups, roster), round=1)
    assert (liar.deployed.site(0) / "runs" / liar.run / "round-0000001.joined").exists()
    for ask in (lambda: liar.sign(0, EVERYBODY, round=1), lambda: liar.unmask(0, EVERYBODY, {}, round=1)):
        with pytest.raises(Refused, match="has no report of round 2"):
            ask()


def test_no_second_list_is_signed_or_unmasked_whatever_became_of_the_first_ones_files(liar):
    run = liar.deployed.site(0) / "runs" / liar.run
    signed = {name: liar.sign(int(name[-1]), EVERYBODY) for name in EVERYBODY}
    liar.unmask(0, EVERYBODY, signed)
    shutil.rmtree(run / "signed-all")
    shutil.rmtree(run / "unmasked-all")
    some = EVERYBODY[:3]
    for ask in (
        lambda: liar.sign(0, some),
        lambda: liar.unmask(0, some, {name: liar.forged(int(name[-1]), some) for name in some}),
    ):
        with pytest.raises(Refused, match=UNSAID.split(";")[0]):
            ask()
        shutil.rmtree(run / "signed-all", ignore_errors=True)
        shutil.rmtree(run / "unmasked-all", ignore_errors=True)


def test_seeds_of_a_run_are_not_those_of_the_run_before_whatever_the_server_calls_it(liar):
    """Whoever could bring a deleted run back would have the same masks under another vector."""
    legs = liar.legs(0)
    before = legs.setup(1)
    (liar.deployed.site(0) / "runs" / liar.run / "masks.secret").unlink()
    assert liar.legs(0).setup(1) != before


def test_what_a_site_writes_is_its_owners_and_a_damaged_file_is_said_in_one_sentence(liar):
    run = liar.deployed.site(0) / "runs" / liar.run
    for name in ("masks.secret", "round-0000000.joined"):
        assert (run / name).stat().st_mode & 0o077 == 0
    (run / "round-0000000.joined").write_text("{")
    with pytest.raises(Refused, match=UNSAID.split(";")[0]):
        liar.sign(0, EVERYBODY)
    (run / "masks.secret").write_bytes(b"short")
    with pytest.raises(Refused):
        liar.ask(0, "prepare", round=1)


@pytest.mark.parametrize("cut", [0, 1, 7, 100])
def test_mutated_questions_around_masks_end_no_site_and_cost_nothing(next_round, cut):
    liar = next_round
    setups, roster = setups_of(liar, 1)
    body = question(liar, setups, roster)
    for bad in (
        body[: len(body) - cut - 1],
        body[cut + 1 :],
        pack(Message("server", {}, {"all": EVERYBODY})),
        b"\xff" * 99,
    ):
        for kind in ("train", "sign", "unmask"):
            with pytest.raises(Refused):
                liar.ask(0, kind, bad, round=1)
    assert liar.charges(0) == [0]


def test_read_lists_are_what_was_written():
    names, signatures = read_list(listed(EVERYBODY, {"client-1": bytes(64)}))
    assert (names, signatures) == (EVERYBODY, {"client-1": bytes(64)})
    with pytest.raises(Refused, match="another length"):
        read_list(listed(EVERYBODY, {"client-1": bytes(63)}))


def test_a_site_that_was_restarted_holds_no_key_by_which_it_could_mask_again(liar):
    legs = liar.legs(0)
    again = legs.noted(0, liar.deployed.site(0) / "runs" / liar.run / "round-0000000.joined")
    assert isinstance(again, Joined)
    assert again.pairs == {}
