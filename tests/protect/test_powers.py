import pytest
from gmpy2 import mpz, powmod
from hypothesis import given
from hypothesis import strategies as st

from tacit.crypto.paillier import Comb
from tacit.crypto.proofs import product_of_powers

PAIRS = st.lists(st.tuples(st.integers(1, 10**12), st.integers(0, 2**40 - 1)), max_size=40)


@given(PAIRS, st.integers(2, 10**9))
def test_the_product_is_that_of_single_powers(pairs, modulus):
    expected = mpz(1)
    for base, exponent in pairs:
        expected = expected * powmod(base, exponent, modulus) % modulus
    bases, exponents = [mpz(base) for base, _ in pairs], [exponent for _, exponent in pairs]
    assert product_of_powers(bases, exponents, mpz(modulus), bits=40) % modulus == expected % modulus


@given(st.integers(1, 10**12), st.integers(0, 2**50 - 1), st.integers(2, 10**9), st.integers(1, 6), st.integers(1, 50))
def test_a_comb_gives_the_power(base, exponent, modulus, teeth, blocks):
    comb = Comb(mpz(base), mpz(modulus), bits=50, teeth=teeth, blocks=blocks)
    assert comb.power(exponent) % modulus == powmod(base, exponent, modulus)


@pytest.mark.parametrize("exponent", [-1, 1 << 60])
def test_a_comb_refuses_an_exponent_it_has_no_room_for(exponent):
    with pytest.raises(ValueError, match="comb"):
        Comb(mpz(3), mpz(1001), bits=50, teeth=5, blocks=2).power(exponent)
