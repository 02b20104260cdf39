"""Texts as numbers."""

from hypothesis import given
from hypothesis import strategies as st

from tacit.data import names


@given(st.lists(st.lists(st.text("ab01", min_size=1), min_size=1), min_size=1))
def test_merged_codes_give_every_text_back(parts):
    known, codes = names.merged([names.coded(part) for part in parts])
    assert [known[code] for code in codes] == [text for part in parts for text in part]
    assert len(set(known)) == len(known)


def test_numbers_inside_names_are_sorted_as_numbers():
    assert names.in_natural_order(["c10", "c9", "b", "10", "9"]) == ("9", "10", "b", "c9", "c10")


@given(st.lists(st.one_of(st.from_regex(r"(client-)?[0-9]{1,3}", fullmatch=True), st.text(max_size=4)), max_size=8))
def test_names_that_differ_in_one_number_alone_come_in_the_order_of_all_others(texts):
    assert names.in_natural_order(texts) == tuple(sorted(texts, key=names._naturally))


@given(st.lists(st.from_regex(r"site[0-9]{1,4}", fullmatch=True), min_size=1, max_size=8))
def test_the_fast_order_is_that_of_its_slow_twin(texts):
    assert names.in_natural_order(texts) == tuple(sorted(texts, key=names._naturally))
