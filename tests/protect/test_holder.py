"""The opener opens one sum of enough reports per round, and remembers it."""

import multiprocessing
import os

import pytest

from tacit.crypto.keys import new_signer
from tacit.crypto.proofs import prove
from tacit.crypto.reports import Opener, RoundContext, chunk_sizes, opener_of, write
from tacit.errors import BadInput, BadSignature, Duplicate, MessageRefused, OpeningRefused, Replayed, TooFewReports

NAMES, MESSAGES = ("coast", "hill", "north", "valley"), (5, 6, 7)


@pytest.fixture(scope="module")
def signers():
    return {name: new_signer(name) for name in NAMES}


@pytest.fixture
def context(safe, signers):
    """Places of round r."""
    members = {name: signer.public for name, signer in signers.items()}
    return lambda round: RoundContext("run", round, safe.public, "told", chunk_sizes(3, chunk=2), members)


@pytest.fixture
def reports(safe, context, signers, stock):
    def make(round=0, names=NAMES):
        found = []
        for name in names:
            values, secret = zip(*stock(safe).take_known(len(MESSAGES)), strict=True)
            row = safe.public.seal_with(MESSAGES, values)
            found += write(context(round), signers[name], row, prove(context(round).claim(name, row), MESSAGES, secret))
        return found

    return make


@pytest.fixture
def opener(tmp_path, safe):
    def make(file="openings.db", open_with=safe.open, **words):
        return Opener(tmp_path / file, open_with, **{"at_least": 3} | words)

    return make


def test_a_second_sum_of_a_round_is_refused_after_a_restart_too(opener, context, reports):
    first, messages = opener(), reports(0)
    first.open(context(0), messages)
    for other in (reports(0), reports(0, NAMES[:3])):  # sealed anew, the same numbers are another sum
        with pytest.raises(OpeningRefused, match=r"Another sum of round 1 .* has been opened"):
            first.open(context(0), other)
    with pytest.raises(OpeningRefused, match="has been opened"):
        opener().open(context(0), reports(0, NAMES[1:]))
    opener().open(context(1), reports(1))


def test_the_round_is_on_disk_before_anything_is_opened(opener, context, reports, tmp_path):
    def crash(total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opener(open_with=crash).open(context(0), reports(0))
    with pytest.raises(OpeningRefused, match="has been opened"):
        opener().open(context(0), reports(0))


def test_a_holder_that_was_killed_while_it_opened_can_be_asked_for_the_same_sum_and_no_other(opener, context, reports):
    messages = reports(0)

    def die():
        opener(open_with=lambda total: os._exit(9)).open(context(0), messages)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert process.exitcode == 9
    with pytest.raises(OpeningRefused, match="has been opened"):
        opener().open(context(0), reports(0, NAMES[:3]))
    for _ in range(2):
        assert opener().open(context(0), messages)[0] == [4 * m for m in MESSAGES]


def test_too_few_reports_are_not_opened_and_cost_nothing(opener, context, reports):
    opened = []
    refuser = opener(open_with=opened.append)
    with pytest.raises(TooFewReports, match="2 whole reports arrived and 3 are needed"):
        refuser.open(context(0), reports(0, NAMES[:2]))
    with pytest.raises(TooFewReports):
        refuser.open(context(0), reports(0)[:-3])  # the last chunks of two clients are missing
    assert opened == []
    opener().open(context(0), reports(0))


def test_one_report_twice_is_not_two(opener, context, reports):
    messages = reports(0, NAMES[:2])
    with pytest.raises(Duplicate):
        opener().open(context(0), [*messages, *messages[:2]])


def test_reports_that_are_not_in_order_are_not_opened(opener, context, reports):
    opened, messages = [], reports(0)
    refuser = opener(open_with=opened.append)
    with pytest.raises(Replayed):
        refuser.open(context(0), [*messages, *reports(1)])
    altered = [*messages[:-1], messages[-1][:-1] + bytes([messages[-1][-1] ^ 1])]
    with pytest.raises(BadSignature):
        refuser.open(context(0), altered)
    with pytest.raises(MessageRefused):
        refuser.open(context(0), [*messages, b""])
    assert opened == []


def test_only_the_one_whose_turn_it_is_opens(opener, context, reports):
    turns = [opener_of(NAMES, run="run", round=r) for r in range(200)]
    assert set(turns) == set(NAMES)
    assert turns == [opener_of(NAMES[::-1], run="run", round=r) for r in range(200)]
    other = next(name for name in NAMES if name != turns[0])
    with pytest.raises(OpeningRefused, match=f"opened by '{turns[0]}', not by '{other}'"):
        opener(file="other.db", name=other, openers=NAMES).open(context(0), reports(0))
    opened, clients = opener(file="own.db", name=turns[0], openers=NAMES).open(context(0), reports(0))
    assert (opened, clients) == ([4 * m for m in MESSAGES], list(NAMES))
    with pytest.raises(BadInput, match="not among the openers"):
        opener(name="lake", openers=NAMES)
    with pytest.raises(BadInput, match="at_least >= 2"):
        opener(at_least=1)


def test_a_disk_that_cannot_remember_opens_nothing(tmp_path, safe, context, reports):
    with pytest.raises(OpeningRefused, match="cannot be kept"):
        Opener(tmp_path, safe.open, at_least=3)
    opened = []
    refuser = Opener(tmp_path / "o.db", opened.append, at_least=3)
    refuser._db.execute("DROP TABLE openings")
    with pytest.raises(OpeningRefused, match="nothing was opened"):
        refuser.open(context(0), reports(0))
    assert opened == []
