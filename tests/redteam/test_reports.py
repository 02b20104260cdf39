"""What a site may send a server in the place of its report: refused in the site's own name, and the round goes on."""

import hashlib
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redteam.cheating_site import MEMBERS, SIGNERS, context_of, message, small_key
from redteam.cheating_site import site as site_of

from tacit.check import printable
from tacit.crypto.grid import Lanes
from tacit.crypto.reports import Inbox, parse
from tacit.crypto.seal import Plain, Sealed, SealedSum
from tacit.deploy.server.trainer import attributed, spent_of
from tacit.errors import BadSignature, MessageRefused
from tacit.types import Message
from tacit.wire import pack, receive_any

NUMBERS, KEY = (11, 22, 33), small_key()
CONTEXT = context_of(KEY)


def site(name):
    return site_of(name, CONTEXT)


def crafted():
    """Bytes that a site may send in the place of its report, by what is wrong with them."""
    good = site("coast").report(NUMBERS)
    cheat = site("coast")
    width = CONTEXT.public.ciphertext_bytes
    nested = b"[" * 2000 + b"]" * 2000
    head = parse(good[0])[0]
    kinds = {
        "a nested header, 4 kB and unsigned": [len(nested).to_bytes(4, "big") + nested + bytes(64), good[1]],
        "a signed nested header": [cheat.framed(nested), good[1]],
        "an object where a text belongs": [cheat.framed(head.raw().replace(b'"coast"', b"{}")), good[1]],
        "spaces in the header": [cheat.framed(head.raw().replace(b",", b", ")), good[1]],
        "a round that is true": [cheat.framed(head.raw().replace(b'"round":1', b'"round":true')), good[1]],
        "a round of four thousand digits": [
            cheat.framed(head.raw().replace(b'"round":1', b'"round":1' + b"0" * 3900)),
            good[1],
        ],
        "NaN": [cheat.framed(head.raw().replace(b'"round":1', b'"round":NaN')), good[1]],
        "a name twice": [cheat.framed(head.raw()[:-1] + b',"round":1}'), good[1]],
        "a chunk of no round": [cheat.resigned(good[0], chunk=-1), good[1]],
        "zeros": [
            cheat.resigned(good[0], sha256=hashlib.sha256(bytes(2 * width)).hexdigest())[: -2 * width]
            + bytes(2 * width),
            good[1],
        ],
        "nothing": [b"", b""],
        "a part missing": good[:1],
        "a part twice": [good[0], good[0]],
        "another's report": site("north").report(NUMBERS),
    }
    return {why: pack(message("coast", parts)) for why, parts in kinds.items()} | wired(good)


def wired(good):
    """The same for what is around a report."""
    whole = message("coast", good).tensors
    facts = json.dumps({"sender": "coast", "facts": {}})

    def with_facts(text):
        raw = pack(Message("coast", whole))
        size = int.from_bytes(raw[:8], "little")
        head = json.loads(raw[8 : 8 + size])
        head["__metadata__"]["tacit"] = text
        changed = json.dumps(head).encode()
        changed += b" " * (-len(changed) % 8)
        return len(changed).to_bytes(8, "little") + changed + raw[8 + size :]

    deep = "[" * 50_000 + "]" * 50_000
    bent = [tensor.view(-1, 1) for tensor in whole.values()]
    return {
        "nested facts": with_facts(facts.replace("{}", deep)),
        "no facts": with_facts("null"),
        "a list of senders": with_facts(json.dumps({"sender": ["coast"], "facts": {}})),
        "a number for a sender": with_facts(json.dumps({"sender": 1, "facts": {}})),
        "facts that are a text": with_facts(json.dumps({"sender": "coast", "facts": "none"})),
        "another's name": pack(Message("north", whole)),
        "a stranger's name": pack(Message("\ud800" * 9, whole)),
        "numbers that NumPy does not know": pack(Message("coast", whole | {"report": torch.zeros(9, dtype=torch.bfloat16)})),
        "floats": pack(Message("coast", {name: tensor.float() for name, tensor in whole.items()})),
        "columns": pack(Message("coast", dict(zip(whole, bent, strict=True)))),
        "a scalar": pack(Message("coast", whole | {"report": torch.tensor(1, dtype=torch.uint8)})),
        "one tensor more": pack(Message("coast", whole | {"update": torch.zeros(3)})),
        "no tensors": pack(Message("coast", {})),
        "not safetensors": b"\xff" * 4096,
        "a header longer than the message": (1 << 62).to_bytes(8, "little") + b"{}",
        "no bytes": b"",
    }  # fmt: skip


