"""Masks: what cancels, what is refused, and every attack of ePrint 2017/281 that a client can see."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from tacit.crypto.grid import WIDEST, Lanes
from tacit.crypto.keys import new_signer
from tacit.crypto.masked import one_process
from tacit.crypto.masks import Attempt, Collecting, Joined, Party, Roster, Setup, box_key, expand
from tacit.crypto.seal import Plain
from tacit.crypto.threshold import PRIME, fewest_shares, joined, shared
from tacit.errors import BadInput, BadOpening, GridOverflow, MessageRefused, Refused, TooFewReports
from tacit.types import Message, Shared

MODEL, SIZE = "model of round 1", 50
SEEDS = st.binary(min_size=32, max_size=32)


class Run:
    """Members of a run and one attempt, all of whose legs a test may take."""

    def __init__(self, n=5, *, parties=None, at_least=None, colluding=1, round=0, bits=32, absent=()):
        self.parties = parties or [Party(new_signer(f"site-{k}"), bytes([k + 1]) * 32) for k in range(n)]
        self.roster = Roster(
            "run",
            {one.name: one.signer.public for one in self.parties},
            at_least or fewest_shares(of=n, colluding=colluding),
            colluding,
        )
        self.attempt, self.bits = Attempt(self.roster, round), bits
        self.setups = {one.name: one.setup(self.attempt) for one in self.parties if one.name not in absent}
        self.joined = {
            one.name: one.join(self.attempt, self.setups.values(), model=MODEL)
            for one in self.parties
            if one.name in self.setups
        }
        rng = np.random.default_rng(0)
        self.vectors = {name: rng.integers(-(10**6), 10**6, SIZE) for name in self.setups}

    def collected(self, *, without=()):
        made = Collecting.of(self.attempt, MODEL, self.setups, SIZE, self.bits)
        for name, mine in self.joined.items():
            if name not in without:
                made.add(name, mine.mask(self.vectors[name], bits=self.bits))
        return made

    def signatures(self, survivors):
        return {name: self.joined[name].agree(survivors) for name in survivors}

    def answers(self, survivors, *, without=()):
        signed = self.signatures(survivors)
        return {name: self.joined[name].unmask(survivors, signed) for name in survivors if name not in without}

    def sum(self, names):
        return sum(self.vectors[name] for name in names)


@given(
    n=st.integers(3, 7),
    absent=st.integers(0, 3),
    late=st.integers(0, 3),
    silent=st.integers(0, 2),
    bits=st.sampled_from([32, 64]),
)
def test_the_opened_sum_is_the_sum_of_the_survivors_whoever_drops_out_at_which_step(n, absent, late, silent, bits):
    names = [f"site-{k}" for k in range(n)]
    threshold = fewest_shares(of=n, colluding=1)
    if n - absent - late < threshold or n - absent - late - silent < threshold:
        return
    run = Run(n, bits=bits, absent=names[:absent])
    collecting = run.collected(without=names[absent : absent + late])
    survivors = collecting.survivors
    opened = collecting.opened(run.answers(survivors, without=survivors[:silent]))
    assert (opened == run.sum(survivors)).all()


def test_every_pair_cancels_every_own_mask_is_needed_and_a_masked_report_looks_like_no_integers():
    """The slow twin: masks written out from the seeds of all clients."""
    run = Run(4)
    total = np.sum([run.vectors[name] for name in run.setups], axis=0).astype("<u4")
    for party in run.parties:
        total += expand(run.attempt.own_key(MODEL, party.name, party._seed(run.attempt, "own")), SIZE, bits=32)
        masked = run.joined[party.name].mask(run.vectors[party.name], bits=32).astype(np.float64)
        assert abs(masked.mean() / 2**32 - 0.5) < 6 * (1 / 12 / SIZE) ** 0.5
        assert masked.std() / 2**32 > 0.2
    assert (run.collected().total == total).all()


def test_integers_at_the_edge_of_the_modulus_come_back():
    run = Run(3, bits=32)
    run.vectors = dict.fromkeys(run.setups, np.array([2**31 - 1, -(2**31), 0, 1, -1] * 10))
    run.vectors["site-1"] = run.vectors["site-2"] = np.zeros(SIZE, dtype=np.int64)
    collecting = run.collected()
    assert (collecting.opened(run.answers(collecting.survivors)) == run.vectors["site-0"]).all()


@given(
    reach=st.one_of(
        st.integers(1, 2**12), st.integers(0, 40).map(lambda k: 2**31 // 3 + k - 20), st.integers(2**31, 2**58)
    ),
    signs=st.lists(st.sampled_from([-1, 1]), min_size=3, max_size=3),
)
def test_the_largest_integers_of_all_clients_come_back_and_none_beyond_is_taken(reach, signs):
    """2^31 / 3 is where the sum of three leaves 32 bits."""
    lanes = Lanes(4, reach, 3, WIDEST)
    names = ("a", "b", "c")
    seals = (Plain(lanes, 3), one_process(lanes, names, at_least=3, colluding=1))
    edge = np.array([reach, -reach, 0, reach - 1])
    for seal in seals:
        collected = seal.collect(round=0)
        for name, sign in zip(names, signs, strict=True):
            report = seal.report(Shared(torch.from_numpy(sign * edge)), client=name, round=0)
            collected.accept(Message(name, report))
        assert (np.asarray(collected.open()) == sum(signs) * edge).all()
    with pytest.raises(GridOverflow):
        seals[1].report(Shared(torch.from_numpy(edge + np.array([1, 0, 0, 0]))), client="a", round=0)


@given(seed=SEEDS, secret=SEEDS, of=st.integers(2, 12))
def test_nobody_is_dealt_the_share_at_index_0_which_is_the_seed_itself(seed, secret, of):
    threshold = fewest_shares(of=of, colluding=1)
    if threshold > of:
        return
    dealt = shared(seed, of=of, threshold=threshold, secret=secret)
    assert len(dealt) == of
    assert int.from_bytes(seed, "big") not in dealt
    assert joined(list(enumerate(dealt, start=1))[:threshold]) == seed
    assert joined(list(enumerate(dealt))[:threshold]) != seed  # places counted from 0 would lead elsewhere


def test_the_first_member_of_a_roster_holds_share_1_of_each_seed():
    run = Run(5)
    first = run.parties[0]
    for party in run.parties[1:]:
        for kind, held in zip(("own", "key"), run.joined[first.name].shares[party.name], strict=True):
            seed = party._seed(run.attempt, kind)
            secret = party._shares(run.attempt)
            assert held == secret[0][("own", "key").index(kind)]
            assert held != int.from_bytes(seed, "big")


def test_one_process_hides_each_report_anew_in_each_round_and_opens_the_sum_without_an_absentee():
    seal = one_process(Lanes(SIZE, 2**20, 4, WIDEST), [f"site-{k}" for k in range(4)], at_least=3, colluding=1)
    vector, sent = torch.arange(SIZE), set()
    for round in range(2):
        collected = seal.collect(round=round)
        for k in range(3):
            report = seal.report(Shared(vector + k), client=f"site-{k}", round=round)
            sent.add(report["report"].numpy().tobytes())
            collected.accept(Message(f"site-{k}", report))
            if k < 2:
                with pytest.raises(TooFewReports):
                    collected.open()
        assert (np.asarray(collected.open()) == 3 * vector.numpy() + 3).all()
    assert len(sent) == 6


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        (["site-0", "site-1", "site-2"], "needs 4"),
        (["site-1", "site-2", "site-3", "site-4"], "does not name this client"),
        (["site-0", "site-1", "site-2", "stranger"], "does not take part"),
        (["site-0", "site-0", "site-1", "site-2"], "twice"),
        (["site-3", "site-2", "site-1", "site-0"], "twice, or one that"),
    ],
)
def test_a_list_that_is_too_short_or_without_me_or_with_a_foreign_name_is_not_signed(survivors, why):
    run = Run()
    with pytest.raises(Refused, match=why):
        run.joined["site-0"].agree(survivors)
    with pytest.raises(Refused, match=why):
        run.joined["site-0"].unmask(survivors, {})


def test_nothing_is_unmasked_below_t_signatures_however_often_one_is_shown():
    run = Run(5)
    survivors = sorted(run.setups)
    signed = run.signatures(survivors)
    enough = dict(itertools.islice(signed.items(), run.roster.threshold))
    assert run.joined["site-0"].unmask(survivors, enough)
    few = dict(itertools.islice(signed.items(), run.roster.threshold - 1))
    with pytest.raises(Refused, match="must before anything is unmasked"):
        run.joined["site-0"].unmask(survivors, few)
    repeated = few | {name: next(iter(few.values())) for name in survivors if name not in few}
    with pytest.raises(Refused, match="must before anything is unmasked"):
        run.joined["site-0"].unmask(survivors, repeated)


@pytest.mark.parametrize("other", ["round", "model", "list", "participants"])
def test_signatures_of_another_round_model_list_or_roster_do_not_count(other):
    run = Run(5)
    survivors = sorted(run.setups)
    absent = ["site-4"] if other == "participants" else ()
    theirs = Run(5, parties=run.parties, round=int(other == "round"), absent=absent)
    if other == "model":
        theirs.joined = {name: replace(mine, model="another") for name, mine in run.joined.items()}
    listed = survivors[:4] if other in ("list", "participants") else survivors
    signed = (run if other == "list" else theirs).signatures(listed)
    with pytest.raises(Refused, match="must before anything"):
        run.joined["site-0"].unmask(survivors, signed)


def test_of_each_participant_one_share_is_given_and_never_both():
    run = Run(5)
    survivors = ["site-0", "site-1", "site-2", "site-3"]
    given_ = run.joined["site-0"].unmask(survivors, run.signatures(survivors))
    own, key = run.joined["site-0"].shares["site-4"]
    assert given_["site-4"] == key != own
    assert all(given_[name] == run.joined["site-0"].shares[name][0] for name in survivors)


def test_two_lists_open_two_sums_where_2t_is_at_most_n_plus_c_and_not_above():
    for n, c in ((5, 1), (6, 1), (6, 2), (9, 3)):
        t = fewest_shares(of=n, colluding=c)
        assert 2 * t > n + c >= 2 * (t - 1)
        honest_on_one, honest_on_other = (n - c + 1) // 2, (n - c) // 2
        assert honest_on_other + c < t, "the colluders sign both lists, and each honest one signs its own"
        assert honest_on_one + c >= t - 1


def test_a_survivor_that_never_gave_its_own_mask_stays_hidden_although_its_pairs_are_known():
    """The server says that a client it has heard dropped out: it learns its pair masks, and its own mask still hides the report."""
    run = Run(5)
    heard = run.joined["site-4"].mask(run.vectors["site-4"], bits=32)
    survivors = ["site-0", "site-1", "site-2", "site-3"]
    answers = run.answers(survivors)
    revealed = X25519PrivateKey.from_private_bytes(run.collected()._seed("site-4", "key", answers))
    bare = heard.copy()
    for other in survivors:
        mask = expand(
            run.attempt.pair_key(
                MODEL, "site-4", revealed, other, X25519PublicKey.from_public_bytes(run.setups[other].key)
            ),
            SIZE,
            bits=32,
        )
        bare = bare - mask if other > "site-4" else bare + mask
    assert (bare != run.vectors["site-4"].astype("<u4")).sum() > SIZE - 3
    with pytest.raises(BadOpening):
        run.collected()._seed("site-4", "own", answers)


@pytest.mark.parametrize(
    "change", ["key", "commitments", "signature", "sender", "round", "envelopes", "lost", "exchanged", "no key"]
)
def test_substituted_keys_replayed_shares_and_exchanged_ciphertexts_are_refused(change):
    run = Run(5)
    later = replace(run.attempt, round=1)
    one, other = run.setups["site-1"], run.setups["site-2"]
    changed = {
        "key": lambda: replace(one, key=other.key),
        "commitments": lambda: replace(one, commitments=one.commitments[::-1]),
        "signature": lambda: replace(one, signature=other.signature),
        "sender": lambda: replace(one, sender="stranger"),
        "round": lambda: run.parties[1].setup(later),
        "envelopes": lambda: replace(one, envelopes={**one.envelopes, "site-0": other.envelopes["site-0"]}),
        "lost": lambda: replace(one, envelopes={}),
        "exchanged": lambda: replace(one, envelopes={**one.envelopes, "site-0": one.envelopes["site-3"]}),
        "no key": lambda: resigned(run, replace(one, key=bytes(32))),
    }[change]()
    setups = [changed if setup is one else setup for setup in run.setups.values()]
    with pytest.raises(MessageRefused):
        run.parties[0].join(run.attempt, setups, model=MODEL)


def resigned(run, setup):
    """A member signs a setup of its own making."""
    party = next(one for one in run.parties if one.name == setup.sender)
    return replace(setup, signature=party.signer.sign(setup.content(run.attempt)))


def test_a_setup_comes_back_from_its_bytes_and_one_of_another_length_is_none():
    run = Run(5)
    for name, setup in run.setups.items():
        row = setup.row(run.roster)
        assert Setup.of(name, row, run.roster) == setup
        with pytest.raises(MessageRefused, match="bytes"):
            Setup.of(name, row[1:], run.roster)


def test_the_key_that_opens_envelopes_is_the_signing_key_in_another_form():
    """Against the library's own arithmetic, for keys that nobody chose."""
    for _ in range(20):
        party = Party(new_signer("site"), bytes(32))
        public = box_key(party.signer.public)
        assert public.public_bytes_raw() == party._opens.public_key().public_bytes_raw()
    one = (1).to_bytes(32, "little")  # the neutral point
    with pytest.raises(BadInput):
        box_key(Ed25519PublicKey.from_public_bytes(one))


