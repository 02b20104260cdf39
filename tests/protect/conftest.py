"""Keys of 512 bits, which only tests may make: 2048 bits and more would take minutes here and prove nothing more."""

import pytest

from tacit.crypto.keys import generate
from tacit.crypto.paillier import Randomisers

SMALL = 512


@pytest.fixture(scope="session", params=["ordinary", "short-exponent", "safe-prime"])
def key(request):
    """A key of every shape."""
    return generate(bits=SMALL, shape=request.param, least_bits=SMALL)


@pytest.fixture(scope="session")
def ordinary():
    return generate(bits=SMALL, shape="ordinary", least_bits=SMALL)


@pytest.fixture(scope="session")
def short():
    return generate(bits=SMALL, shape="short-exponent", least_bits=SMALL)


@pytest.fixture(scope="session")
def safe():
    return generate(bits=SMALL, shape="safe-prime", least_bits=SMALL)


@pytest.fixture
def stock():
    """Randomisers for a key, in this process alone."""
    return lambda key, **words: Randomisers(key.public, **{"expected": 100, "workers": 1} | words)
