"""Encrypted sums against a site that cheats, sites that forge proofs together, and a server that lies, without a deployment.
`textbook.proved` says what is right."""

from dataclasses import replace
from functools import partial

import gmpy2
import numpy as np
import pytest
import textbook
from redteam.cheating_site import MEMBERS, NAMES, SHAPES, SIGNERS, ciphertexts_of, context_of, message, site, small_key

from tacit.crypto import proofs
from tacit.crypto.grid import Lanes
from tacit.crypto.paillier import PublicKey
from tacit.crypto.proofs import balanced, equation, hold_together, proof_bytes, unproved
from tacit.crypto.reports import Alone, Inbox, Opener, common_hash, inbox_of, parse
from tacit.crypto.seal import Sealed, SealedSum
from tacit.crypto.threshold import combine, deal
from tacit.errors import BadProof, MessageRefused, OtherRoster, TooFewReports

FEW, MANY = (11, 22, 33), tuple(range(1, 9))  # ciphertexts in one product, and report by report

ROSTER = {"names": list(NAMES), "sizes": [10, 20, 30], "epsilons": [1.0, 2.0, 3.0], "delta": 1e-5, "unit": "client"}


@pytest.fixture(params=SHAPES)
def key(request):
    return small_key(request.param)


@pytest.fixture
def ordinary():
    return small_key()


def claimed(context, name, report):
    """A report's claim, and its proof."""
    return context.claim(name, ciphertexts_of(context, report)), parse(report[-1])[2][-proof_bytes(context.public) :]


def equation_of(context, name, report):
    claim, proof = claimed(context, name, report)
    return equation(claim, proof, seed=claim.seed())


def right(public, one):
    """What the slow twin says."""
    return textbook.proved(
        int(public.n),
        None if public.h_s is None else int(public.h_s),
        int(one.commitment),
        [int(c) for c in one.ciphertexts],
        one.coefficients,
        int(one.z1),
        int(one.z2),
    )


def forgeries(context, numbers):
    """Reports of a cheating site, by what is wrong with them, and whether it knows all the same what it sealed."""
    public, cheat = context.public, site("coast", context)
    earlier = replace(context, round=0)
    theirs = ciphertexts_of(earlier, site("north", earlier).report(numbers))
    own, _ = cheat.sealed(numbers)
    return {
        "nothing": (cheat.report(numbers), True),
        "another's ciphertexts": (cheat.borrowed(theirs, times=1), False),
        "another's ciphertexts, often": (cheat.borrowed(theirs, times=1 << 40, offset=7), False),
        "a message that is another": (cheat.twisted(numbers, 1 + public.n), False),
        "a ciphertext that is another": (cheat.twisted(numbers, 1, ciphertext=1 + public.n), False),
        "a foreign randomiser": (cheat.twisted(numbers, gmpy2.powmod(3, public.n, public.n_squared)), False),
        "a commitment of the other sign": (cheat.twisted(numbers, -1), True),
        "a ciphertext of the other sign": (cheat.twisted(numbers, 1, ciphertext=-1), True),
        "no proof": (cheat.signed(own), False),
    }


@pytest.mark.parametrize("numbers", [FEW, MANY], ids=["few", "many"])
def test_checks_together_alone_and_by_the_book_agree_on_honest_and_on_forged_reports(key, numbers):
    context = context_of(key, numbers)
    others = {name: claimed(context, name, site(name, context).report(numbers)) for name in NAMES[1:4]}
    for why, (report, known) in forgeries(context, numbers).items():
        mine = claimed(context, "coast", report)
        if why != "no proof":  # of zeros: it is no proof of anything
            assert right(key.public, equation_of(context, "coast", report)) is known, why
        assert textbook.holds(*mine) is known, why
        for reports in ({"coast": mine, **others}, {**others, "coast": mine}):
            assert list(unproved(reports)) == ([] if known else ["coast"]), why