CRAFTED = crafted()


SEAL = Sealed(Lanes(3, 10, 3, 30), KEY.public, "run", "told", MEMBERS, SIGNERS, site("north").source)
REPORT = site("coast").report(NUMBERS)


@pytest.fixture
def found():
    """Where a server puts the reports of a round, with one whole report in it."""
    collected = SealedSum(SEAL, Inbox(CONTEXT))
    collected.accept(message("north", site("north").report(NUMBERS)))
    return collected


@pytest.mark.parametrize("why", CRAFTED)
def test_whatever_a_site_sends_is_refused_in_its_own_name_and_the_others_stay(found, why):
    heard = receive_any(attributed(CRAFTED[why], "coast"))
    assert heard.sender == "coast"
    with pytest.raises(MessageRefused):
        found.accept(heard)
    assert found.settle() == {}
    assert found.clients == list(found.messages) == ["north"]
    found.accept(message("coast", site("coast").report(NUMBERS)))
    assert found.settle() == {}
    assert found.clients == ["coast", "north"]


def test_a_second_report_of_a_site_is_refused_and_the_first_counts(found):
    for again in (found.messages["north"], site("north").report(NUMBERS)):
        with pytest.raises(MessageRefused, match="'north'"):
            found.accept(message("north", again))
    assert found.settle() == {}
    assert found.clients == list(found.messages) == ["north"]


def test_a_site_cannot_take_anothers_place_with_its_signed_report(found):
    theirs = site("valley").report(NUMBERS)
    with pytest.raises(BadSignature, match="in the name of 'valley'"):
        found.accept(message("coast", theirs))
    found.accept(message("valley", theirs))
    assert found.settle() == {}
    assert found.clients == ["north", "valley"]


@pytest.mark.parametrize("lowest", [-(2**31), -(2**63)])
def test_a_readable_report_of_the_lowest_integer_does_not_pass_for_a_small_one(lowest):
    lanes = Lanes(3, 10 if lowest == -(2**31) else 2**40, 3, 62)
    seal = Plain(lanes, 2)
    found = seal.collect(round=0)
    report = torch.zeros(3, dtype=seal.kind)
    report[0] = lowest
    with pytest.raises(Exception, match="beyond the grid"):
        found.accept(Message("coast", {"report": report}))


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int64, torch.complex64, torch.bfloat16, torch.float32])
def test_a_readable_report_of_another_kind_of_numbers_is_refused(kind):
    found = Plain(Lanes(3, 10, 3, 62), 2).collect(round=0)
    with pytest.raises(Exception, match="is not 3 integers"):
        found.accept(Message("coast", {"report": torch.ones(3).to(kind)}))


@pytest.mark.parametrize(
    "facts",
    [
        None,
        [],
        {},
        {"epsilon": "much"},
        {"epsilon": True},
        {"epsilon": float("nan")},
        {"epsilon": [1]},
        {"epsilon": -1},
        {"epsilon": 10**400},
    ],
)
def test_what_a_site_says_of_its_ledger_is_a_number_or_nothing(facts):
    assert spent_of(facts) is None
    assert spent_of({"epsilon": 2}) == 2.0


@settings(max_examples=300, deadline=None)
@given(cuts=st.lists(st.tuples(st.integers(0, 5000), st.binary(max_size=8)), min_size=1, max_size=4))
def test_a_mutated_message_is_refused_or_the_very_same_report(cuts):
    raw = pack(message("coast", REPORT))
    for at, other in cuts:
        raw = raw[: at % len(raw)] + other + raw[at % len(raw) + len(other) :]
    collected = SealedSum(SEAL, Inbox(CONTEXT))
    try:
        collected.accept(receive_any(attributed(raw, "coast")))
    except MessageRefused:
        assert collected.settle() == collected.messages == {}
    else:
        assert collected.settle() == {}
        assert collected.messages == {"coast": REPORT}


def test_what_is_written_down_of_a_refusal_is_short_and_printable():
    assert printable("\x1b[2J" + "x" * 10**6) == "?[2J" + "x" * 496
