"""Whoever adds up masked reports and keeps those of every round: no mask, key or signature of one serves in another."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from tacit.crypto.keys import new_signer
from tacit.crypto.masks import Attempt, Collecting, Party, Roster, expand
from tacit.crypto.threshold import PRIME
from tacit.errors import MessageRefused, Refused, TooFewReports

SIZE = 40


@pytest.fixture
def parties():
    return [Party(new_signer(f"site-{k}"), bytes([k + 1]) * 32) for k in range(4)]


def roster(parties, run="run"):
    signing = {one.name: one.signer.public for one in parties}
    return Roster(run, signing, 3)


def joined(parties, attempt, model="model"):
    setups = [one.setup(attempt) for one in parties]
    return {one.name: one.join(attempt, setups, model=model) for one in parties}


@pytest.mark.parametrize("other", ["round", "run", "model"])
def test_the_difference_of_two_masked_reports_of_one_client_shows_nothing_of_either(parties, other):
    """With the masks of the round before, it would be the difference of its two updates, in clear."""
    first = Attempt(roster(parties), 3)
    second = Attempt(roster(parties, run="next" if other == "run" else "run"), 4 if other == "round" else 3)
    models = ("model", "another" if other == "model" else "model")
    vector = np.arange(SIZE)
    one, two = (
        joined(parties, attempt, model)["site-1"].mask(vector, bits=32)
        for attempt, model in zip((first, second), models, strict=True)
    )
    assert np.mean(one == two) < 0.1


def test_shares_setups_and_signatures_of_one_round_open_no_other(parties):
    members = roster(parties)
    now, then = Attempt(members, 0), Attempt(members, 1)
    with pytest.raises(MessageRefused):
        parties[0].join(then, [one.setup(now) for one in parties], model="model")
    survivors = sorted(members.names)
    signed = {name: one.agree(survivors) for name, one in joined(parties, now).items()}
    with pytest.raises(Refused, match="survivors signed this list"):
        joined(parties, then)["site-0"].unmask(survivors, signed)


def test_clients_that_were_told_of_other_participants_sign_nothing_for_each_other(parties):
    attempt = Attempt(roster(parties), 0)
    setups = [one.setup(attempt) for one in parties]
    survivors = [one.name for one in parties[:3]]
    whole, few = (
        {one.name: one.join(attempt, told, model="m") for one in parties[:3]} for told in (setups, setups[:3])
    )
    signed = {name: (whole if name == "site-0" else few)[name].agree(survivors) for name in survivors}
    with pytest.raises(Refused, match="survivors signed this list"):
        whole["site-0"].unmask(survivors, signed)


def test_the_seed_of_one_round_and_ones_shares_of_two_rounds_do_not_give_the_seed_of_the_other(parties):
    """With one polynomial for both, the difference of two shares is the difference of the two seeds."""
    members = roster(parties)
    owner, differences = parties[1], set()
    rounds = [Attempt(members, 0), Attempt(members, 1)]
    for reader in (parties[0], parties[2], parties[3]):
        one, two = (joined(parties, attempt)[reader.name].shares[owner.name] for attempt in rounds)
        for first, second in zip(one, two, strict=True):
            differences.add((second - first) % PRIME)
    assert len(differences) == 6


def test_a_server_opens_no_sum_of_fewer_reports_than_the_noise_was_made_for(parties):
    attempt = Attempt(roster(parties), 0)
    setups = {one.name: one.setup(attempt) for one in parties}
    made = Collecting.of(attempt, "model", setups, SIZE, 32)
    for name, mine in list(joined(parties, attempt).items())[:2]:
        made.add(name, mine.mask(np.arange(SIZE), bits=32))
    with pytest.raises(TooFewReports):
        made.survivors  # noqa: B018


def test_a_client_that_lost_its_seeds_closes_its_new_envelopes_with_other_keys(parties):
    """Its signing key stays: under one key the difference of two envelopes would be that of the shares within, in clear."""
    attempt, reader = Attempt(roster(parties), 0), parties[0]
    old = parties[1]
    new = Party(old.signer, bytes(32))
    sent, held = [], []
    for party in (old, new):
        setups = [party.setup(attempt) if one.name == old.name else one.setup(attempt) for one in parties]
        sent.append(setups[1].envelopes[reader.name][:-16])
        shares = reader.join(attempt, setups, model="m").shares[old.name]
        held.append(b"".join(share.to_bytes(33, "big") for share in shares))
    between = [bytes(a ^ b for a, b in zip(*pair, strict=True)) for pair in (sent, held)]
    assert between[0] != between[1]


HELPER, VICTIM, FEWEST = "site-0", "site-5", 4


class TwoModels:
    """Six clients, one of which helps. All but one are told one model, and the last another, with as few others as a sum takes."""

    def __init__(self):
        self.parties = [Party(new_signer(f"site-{k}"), bytes([k + 1]) * 32) for k in range(6)]
        members = Roster("run", {one.name: one.signer.public for one in self.parties}, at_least=FEWEST, colluding=1)
        self.attempt = Attempt(members, 0)
        self.setups = {one.name: one.setup(self.attempt) for one in self.parties}
        self.others = {one.name: one.join(self.attempt, self.setups.values(), model="a") for one in self.parties[:5]}
        told = [self.setups[name] for name in (HELPER, "site-3", "site-4", VICTIM)]
        self.report = self.parties[5].join(self.attempt, told, model="b").mask(np.arange(SIZE), bits=32)

    def without_masks(self, survivors, signatures):
        """The report of the other model without all masks that the answers about this list, and the helper, take off it."""
        answers = {name: self.others[name].unmask(survivors, signatures) for name in survivors if name in self.others}
        adds = Collecting.of(self.attempt, "a", self.setups, SIZE, 32)
        bare = self.report - expand(
            self.attempt.own_key("b", VICTIM, adds._seed(VICTIM, "own", answers)), SIZE, bits=32
        )
        public = X25519PublicKey.from_public_bytes(self.setups[VICTIM].key)
        known = {name: adds._seed(name, "key", answers) for name in self.setups if name not in survivors}
        for name, seed in (known | {HELPER: self.parties[0]._seed(self.attempt, "key")}).items():
            mine = X25519PrivateKey.from_private_bytes(seed)
            bare += expand(self.attempt.pair_key("b", name, mine, VICTIM, public), SIZE, bits=32)
        return bare


def test_a_list_that_names_a_client_which_was_told_another_model_does_not_bare_its_report():
    """Its own mask is given with the list's, and the keys of who is not on it. It neither signs nor answers, so t others must."""
    served = TwoModels()
    survivors = [name for name in served.setups if name != "site-4"]
    signed = {name: served.others[name].agree(survivors) for name in survivors if name != VICTIM}
    assert np.mean(served.without_masks(survivors, signed) == np.arange(SIZE)) < 0.1
    shorter = [HELPER, "site-1", "site-2", VICTIM]  # everybody that the victim was told of would be known
    signed = {name: served.others[name].agree(shorter) for name in shorter if name != VICTIM}
    with pytest.raises(Refused, match="3 survivors signed this list, and 4 must"):
        served.without_masks(shorter, signed)
    served.others[VICTIM] = served.parties[5].join(served.attempt, served.setups.values(), model="a")
    signed[VICTIM] = served.others[VICTIM].agree(
        shorter
    )  # a client that joins both is bare: one question binds a site's round
    assert (served.without_masks(shorter, signed) == np.arange(SIZE)).all()