@pytest.mark.parametrize("numbers", [FEW, MANY], ids=["few", "many"])
def test_two_forgeries_that_cancel_each_other_are_refused_by_name(ordinary, numbers):
    context, public = context_of(ordinary, numbers), ordinary.public
    there, back = 1 + public.n, gmpy2.invert(1 + public.n, public.n_squared)
    reports = {
        name: site(name, context).twisted(numbers, factor)
        for name, factor in zip(NAMES, (1, there, 1, back, 1), strict=True)
    }
    equations = [equation_of(context, name, report) for name, report in reports.items()]
    assert balanced(public, equations, [1] * 5)  # as a product without weights would have it
    assert not hold_together(public, equations)
    found = unproved({name: claimed(context, name, report) for name, report in reports.items()})
    assert list(found) == ["hill", "south"]
    assert all(repr(name) in str(error) for name, error in found.items())


@pytest.mark.parametrize("guess", [1, 2, (1 << 128) - 1, 0x243F6A8885A308D313198A2E03707344])
def test_forgeries_made_for_weights_that_were_guessed_are_refused(ordinary, guess):
    context, public = context_of(ordinary), ordinary.public
    back = gmpy2.powmod(1 + public.n, -guess, public.n_squared)
    reports = [site("coast", context).twisted(FEW, back), site("north", context).twisted(FEW, 1 + public.n)]
    equations = [equation_of(context, name, report) for name, report in zip(("coast", "north"), reports, strict=True)]
    assert balanced(public, equations, [1, guess])
    assert not any(hold_together(public, equations) for _ in range(20))


def test_borrowed_ciphertexts_of_two_sites_that_cancel_each_other_are_refused(ordinary):
    context, n_squared = context_of(ordinary), ordinary.public.n_squared
    theirs = ciphertexts_of(context, site("valley", context).report(FEW))
    cheats = {
        "coast": site("coast", context).borrowed(theirs, times=1),
        "north": site("north", context).borrowed([gmpy2.invert(c, n_squared) for c in theirs], times=1),
    }
    assert list(unproved({name: claimed(context, name, report) for name, report in cheats.items()})) == list(cheats)


@pytest.mark.parametrize("where", range(5))
def test_a_forged_report_is_named_wherever_it_stands_and_nothing_of_it_is_in_the_sum(key, where):
    context = context_of(key)
    theirs = ciphertexts_of(replace(context, round=0), site("north", context).report(FEW))
    inbox = Inbox(context)
    for at, name in enumerate(NAMES):
        cheat = site(name, context)
        inbox.accept_report(name, cheat.borrowed(theirs, times=5) if at == where else cheat.report(FEW))
    with pytest.raises(TooFewReports):
        inbox.total(at_least=1)  # nobody counts before the proofs are checked
    assert {name: type(error) for name, error in inbox.settle().items()} == {NAMES[where]: BadProof}
    assert inbox.settle() == {}
    assert inbox.complete() == [name for at, name in enumerate(NAMES) if at != where]
    assert key.open(inbox.total(at_least=4), workers=1) == [4 * m for m in FEW]
    inbox.accept_report(NAMES[where], site(NAMES[where], context).report(FEW))  # an honest one may follow
    assert inbox.settle() == {}
    assert key.open(inbox.total(at_least=5), workers=1) == [5 * m for m in FEW]


def test_a_forged_report_is_forged_however_often_it_is_shown(ordinary):
    context = context_of(ordinary)
    good, bad = site("north", context).report(FEW), site("coast", context).twisted(FEW, 1 + ordinary.public.n)
    for _ in range(3):  # what held in the same batch is remembered, and it is not
        assert list(unproved({"north": claimed(context, "north", good), "coast": claimed(context, "coast", bad)})) == [
            "coast"
        ]
        with pytest.raises(BadProof, match="'coast'"):
            inbox_of(context, [*good, *bad])