def test_two_rosters_two_setups_of_one_client_and_too_few_participants_are_refused():
    run = Run(5)
    with pytest.raises(MessageRefused, match="Two setups"):
        run.parties[0].join(run.attempt, [*run.setups.values(), run.setups["site-1"]], model=MODEL)
    with pytest.raises(TooFewReports):
        run.parties[0].join(run.attempt, list(run.setups.values())[:3], model=MODEL)
    with pytest.raises(MessageRefused, match="own setup"):
        run.parties[0].join(run.attempt, list(run.setups.values())[1:], model=MODEL)
    other = Attempt(replace(run.roster, colluding=2, at_least=4), 0)
    with pytest.raises(MessageRefused):
        run.parties[0].join(other, run.setups.values(), model=MODEL)


def test_a_report_counts_once_and_only_as_long_as_it_must_be():
    run = Run(5)
    collecting = run.collected(without=["site-4"])
    masked = run.joined["site-4"].mask(run.vectors["site-4"], bits=32)
    for name, report in (
        ("site-0", masked),
        ("stranger", masked),
        ("site-4", masked[1:]),
        ("site-4", masked.astype(np.int64)),
    ):
        with pytest.raises(MessageRefused):
            collecting.add(name, report)
    assert collecting.total is not None
    before = collecting.total.copy()
    collecting.add("site-4", masked)
    assert (collecting.total - before == masked).all()


