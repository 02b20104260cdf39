"""Integer noise: the mass function both ways, sums of shares, the slow twins, OpenDP's sampler, the tails."""

from collections import Counter

import gmpy2
import mpmath
import numpy as np
import opendp.prelude as dp
import pytest
from scipy import special
from statistical import has_masses, has_std, is_normal

from tacit.errors import BadInput
from tacit.privacy import integers as discrete
from tacit.privacy import integers as wide
from tacit.privacy.integers import BITS, DiscreteGaussian, Skellam, distance, draw, reach, table
from tacit.random import seeded

COUNT = 200_000


def skellam_mass(variance):
    return lambda k: special.ive(np.abs(k), variance)


def gaussian_mass(sigma2):
    support = np.arange(-400, 401)
    total = np.exp(-(support**2) / (2 * sigma2)).sum()
    return lambda k: np.exp(-(np.asarray(k) ** 2) / (2 * sigma2)) / total


LAWS = [(Skellam, skellam_mass), (DiscreteGaussian, gaussian_mass)]


@pytest.mark.parametrize(("law", "mass"), LAWS)
@pytest.mark.parametrize("variance", [0.3, 4.0, 150.0])
def test_draws_follow_the_mass_function_and_not_one_of_two_thirds_or_three_halves_sigma(law, mass, variance):
    sample = draw(law(variance), seeded(0)("noise"), COUNT)
    assert has_masses(sample, mass(variance))
    assert not has_masses(sample, mass(variance * (2 / 3) ** 2))
    assert not has_masses(sample, mass(variance * (3 / 2) ** 2))
    assert not has_masses(sample + 1, mass(variance))


def test_a_sum_of_skellam_shares_is_the_skellam_of_the_whole_variance():
    total = sum(draw(Skellam(12.0 / 5), seeded(0)(f"client-{i}"), COUNT) for i in range(5))
    assert has_masses(total, skellam_mass(12.0))
    assert not has_masses(total, skellam_mass(12.0 * 4 / 9))
    assert not has_masses(total, skellam_mass(12.0 * 9 / 4))


def test_a_sum_of_discrete_gaussian_shares_is_close_to_the_discrete_gaussian_and_the_gap_shows_when_they_are_narrow():
    wide = sum(draw(DiscreteGaussian(4.0), seeded(0)(f"client-{i}"), COUNT) for i in range(5))
    assert has_masses(wide, gaussian_mass(20.0))
    narrow = sum(draw(DiscreteGaussian(0.2), seeded(0)(f"client-{i}"), COUNT) for i in range(5))
    assert not has_masses(narrow, gaussian_mass(1.0))


def test_opendp_draws_the_same_discrete_gaussian():
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    theirs = np.array(dp.m.make_gaussian(*space, scale=3.0)([0] * 50_000))
    assert has_masses(theirs, gaussian_mass(9.0))
    ours = draw(DiscreteGaussian(9.0), seeded(0)("ours"), 50_000)
    assert same_law(ours, theirs)
    assert not same_law(draw(DiscreteGaussian(9.0 * 4 / 9), seeded(0)("less"), 50_000), theirs)


def same_law(one, other):
    """A chi-square test of two samples of one size, on the cells that are full enough."""
    a, b = Counter(one.tolist()), Counter(other.tolist())
    cells = [k for k in a | b if a[k] + b[k] >= 50]
    total = sum((a[k] - b[k]) ** 2 / (a[k] + b[k]) for k in cells)
    return total < 3 * len(cells) + 30


@pytest.mark.parametrize(
    "law", [Skellam(0.01), Skellam(7.0), Skellam(3e5), DiscreteGaussian(0.3), DiscreteGaussian(5e4)]
)
def test_the_table_is_the_distribution_function_to_its_last_bits(law):
    found = table(law)
    mpmath.mp.prec, variance = 400, mpmath.mpf(law.variance)
    if isinstance(law, Skellam):
        mass = [mpmath.besseli(k, variance) * mpmath.exp(-variance) for k in range(3)]
    else:
        total = mpmath.jtheta(3, 0, mpmath.exp(-1 / (2 * variance)))
        mass = [mpmath.exp(-mpmath.mpf(k * k) / (2 * variance)) / total for k in range(3)]
    cdf = whole(found)
    for k in range(3):
        here = int(cdf[found.last + k] - cdf[found.last + k - 1])
        assert abs(mpmath.mpf(here) / 2**BITS - mass[k]) < mpmath.mpf(2) ** (3 - BITS)
    assert cdf == sorted(cdf)


def whole(found):
    """A table's entries as one integer each."""
    return [(int(high) << (BITS - 64)) + rest for high, rest in zip(found.high, found.rest, strict=True)]


def test_bits_that_do_not_decide_are_continued():
    law = Skellam(2.0)
    found, stream = table(law), seeded(0)("ties")
    mark = found.last + 1  # P(X <= 1): its first 64 bits alone cannot tell 1 from 2
    sample = found.look_up(np.full(20_000, found.high[mark]), stream)
    expected = 1 - found.rest[mark] / 2 ** (BITS - 64)  # the share of the other bits that lie above
    assert set(sample.tolist()) == {1, 2}
    assert abs((sample == 2).mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / 20_000)


