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