def test_a_false_share_is_passed_over_and_too_many_lose_the_sum_without_opening_another():
    run = Run(5)
    collecting = run.collected()
    answers = run.answers(collecting.survivors)
    for liar in answers:  # whichever it is, four others are enough
        false = {name: share ^ 1 for name, share in answers[liar].items()}
        assert (collecting.opened(answers | {liar: false}) == run.sum(run.setups)).all()
    answers["site-0"] = answers["site-2"] = dict.fromkeys(answers["site-2"], 5)
    with pytest.raises(BadOpening):
        collecting.opened(answers)
    with pytest.raises(TooFewReports):
        collecting.opened(dict(itertools.islice(answers.items(), run.roster.threshold - 1)))


@pytest.mark.parametrize("liars", [1, 3])
def test_a_site_that_answers_first_with_false_shares_does_not_lose_the_sum_of_many(liars):
    """Of 20 there are 167,960 choices of 11: in order the first thousand have the first giver in them."""
    run = Run(20)
    collecting = run.collected()
    answers = run.answers(collecting.survivors)
    first = {name: {one: share ^ 1 for one, share in answers[name].items()} for name in list(answers)[:liars]}
    assert (
        collecting.opened(first | {one: answers[one] for one in answers if one not in first}) == run.sum(run.setups)
    ).all()


