"""Encrypted sums against a site that cheats and a server that lies, without a deployment around them."""

from dataclasses import replace
from functools import partial

import gmpy2
import pytest
from redteam.cheating_site import CheatingSite, ciphertexts_of
from textbook import holds

from tacit.crypto import proofs
from tacit.crypto.keys import generate, new_signer
from tacit.crypto.paillier import PublicKey
from tacit.crypto.proofs import proof_bytes
from tacit.crypto.reports import Inbox, Opener, RoundContext, chunk_sizes, common_hash, inbox_of, parse
from tacit.errors import BadProof, MessageRefused, OtherRoster, TooFewReports

NAMES, NUMBERS = ("coast", "north", "valley"), (11, 22, 33)
ROSTER = {"names": list(NAMES), "sizes": [10, 20, 30], "epsilons": [1.0, 2.0, 3.0], "delta": 1e-5, "unit": "client"}
SIGNERS = {name: new_signer(name) for name in NAMES}
MEMBERS = {name: signer.public for name, signer in SIGNERS.items()}


@pytest.fixture(scope="module", params=["ordinary", "short-exponent", "safe-prime", "from elsewhere"])
def key(request):
    """A key of every shape, and one without h_s, as python-paillier makes them."""
    shape = "ordinary" if request.param == "from elsewhere" else request.param
    made = generate(bits=512, shape=shape, least_bits=512)
    return made if shape == request.param else replace(made, public=PublicKey(made.public.n, least_bits=512))


@pytest.fixture(scope="module")
def ordinary():
    return generate(bits=512, least_bits=512)


def context_of(key, *, round=1, run="run", told="told"):
    return RoundContext(run, round, key.public, told, chunk_sizes(len(NUMBERS), chunk=2), MEMBERS)


def site(name, context):
    return CheatingSite(context, SIGNERS[name])


def refused(context, parts):
    """Why the server does not take a report and a holder does not open a sum with it: the same reason, the sender named."""
    (_, client), said = parts, []
    inbox, holder = Inbox(context), Opener(":memory:", lambda total: pytest.fail("it was opened"), at_least=2)
    others = [raw for name in NAMES if name != client for raw in site(name, context).report(NUMBERS)]
    try:
        inbox.accept_report(client, parts[0])
        said += inbox.settle().values()
    except MessageRefused as error:
        said.append(error)
    assert inbox.complete() == []
    with pytest.raises(MessageRefused) as caught:
        holder.open(context, [*others, *parts[0]])
    said.append(caught.value)
    assert [type(one) for one in said] == [type(said[0])] * 2
    assert all(repr(client) in str(one) for one in said)
    return said[0]


def test_honest_reports_pass_and_the_sum_is_what_it_was(key):
    context = context_of(key)
    reports = [raw for name in NAMES for raw in site(name, context).report(NUMBERS)]
    holder = Opener(":memory:", partial(key.open, workers=1), at_least=3)
    assert holder.open(context, reports) == ([3 * m for m in NUMBERS], sorted(NAMES))


@pytest.mark.parametrize(("times", "offset"), [(1, 0), (1, 7), (1 << 40, 0), (1 << 40, 1 << 60)])
def test_a_site_that_signs_anothers_earlier_ciphertexts_as_its_own_is_refused_by_server_and_holders(key, times, offset):
    earlier, now = context_of(key, round=0), context_of(key)
    theirs = ciphertexts_of(earlier, site("north", earlier).report(NUMBERS))
    said = refused(now, (site("coast", now).borrowed(theirs, times=times, offset=offset), "coast"))
    assert type(said) is BadProof
    assert "knows what it sealed" in str(said)


def test_one_borrowed_ciphertext_among_many_is_refused(ordinary):
    context = context_of(ordinary)
    theirs, cheat = ciphertexts_of(context, site("north", context).report(NUMBERS)), site("coast", context)
    own, secret = cheat.sealed(NUMBERS)
    mixed = [own[0], theirs[1], own[2]]
    proof = proofs.prove(context.claim("coast", mixed), NUMBERS, secret)
    assert type(refused(context, (cheat.signed(mixed, proof), "coast"))) is BadProof