@pytest.mark.parametrize("other", ["round", "run", "model"])
def test_neither_own_masks_nor_those_of_pairs_are_the_same_for_another_round_run_or_model(parties, other):
    """Either alone would hide two reports of one client behind one stream, once the server knows the rest."""
    one = Attempt(roster(parties), 3)
    two = Attempt(roster(parties, run="next" if other == "run" else "run"), 4 if other == "round" else 3)
    models = ("model", "another" if other == "model" else "model")
    seed, mine = bytes(32), X25519PrivateKey.from_private_bytes(bytes([7]) * 32)
    theirs = X25519PrivateKey.from_private_bytes(bytes([9]) * 32).public_key()
    own = {attempt.own_key(model, "site-1", seed) for attempt, model in zip((one, two), models, strict=True)}
    pairs = {
        attempt.pair_key(model, "site-1", mine, "site-2", theirs)
        for attempt, model in zip((one, two), models, strict=True)
    }
    assert len(own) == len(pairs) == 2
    assert own.isdisjoint({one.own_key("model", "site-2", seed)})


class Known(Party):
    """A member whose key for pairs is a point of small order: its masks with everybody would be known to all."""

    def _pair_public(self, attempt):
        return bytes(32)


def test_a_member_that_signs_a_key_whose_every_secret_is_known_is_refused_by_name(parties):
    attempt, liar = Attempt(roster(parties), 0), Known(parties[1].signer, parties[1].secret)
    setups = [liar.setup(attempt) if one.name == liar.name else one.setup(attempt) for one in parties]
    with pytest.raises(MessageRefused, match="'site-1' holds what is no key"):
        parties[0].join(attempt, setups, model="model")