@given(seed=SEEDS, of=st.integers(1, 8), threshold=st.integers(1, 8), secret=SEEDS)
def test_t_shares_make_the_seed_and_fewer_do_not(seed, of, threshold, secret):
    dealt = shared(seed, of=max(of, threshold), threshold=threshold, secret=secret)
    indexed = list(enumerate(dealt, start=1))
    assert joined(indexed[-threshold:]) == seed
    assert all(0 <= share < PRIME for share in dealt)
    assert threshold == 1 or joined(indexed[: threshold - 1]) != seed


def test_a_restart_makes_the_same_setup_and_another_round_none_of_its_secrets():
    run = Run(5)
    again = run.parties[0].setup(run.attempt)
    assert again == run.setups["site-0"]
    later = run.parties[0].setup(replace(run.attempt, round=1))
    assert {later.key, *later.commitments}.isdisjoint({again.key, *again.commitments})
    with pytest.raises(BadInput, match="another key"):  # whoever is told another one of itself says so
        Party(new_signer("site-0"), bytes(32)).setup(run.attempt)
    mine = run.joined["site-0"]
    survivors = sorted(run.setups)
    restarted = Joined.of(mine.party, mine.attempt, json.loads(json.dumps(mine.record())))
    assert restarted.agree(survivors) == mine.agree(survivors)
    signed = run.signatures(survivors)
    assert restarted.unmask(survivors, signed) == mine.unmask(survivors, signed)