def test_the_server_shows_the_holders_only_what_was_proved_and_opens_the_sum_of_it(ordinary):
    lanes = Lanes(3, 10, 5, 30)
    numbers = lanes.pack(np.array([1, -2, 3]))
    context = context_of(ordinary, numbers)
    holder = Opener(":memory:", partial(ordinary.open, workers=1), at_least=4)
    seal = Sealed(
        lanes, ordinary.public, "run", "told", MEMBERS, SIGNERS, site("north", context).source, opener=Alone(holder)
    )
    found = SealedSum(seal, Inbox(context))
    theirs = ciphertexts_of(context, site("valley", context).report(numbers))
    found.accept(message("coast", site("coast", context).borrowed(theirs, times=1)))
    for name in NAMES[1:]:
        found.accept(message(name, site(name, context).report(numbers)))
    assert list(found.settle()) == ["coast"]
    assert list(found.open()) == [4, -8, 12]
    assert found.clients == list(NAMES[1:])


def test_a_sum_that_nobody_settled_is_not_opened(ordinary):
    context = context_of(ordinary)
    holder = Opener(":memory:", lambda total: pytest.fail("it was opened"), at_least=2)
    lanes = Lanes(3, 10, 5, 30)
    seal = Sealed(
        lanes, ordinary.public, "run", "told", MEMBERS, SIGNERS, site("north", context).source, opener=Alone(holder)
    )
    found = SealedSum(seal, Inbox(context))
    for name in NAMES:
        found.accept(message(name, site(name, context).report(FEW)))
    with pytest.raises(TooFewReports):
        found.open()


@pytest.mark.parametrize("where", [0, 2, 4])
def test_a_holder_that_is_shown_one_forged_report_among_many_opens_and_writes_down_nothing(ordinary, where):
    context = context_of(ordinary)
    holder = Opener(":memory:", lambda total: pytest.fail("it was opened"), at_least=2)
    reports = [
        site(name, context).twisted(FEW, 1 + ordinary.public.n if at == where else 1) for at, name in enumerate(NAMES)
    ]
    with pytest.raises(MessageRefused, match=repr(NAMES[where])):
        holder.open(context, [raw for report in reports for raw in report])
    assert holder._db.execute("SELECT COUNT(*) FROM openings").fetchone() == (0,)


def test_a_report_with_its_sign_changed_opens_to_the_same_sum_with_a_key_and_with_shares(key):
    context = context_of(key)
    reports = [raw for name in NAMES for raw in site(name, context).twisted(FEW, -1, ciphertext=-1)]
    total = inbox_of(context, reports).total(at_least=5)
    assert key.open(total, workers=1) == [5 * m for m in FEW]
    if key.public.shape == "safe-prime":
        shares = deal(key, threshold=2, of=3)
        partials = [share.open(total, workers=1) for share in shares[:2]]
        assert combine(shares[0].verification, total, partials) == [5 * m for m in FEW]


def test_a_site_that_can_factor_n_moves_no_sum_by_a_root_of_one_whatever_the_weights_are(key):
    """Such a number has an order of 2 and passes some weights: it hides nothing, and the sum is what it was."""
    context, p, q = context_of(key), key.p**2, key.q**2
    root = (1 - 2 * p * gmpy2.invert(p, q)) % (p * q)  # 1 modulo p^2, -1 modulo q^2
    assert root * root % key.public.n_squared == 1
    for _ in range(4):
        inbox = Inbox(context)
        for name, factor in zip(NAMES, (1, root, 1, root, root), strict=True):
            inbox.accept_report(name, site(name, context).twisted(FEW, factor, ciphertext=root))
        inbox.settle()
        clients = inbox.complete()
        assert not clients or key.open(inbox.total(at_least=1), workers=1) == [len(clients) * m for m in FEW]


# One report against the server and a holder: both refuse it, for the same reason.


def refused(context, parts):
    """Why the server does not take a report and a holder does not open a sum with it: the same reason, the sender named."""
    (_, client), said = parts, []
    inbox, holder = Inbox(context), Opener(":memory:", lambda total: pytest.fail("it was opened"), at_least=2)
    others = [raw for name in NAMES if name != client for raw in site(name, context).report(FEW)]
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
    reports = [raw for name in NAMES for raw in site(name, context).report(FEW)]
    holder = Opener(":memory:", partial(key.open, workers=1), at_least=3)
    assert holder.open(context, reports) == ([len(NAMES) * m for m in FEW], sorted(NAMES))


