"""Whoever adds up masked reports and keeps those of every round: no mask, key or signature of one serves in another."""

import numpy as np
import pytest

from tacit.crypto.keys import new_signer
from tacit.crypto.masks import Attempt, Collecting, Party, Roster
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
    made = Collecting(attempt, "model", setups, SIZE, 32)
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