@pytest.mark.parametrize(("n", "at_least", "colluding"), [(4, 2, 1), (4, 5, 1), (3, 2, 2)])
def test_members_that_could_open_two_sums_or_one_of_too_few_are_refused_before_anything_runs(n, at_least, colluding):
    with pytest.raises(BadInput):
        Run(n, at_least=at_least, colluding=colluding)


@pytest.mark.parametrize("beyond", [2**33, -(2**33), -(2**63)])  # the last has no absolute value
def test_an_opened_sum_that_honest_reports_could_not_have_is_refused(beyond):
    seal = one_process(Lanes(1, 2**31, 3, 62), ["site-0", "site-1", "site-2"], at_least=3, colluding=1)
    collected = seal.collect(round=0)
    for name, value in (("site-0", beyond), ("site-1", 0), ("site-2", 0)):
        masked = seal.legs.mask(np.array([value]), client=name, round=0, bits=seal.bits)
        collected.accept(Message(name, {"report": torch.from_numpy(masked.view("<i8"))}))
    with pytest.raises(GridOverflow):
        collected.open()


def test_a_signature_of_a_setup_and_of_a_list_is_refused_where_a_byte_is_another_after_the_true_one_was_accepted():
    run = Run()
    survivors = sorted(run.parties[k].name for k in range(5))
    run.answers(survivors)
    honest, signed = run.setups["site-1"], run.signatures(survivors)
    flipped = bytes([honest.signature[0] ^ 1]) + honest.signature[1:]
    for altered in (replace(honest, signature=flipped), replace(honest, commitments=honest.commitments[::-1])):
        setups = run.setups | {"site-1": altered}
        with pytest.raises(MessageRefused, match="was altered"):
            run.parties[0].join(run.attempt, setups.values(), model=MODEL)
    exchanged = dict(zip(signed, [*list(signed.values())[1:], signed["site-0"]], strict=True))
    with pytest.raises(Refused, match="0 survivors signed"):
        run.joined["site-0"].unmask(survivors, exchanged)
