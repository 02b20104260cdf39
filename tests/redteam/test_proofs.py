"""Proofs that are checked together, against sites that forge them together. `textbook.proved` says what is right."""

from dataclasses import replace
from functools import partial

import gmpy2
import numpy as np
import pytest
import textbook
from redteam.cheating_site import CheatingSite, ciphertexts_of, message

from tacit.crypto.grid import Lanes
from tacit.crypto.keys import generate, new_signer
from tacit.crypto.paillier import PublicKey
from tacit.crypto.proofs import balanced, equation, hold_together, proof_bytes, unproved
from tacit.crypto.reports import Alone, Inbox, Opener, RoundContext, chunk_sizes, inbox_of, parse
from tacit.crypto.seal import Sealed, SealedSum
from tacit.crypto.threshold import combine, deal
from tacit.errors import BadProof, MessageRefused, TooFewReports

NAMES = ("coast", "hill", "north", "south", "valley")
SIGNERS = {name: new_signer(name) for name in NAMES}
MEMBERS = {name: signer.public for name, signer in SIGNERS.items()}
FEW, MANY = (11, 22, 33), tuple(range(1, 9))  # ciphertexts in one product, and report by report


@pytest.fixture(scope="module", params=["ordinary", "short-exponent", "safe-prime", "from elsewhere"])
def key(request):
    """A key of every shape, and one without h_s."""
    shape = "ordinary" if request.param == "from elsewhere" else request.param
    made = generate(bits=512, shape=shape, least_bits=512)
    return made if shape == request.param else replace(made, public=PublicKey(made.public.n, least_bits=512))


@pytest.fixture(scope="module")
def ordinary():
    return generate(bits=512, least_bits=512)


def context_of(key, numbers=FEW, *, round=1):
    return RoundContext("run", round, key.public, "told", chunk_sizes(len(numbers), chunk=2), MEMBERS)


def site(name, context):
    return CheatingSite(context, SIGNERS[name])


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