def test_borrowed_ciphertexts_that_cancel_each_other_are_refused(ordinary):
    context = context_of(ordinary)
    theirs, cheat = ciphertexts_of(context, site("north", context).report(NUMBERS))[0], site("coast", context)
    own, secret = cheat.sealed(NUMBERS)
    n_squared = ordinary.public.n_squared
    mixed = [own[0] * theirs % n_squared, own[1] * gmpy2.invert(theirs, n_squared) % n_squared, own[2]]
    proof = proofs.prove(context.claim("coast", mixed), NUMBERS, secret)
    assert type(refused(context, (cheat.signed(mixed, proof), "coast"))) is BadProof


def test_a_report_copied_with_its_proof_is_refused(key):
    context = context_of(key)
    report = site("north", context).report(NUMBERS)
    proof = parse(report[-1])[2][-proof_bytes(key.public) :]
    assert holds(context.claim("north", ciphertexts_of(context, report)), proof)
    copied = site("coast", context).signed(ciphertexts_of(context, report), proof)
    assert type(refused(context, (copied, "coast"))) is BadProof


@pytest.mark.parametrize(
    "other", [{"round": 0}, {"run": "another"}, {"roster": "other"}, {"client": "north"}, {"key": 1}]
)
def test_a_proof_for_another_round_run_roster_client_or_key_is_refused(ordinary, other):
    context, cheat = context_of(ordinary), site("coast", context_of(ordinary))
    if "key" in other:
        public = ordinary.public
        other = {"public": PublicKey(public.n, "ordinary", public.h_s * 4 % public.n_squared, 512)}
    elsewhere = replace(context, **{name: value for name, value in other.items() if name != "client"})
    parts = cheat.report(NUMBERS, proved_for=elsewhere, proved_as=other.get("client"))
    assert type(refused(context, (parts, "coast"))) is BadProof


def test_an_altered_proof_or_none_is_refused(key):
    context, cheat = context_of(key), site("coast", context_of(key))
    own, secret = cheat.sealed(NUMBERS)
    proof = proofs.prove(context.claim("coast", own), NUMBERS, secret)
    assert holds(context.claim("coast", own), proof)
    public = key.public
    z1 = slice(public.ciphertext_bytes, public.ciphertext_bytes + (public.bits + 7) // 8)
    larger = int.from_bytes(proof[z1], "big") + int(public.n)
    longer = [] if larger >> 512 else [proof[: z1.start] + larger.to_bytes(64, "big") + proof[z1.stop :]]
    flipped = [
        proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :]
        for at in (0, z1.start - 1, z1.start, z1.stop - 1, z1.stop, -1 % len(proof))
    ]
    for bad in (*flipped, *longer, bytes(len(proof)), b"\xff" * len(proof)):
        assert type(refused(context, (cheat.signed(own, bad), "coast"))) is BadProof


def test_a_client_without_a_proof_does_not_count(ordinary):
    context = context_of(ordinary)
    inbox, report = Inbox(context), site("coast", context).report(NUMBERS)
    inbox.accept(report[0])
    assert inbox.settle() == {}
    assert inbox.complete() == []  # the proof comes with the last chunk
    with pytest.raises(TooFewReports):
        inbox.total(at_least=1)


def test_a_proof_that_held_does_not_vouch_for_other_ciphertexts(ordinary):
    context, cheat = context_of(ordinary), site("coast", context_of(ordinary))
    good = cheat.report(NUMBERS)
    inbox_of(context, good)  # its proof is remembered in this process
    proof = parse(good[-1])[2][-proof_bytes(ordinary.public) :]
    assert type(refused(context, (cheat.signed(cheat.sealed(NUMBERS)[0], proof), "coast"))) is BadProof


@pytest.mark.parametrize(
    "change",
    [
        {"epsilons": [1.0, 2.0, 30.0]},  # a server that shrinks the noise of the others
        {"sizes": [10, 20, 3000]},
        {"names": ["coast", "north", "hill"]},
        {"names": ["coast", "north"]},
        {"delta": 1e-3},
    ],
)
def test_reports_of_sites_that_were_told_different_rosters_are_not_added(ordinary, change):
    here, there = (common_hash("run", "text", one) for one in (ROSTER, ROSTER | change))
    context = context_of(ordinary, told=here)
    said = refused(context, (site("coast", replace(context, roster=there)).report(NUMBERS), "coast"))
    assert type(said) is OtherRoster
    assert "told of another experiment, other sites or other budgets" in str(said)


def test_the_hash_that_is_signed_covers_run_and_experiment_too():
    found = {common_hash(run, text, ROSTER) for run in ("a", "b") for text in ("x = 1", "x = 2")}
    assert len(found) == 4
