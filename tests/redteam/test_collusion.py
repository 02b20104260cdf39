"""Who opens what with whose help: the rows of "When parties join forces" in docs/threat-model.md."""

from dataclasses import replace
from itertools import combinations

import pytest
from redteam.cheating_site import NAMES, ciphertexts_of, context_of, site, small_key

from tacit.crypto.reports import Opener, opener_of
from tacit.crypto.threshold import combine, deal, fewest_shares
from tacit.errors import BadInput, OpeningRefused

NUMBERS = {name: (100 + index, 7 * index, 3) for index, name in enumerate(NAMES)}


@pytest.fixture
def key():
    return small_key("safe-prime")


@pytest.fixture
def context(key):
    return context_of(key, round=0)


@pytest.fixture
def reports(context):
    """Every site's signed report of the round, as the server has it."""
    return {name: site(name, context).report(NUMBERS[name]) for name in NAMES}


def summed(names):
    return [sum(column) for column in zip(*(NUMBERS[name] for name in names), strict=True)]


def single(context, reports, name="coast"):
    """The ciphertexts of one report, which no holder would add up alone."""
    return ciphertexts_of(context, reports[name])


def test_with_a_common_key_one_holder_opens_any_single_report(key, context, reports):
    """`protect.threshold = 1`: one client's key and the ciphertexts are all it takes; no proof or roster is in the way."""
    for name in NAMES:
        assert key.open(single(context, reports, name)) == list(NUMBERS[name])


def test_a_dealer_who_keeps_the_key_that_it_split_opens_any_single_report(key, context, reports):
    deal(key, threshold=3, of=5)
    assert key.open(single(context, reports)) == list(NUMBERS["coast"])


@pytest.mark.parametrize(("threshold", "of"), [(2, 3), (3, 5), (4, 5), (5, 5)])
def test_as_many_holders_as_the_threshold_open_any_single_report_and_one_fewer_opens_nothing(
    key, context, reports, monkeypatch, threshold, of
):
    """By force: whoever leaves out the threshold and the proofs that bind it, with every group of t - 1 shares."""
    shares, one = deal(key, threshold=threshold, of=of), single(context, reports)
    whole, parts = shares[0].verification, [share.open(one, workers=1) for share in shares]
    for some in combinations(parts, threshold):
        assert combine(whole, one, some) == list(NUMBERS["coast"])
    with pytest.raises(BadInput, match=f"{threshold - 1} shares? answered, {threshold} are needed"):
        combine(whole, one, parts[: threshold - 1])
    lower = replace(whole)
    object.__setattr__(lower, "threshold", threshold - 1)
    monkeypatch.setattr("tacit.crypto.threshold.refuse_wrong", lambda *_: None)
    monkeypatch.setattr("tacit.crypto.threshold.refuse_overflow", lambda *_: None)
    for few in combinations(parts, threshold - 1):
        assert not set(combine(lower, one, few)) & set(NUMBERS["coast"])


@pytest.mark.parametrize("colluding", [0, 1, 2])
@pytest.mark.parametrize("threshold", [3, 4, 5])
def test_colluders_and_a_lying_server_get_two_sums_of_a_round_only_where_2t_is_not_more_than_n_and_them(
    key, context, reports, threshold, colluding
):
    """Honest holders answer once a round, colluders as often as they are asked. The difference of the sums is one report."""
    shares = deal(key, threshold=threshold, of=len(NAMES))
    most = [list(NAMES), [name for name in NAMES if name != "valley"]]
    shown = [[raw for name in names for raw in reports[name]] for names in most]
    totals = [key.public.add([ciphertexts_of(context, reports[name]) for name in names]) for names in most]
    honest, liars = shares[colluding:], shares[:colluding]
    parts = [[share.open(total, workers=1) for share in liars] for total in totals]
    for index, share in enumerate(honest):  # the best a server can do: ask them for the two sums in turn
        holder = Opener(":memory:", share.open, at_least=2)
        parts[index % 2].append(holder.open(context, shown[index % 2])[0])
        with pytest.raises(OpeningRefused, match="Another sum of round 1"):
            holder.open(context, shown[1 - index % 2])
    both = all(len(some) >= threshold for some in parts)
    assert both == (2 * threshold <= len(NAMES) + colluding)
    assert (
        threshold < fewest_shares(of=len(NAMES), colluding=colluding)
    ) == both  # which a run with so many is refused for
    if both:
        first, second = (
            combine(shares[0].verification, total, some) for total, some in zip(totals, parts, strict=True)
        )
        assert [a - b for a, b in zip(first, second, strict=True)] == list(NUMBERS["valley"])


def test_two_holders_of_a_common_key_without_turns_would_open_sums_that_differ_by_one_report(key, context, reports):
    """Each keeps a list of its own, so each opens a sum of the round; by turns only one of them does."""
    everybody = [raw for name in NAMES for raw in reports[name]]
    but_one = [raw for name in NAMES if name != "valley" for raw in reports[name]]
    first, second = (Opener(":memory:", key.open, at_least=2) for _ in range(2))
    opened = first.open(context, everybody)[0], second.open(context, but_one)[0]
    assert [a - b for a, b in zip(*opened, strict=True)] == list(NUMBERS["valley"])
    turn = opener_of(NAMES, run=context.run, round=context.round)
    for name in NAMES:
        holder = Opener(":memory:", key.open, at_least=2, name=name, openers=NAMES)
        if name == turn:
            assert holder.open(context, everybody)[0] == summed(NAMES)
        else:
            with pytest.raises(OpeningRefused, match="ask there"):
                holder.open(context, but_one)


def test_clients_who_join_forces_without_the_server_have_the_sum_less_their_own_reports(key, context, reports):
    everybody = [raw for name in NAMES for raw in reports[name]]
    opened, whose = Opener(":memory:", key.open, at_least=2).open(context, everybody)
    joined = ("coast", "hill")
    rest = [total - own for total, own in zip(opened, summed(joined), strict=True)]
    assert set(whose) == set(NAMES)
    assert rest == summed(name for name in NAMES if name not in joined)
