import numpy as np
import pytest
from statistical import has_std, is_normal

from tacit.random import Stream, from_os, seeded


def test_the_same_place_gives_the_same_stream_and_another_place_another():
    derive = seeded(3)
    first = derive(1, "a", "noise").normal(100)
    assert (first == derive(1, "a", "noise").normal(100)).all()
    for other in (
        derive(2, "a", "noise"),
        derive(1, "b", "noise"),
        derive(1, "a", "batch"),
        seeded(4)(1, "a", "noise"),
    ):
        assert not (first == other.normal(100)).any()


def test_places_that_read_alike_are_different():
    assert not (seeded(0)(1, "2").words(8) == seeded(0)("1", 2).words(8)).all()


def test_the_operating_system_never_gives_the_same_stream_twice():
    derive = from_os()
    assert not (derive(1, "a").words(8) == derive(1, "a").words(8)).all()


def test_normals_have_unit_variance_and_not_two_thirds_or_three_halves():
    sample = seeded(1)("normal").normal(200_000)
    assert has_std(sample, 1.0)
    assert is_normal(sample, 1.0)
    assert not has_std(sample, 2 / 3)
    assert not has_std(sample, 3 / 2)


def test_normals_from_the_operating_system_are_normal_too():
    sample = from_os()("any").normal(200_000)
    assert has_std(sample, 1.0)
    assert is_normal(sample, 1.0)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_any_number_of_normals_can_be_drawn(count):
    assert seeded(0)("n").normal(count).shape == (count,)


def test_the_tail_is_not_cut_where_32_bits_end(monkeypatch):
    stream = seeded(0)("tail")
    monkeypatch.setattr(Stream, "words", lambda self, count: np.zeros(count, dtype=np.uint32))
    assert stream.normal(2).abs().max() > 6.7


def test_uniforms_fill_the_unit_interval():
    sample = seeded(0)("u").uniform(100_000)
    assert 0 <= sample.min() < 1e-3
    assert 1 - 1e-3 < sample.max() < 1
    assert abs(sample.mean() - 0.5) < 0.01


def test_a_key_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        Stream(b"short")