@pytest.mark.parametrize("law", [Skellam(0.5), DiscreteGaussian(9.0), DiscreteGaussian(1e4), Skellam(3e6)])
def test_places_are_found_as_by_bisection_wherever_bits_lie(law):
    found, most = table(law), np.uint64(2**64 - 1)
    firsts = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    one = np.uint64(1)
    near = [
        found.high,
        found.high + (found.high < most),
        found.high - (found.high > 0),
        firsts,
        firsts | (one << np.uint64(47)),
    ]
    high = np.concatenate(
        [*near, seeded(0)("bits").words(400_000).view(np.uint64), np.array([0, most], dtype=np.uint64)]
    )
    index, there = found.places(high)
    assert np.array_equal(index, np.searchsorted(found.high, high))  # the slow twin
    assert np.array_equal(there, np.append(found.high, most)[index])


@pytest.mark.parametrize(
    "law", [Skellam(0.5), Skellam(40.0), Skellam(900.0), DiscreteGaussian(0.5), DiscreteGaussian(40.0)]
)
def test_the_proven_tail_is_above_the_real_one_and_not_far(law):
    cdf = whole(table(law))
    for bits in (10, 30, 60):
        t = reach(law, log2_probability=-bits)
        both = 2 * int(cdf[table(law).last - t])  # P(X <= -t) + P(X >= t)
        assert both <= 2 ** (BITS - bits)
        assert both >= 2 ** (BITS - bits - 12)


def test_the_distance_of_a_draw_is_stated_and_tiny():
    assert 0 < distance(Skellam(1.0)) < distance(Skellam(1e12)) < 2.0**-200


WIDE = [Skellam(2.0**30), DiscreteGaussian(2.0**30), Skellam(1e13)]


@pytest.mark.parametrize("law", WIDE)
def test_wide_noise_is_normal_to_the_eye_and_not_of_two_thirds_or_three_halves_sigma(law):
    assert reach(law, log2_probability=-BITS) > discrete.WIDEST
    sample = draw(law, seeded(0)("wide"), COUNT)
    std = law.variance**0.5
    assert has_std(sample, std)
    assert is_normal(sample, std)
    assert not has_std(sample, std * 2 / 3)
    assert not has_std(sample, std * 3 / 2)
    assert abs((sample % 2).mean() - 0.5) < 5 / (2 * COUNT**0.5)  # the last bit is random too


@pytest.mark.parametrize(("law", "mass"), LAWS)
def test_rejection_follows_the_mass_function_where_a_table_could_be_used(law, mass):
    """On narrow laws, with their exact masses, the way of the wide ones is held to the same test."""

    class Narrow(law):
        def log_ratio(self, k):
            return np.log(self._masses(k))

        def exact_ratio(self, k):
            return float(self._masses(k))

        def _masses(self, k):
            return mass(150.0)(k) / mass(150.0)(0)

    sample = wide.draw_wide(Narrow(150.0), seeded(0)("narrow"), COUNT, last=100)
    assert has_masses(sample, mass(150.0))
    assert not has_masses(sample, mass(150.0 * 4 / 9))
    assert not has_masses(sample, mass(150.0 * 9 / 4))


def test_draws_too_close_to_call_are_decided_exactly(monkeypatch):
    monkeypatch.setattr(wide, "CLOSE", 1e-2)  # one draw in fifty takes the exact way
    wide.blocks.cache_clear()
    asked = []
    monkeypatch.setattr(wide, "_decide", lambda *a, real=wide._decide: asked.append(real(*a)) or asked[-1])
    sample = draw(Skellam(2.0**30), seeded(0)("close"), 20_000)
    wide.blocks.cache_clear()
    assert len(asked) > 100
    assert has_std(sample, 2.0**15)
    assert len(set(asked)) == 2


def test_debyes_expansion_is_the_bessel_function():
    variance = 2.0**24
    last = 13 * 2**12
    with gmpy2.context(precision=400):
        masses = Skellam(variance).masses(last)
        for k in (1, 4096, 5 * 4096, last):
            exactly = masses[k] / masses[0]
            assert abs(Skellam(variance).exact_ratio(k) / exactly - 1) < gmpy2.mpfr(2) ** -250
            floating = Skellam(variance).log_ratio(np.array([k]))[0]
            assert abs(floating - float(gmpy2.log(exactly))) < 2.0**-41


def test_the_same_stream_gives_the_same_noise_and_another_place_another():
    a, b, c = (draw(Skellam(9.0), seeded(s)("n"), 1000) for s in (0, 0, 1))
    assert (a == b).all()
    assert (a != c).any()


@pytest.mark.parametrize("variance", [0.0, -1.0, float("nan"), float("inf")])
def test_a_variance_that_is_none_is_refused(variance):
    with pytest.raises(BadInput):
        Skellam(variance)
    with pytest.raises(BadInput):
        DiscreteGaussian(variance)