@pytest.mark.parametrize(("times", "offset"), [(1, 0), (1, 7), (1 << 40, 0), (1 << 40, 1 << 60)])
def test_a_site_that_signs_anothers_earlier_ciphertexts_as_its_own_is_refused_by_server_and_holders(key, times, offset):
    earlier, now = context_of(key, round=0), context_of(key)
    theirs = ciphertexts_of(earlier, site("north", earlier).report(FEW))
    said = refused(now, (site("coast", now).borrowed(theirs, times=times, offset=offset), "coast"))
    assert type(said) is BadProof
    assert "knows what it sealed" in str(said)


def test_one_borrowed_ciphertext_among_many_is_refused(ordinary):
    context = context_of(ordinary)
    theirs, cheat = ciphertexts_of(context, site("north", context).report(FEW)), site("coast", context)
    own, secret = cheat.sealed(FEW)
    mixed = [own[0], theirs[1], own[2]]
    proof = proofs.prove(context.claim("coast", mixed), FEW, secret)
    assert type(refused(context, (cheat.signed(mixed, proof), "coast"))) is BadProof


def test_borrowed_ciphertexts_that_cancel_each_other_are_refused(ordinary):
    context = context_of(ordinary)
    theirs, cheat = ciphertexts_of(context, site("north", context).report(FEW))[0], site("coast", context)
    own, secret = cheat.sealed(FEW)
    n_squared = ordinary.public.n_squared
    mixed = [own[0] * theirs % n_squared, own[1] * gmpy2.invert(theirs, n_squared) % n_squared, own[2]]
    proof = proofs.prove(context.claim("coast", mixed), FEW, secret)
    assert type(refused(context, (cheat.signed(mixed, proof), "coast"))) is BadProof


def test_a_report_copied_with_its_proof_is_refused(key):
    context = context_of(key)
    report = site("north", context).report(FEW)
    proof = parse(report[-1])[2][-proof_bytes(key.public) :]
    assert textbook.holds(context.claim("north", ciphertexts_of(context, report)), proof)
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
    parts = cheat.report(FEW, proved_for=elsewhere, proved_as=other.get("client"))
    assert type(refused(context, (parts, "coast"))) is BadProof


def test_an_altered_proof_or_none_is_refused(key):
    context, cheat = context_of(key), site("coast", context_of(key))
    own, secret = cheat.sealed(FEW)
    proof = proofs.prove(context.claim("coast", own), FEW, secret)
    assert textbook.holds(context.claim("coast", own), proof)
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
    inbox, report = Inbox(context), site("coast", context).report(FEW)
    inbox.accept(report[0])
    assert inbox.settle() == {}
    assert inbox.complete() == []  # the proof comes with the last chunk
    with pytest.raises(TooFewReports):
        inbox.total(at_least=1)


def test_a_proof_that_held_does_not_vouch_for_other_ciphertexts(ordinary):
    context, cheat = context_of(ordinary), site("coast", context_of(ordinary))
    good = cheat.report(FEW)
    inbox_of(context, good)  # its proof is remembered in this process
    proof = parse(good[-1])[2][-proof_bytes(ordinary.public) :]
    assert type(refused(context, (cheat.signed(cheat.sealed(FEW)[0], proof), "coast"))) is BadProof


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
    said = refused(context, (site("coast", replace(context, roster=there)).report(FEW), "coast"))
    assert type(said) is OtherRoster
    assert "told of another experiment, other sites or other budgets" in str(said)


def test_the_hash_that_is_signed_covers_run_and_experiment_too():
    found = {common_hash(run, text, ROSTER) for run in ("a", "b") for text in ("x = 1", "x = 2")}
    assert len(found) == 4
