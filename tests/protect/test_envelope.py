"""Signed reports: taken where they belong, refused by name everywhere else."""

import hashlib
from dataclasses import replace

import pytest

from tacit.crypto.keys import new_signer
from tacit.crypto.paillier import PublicKey, Randomisers
from tacit.crypto.proofs import prove
from tacit.crypto.reports import LENGTH_BYTES, PREFIX, Inbox, RoundContext, check_header, chunk_sizes, parse, write
from tacit.errors import (
    BadCiphertext,
    BadSignature,
    Duplicate,
    ForeignKey,
    MessageRefused,
    Replayed,
    TooFewReports,
    Truncated,
    UnknownSender,
)

NAMES, MESSAGES = ("coast", "north", "valley"), (5, 6, 7, 8, 9)


@pytest.fixture(scope="module")
def signers():
    return {name: new_signer(name) for name in NAMES}


@pytest.fixture
def context(ordinary, signers):
    members = {name: signer.public for name, signer in signers.items()}
    return RoundContext("run-1", 3, ordinary.public, "told", chunk_sizes(len(MESSAGES), chunk=2), members)


@pytest.fixture
def report(ordinary, context, signers, stock):
    """The messages of one client's report."""

    def make(name="north", *, where=None, messages=MESSAGES):
        context_ = where or context
        source = stock(ordinary) if context_.public == ordinary.public else Randomisers(context_.public, workers=1)
        values, secret = zip(*source.take_known(len(messages)), strict=True)
        sealed = context_.public.seal_with(list(messages), values)
        return list(write(context_, signers[name], sealed, prove(context_.claim(name, sealed), messages, secret)))

    return make


def forged(raw, signer, **changes):
    """A message with another header, signed by whoever does it, and its body."""
    header, _, body = parse(raw)
    head = replace(header, **changes).raw()
    return len(head).to_bytes(LENGTH_BYTES, "big") + head + signer.sign(PREFIX + head) + body


def resealed(raw, signer, body):
    """A message of the same place with other ciphertexts, signed by its own client."""
    header, _, _ = parse(raw)
    digest = hashlib.sha256(body).hexdigest()
    return forged(raw, signer, size=len(body), sha256=digest)[: -header.size or None] + body


def take_all(inbox, messages):
    """Takes what can be taken and returns the refusals: by rule the round goes on without them."""
    refused = []
    for raw in messages:
        try:
            inbox.accept(raw)
        except MessageRefused as error:
            refused.append(error)
    return [*refused, *inbox.settle().values()]


def test_reports_add_up_in_any_order_once_their_proofs_are_checked(ordinary, context, report):
    inbox = Inbox(context)
    for raw in [raw for name in NAMES for raw in report(name)][::-1]:
        inbox.accept(raw)
    assert inbox.complete() == []  # nobody counts before the proofs are checked
    assert inbox.settle() == {}
    assert inbox.complete() == sorted(NAMES)
    assert ordinary.open(inbox.total(at_least=3)) == [3 * m for m in MESSAGES]
    assert chunk_sizes(5, chunk=2) == (2, 2, 1)
    assert sum(chunk_sizes(7919)) == 7919


def test_every_report_of_a_round_has_the_same_length(report):
    lengths = [[len(raw) for raw in report("north", messages=m)] for m in ((0,) * 5, (2**509,) * 5)]
    assert lengths[0] == lengths[1]


def refusal(context, raw):
    """The refusal, which must name the sender, and after which the inbox is as before."""
    inbox = Inbox(context)
    with pytest.raises(MessageRefused) as caught:
        inbox.accept(raw)
    assert inbox.complete() == []
    assert inbox._chunks == {}
    return caught.value


def test_an_altered_message_is_refused_whichever_byte_it_is(context, report):
    raw = report()[0]
    for at in range(len(raw)):
        altered = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        assert isinstance(refusal(context, altered), BadSignature | Truncated | UnknownSender)


def test_a_truncated_or_extended_message_is_refused(context, report):
    raw = report()[0]
    for length in (0, 3, 10, len(raw) // 2, len(raw) - 1):
        assert isinstance(refusal(context, raw[:length]), Truncated)
    assert isinstance(refusal(context, raw + b"x"), Truncated)
    assert isinstance(refusal(context, b"\xff" * 100), Truncated)


def test_a_replayed_message_is_refused(context, report):
    for other in (replace(context, round=2), replace(context, run="run-0")):
        said = refusal(context, report(where=other)[0])
        assert isinstance(said, Replayed)
        assert "'north'" in str(said)


def test_a_message_for_another_key_is_refused(context, report, ordinary):
    foreign = PublicKey(ordinary.public.n, "ordinary", None, 512)  # the same n, but not the same key
    assert isinstance(refusal(context, report(where=replace(context, public=foreign))[0]), ForeignKey)


def test_a_stranger_and_a_member_in_anothers_name_are_refused(context, report, signers):
    raw = report("north")[0]
    assert isinstance(refusal(context, forged(raw, signers["north"], client="hill")), UnknownSender)
    assert isinstance(refusal(context, forged(raw, signers["coast"])), BadSignature)
    assert isinstance(refusal(context, forged(raw, signers["north"], client="coast")), BadSignature)


def test_a_second_message_for_a_place_is_refused(ordinary, context, report):
    inbox, first = Inbox(context), report()
    for raw in first:
        inbox.accept(raw)
    for _ in range(2):  # before and after the proofs are checked
        for raw in (first[0], report()[0]):
            with pytest.raises(Duplicate, match="'north'"):
                inbox.accept(raw)
        assert inbox.settle() == {}
    assert inbox.complete() == ["north"]
    assert ordinary.open(inbox.total(at_least=1)) == list(MESSAGES)


def test_chunks_that_are_not_agreed_are_refused(context, report, signers):
    raw = report()[0]
    for changes in ({"chunk": 3}, {"chunk": -1}, {"chunks": 4}, {"chunk": 2}):
        assert isinstance(refusal(context, forged(raw, signers["north"], **changes)), Truncated)


def test_ciphertexts_out_of_range_are_refused_by_sender(ordinary, context, report, signers):
    raw, public = report()[0], ordinary.public
    width = public.ciphertext_bytes
    good = parse(raw)[2][:width]
    bad = (
        bytes(width),
        (public.n_squared + 1).to_bytes(width, "big"),
        int(ordinary.q).to_bytes(width, "big"),
        b"\xff" * width,
    )
    for body in bad:
        said = refusal(context, resealed(raw, signers["north"], good + body))
        assert isinstance(said, BadCiphertext)
        assert "'north'" in str(said)
        assert "iphertext 1" in str(said)


def test_a_round_goes_on_without_what_is_refused_or_missing(ordinary, context, report):
    inbox, bad = Inbox(context), bytearray(report("valley")[0])
    bad[-1] ^= 1
    (refused,) = take_all(inbox, [*report("north"), bytes(bad), *report("coast")[:-1]])
    assert isinstance(refused, BadSignature)
    assert inbox.complete() == ["north"]
    with pytest.raises(TooFewReports, match="1 whole reports arrived and 2 are needed"):
        inbox.total(at_least=2)
    assert ordinary.open(inbox.total(at_least=1)) == list(MESSAGES)


def test_the_signature_covers_every_field_of_the_header(report, context):
    header, signature, _ = parse(report()[0])
    check_header(context, header, signature)
    for name, value in vars(header).items():
        other = replace(header, **{name: value + 1 if isinstance(value, int) else "coast"})
        with pytest.raises(BadSignature, match="altered"):
            check_header(context, other, signature)
