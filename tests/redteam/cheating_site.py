"""A site that cheats: it has its own signing key and the public key, and signs whatever it likes."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import gmpy2
import torch
from gmpy2 import mpz

from tacit.crypto.keys import generate, new_signer
from tacit.crypto.paillier import PublicKey, Randomisers, SecretKey
from tacit.crypto.proofs import coefficients, comb, product_of_powers, proof_bytes, proof_to_bytes, prove
from tacit.crypto.reports import LENGTH_BYTES, PREFIX, RoundContext, Signer, chunk_sizes, parse, write
from tacit.types import Message

NAMES = ("coast", "hill", "north", "south", "valley")
SIGNERS = {name: new_signer(name) for name in NAMES}
MEMBERS = {name: signer.public for name, signer in SIGNERS.items()}
SHAPES = ("ordinary", "short-exponent", "safe-prime", "from elsewhere")


@cache
def small_key(shape: str = "ordinary") -> SecretKey:
    """A key of 512 bits; one from elsewhere has no h_s, as python-paillier makes them."""
    made = generate(bits=512, shape="ordinary" if shape == "from elsewhere" else shape, least_bits=512)  # type: ignore
    return made if shape != "from elsewhere" else replace(made, public=PublicKey(made.public.n, least_bits=512))


def context_of(key: SecretKey, numbers: Sequence[int] = (11, 22, 33), *, round: int = 1, told: str = "told"):
    """Where reports of so many numbers belong."""
    return RoundContext("run", round, key.public, told, chunk_sizes(len(numbers), chunk=2), MEMBERS)


def site(name: str, context: RoundContext) -> "CheatingSite":
    return CheatingSite(context, SIGNERS[name])


class CheatingSite:
    """Reports on a round that no honest client would send, every one of them signed."""

    def __init__(self, context: RoundContext, signer: Signer):
        self.context, self.signer = context, signer
        self.source = Randomisers(context.public, expected=10, workers=1)

    def sealed(self, numbers: Sequence[int]) -> tuple[list[mpz], tuple[mpz, ...]]:
        """Ciphertexts of these numbers, and the secret numbers behind their randomisers."""
        values, secret = zip(*self.source.take_known(len(numbers)), strict=True)
        return self.context.public.seal_with(numbers, values), secret

    def report(self, numbers: Sequence[int], *, proved_for: RoundContext | None = None, proved_as: str | None = None):
        """A report on any numbers below n / 2, on the grid or not; its proof may be for somewhere or somebody else."""
        ciphertexts, secret = self.sealed(numbers)
        claim = (proved_for or self.context).claim(proved_as or self.signer.client, ciphertexts)
        return self.signed(ciphertexts, prove(claim, numbers, secret))

    def borrowed(self, theirs: Sequence[mpz], *, times: int, offset: int = 0):
        """c^k Enc(offset) for somebody's ciphertexts c, with the best proof that it can make: the one for its offset."""
        n_squared = self.context.public.n_squared
        own, secret = self.sealed([offset] * len(theirs))
        mixed = [gmpy2.powmod(c, times, n_squared) * mine % n_squared for c, mine in zip(theirs, own, strict=True)]
        return self.signed(mixed, prove(self.context.claim(self.signer.client, mixed), [offset] * len(own), secret))

    def twisted(self, numbers: Sequence[int], factor: int, *, ciphertext: int = 1):
        """A report whose equation is off by a factor put into its commitment, and whose first ciphertext is multiplied."""
        public, (ciphertexts, secret) = self.context.public, self.sealed(numbers)
        ciphertexts[0] = ciphertexts[0] * ciphertext % public.n_squared
        claim = self.context.claim(self.signer.client, ciphertexts)
        x, s = mpz(secrets.randbelow(int(public.n))), mpz(secrets.randbits(128))
        hidden = gmpy2.powmod(s, public.n, public.n_squared) if public.h_s is None else comb(public).power(s)
        commitment = (1 + x * public.n) * hidden * factor % public.n_squared
        e = coefficients(public, claim.seed(), commitment, len(numbers))
        z1 = (x + sum(a * b for a, b in zip(e, numbers, strict=True))) % public.n
        z2 = s + sum(a * b for a, b in zip(e, secret, strict=True))
        if public.h_s is None:
            z2 = s * product_of_powers(secret, e, public.n, bits=128) % public.n
        return self.signed(ciphertexts, proof_to_bytes(public, commitment, z1, z2))

    def signed(self, ciphertexts: Sequence[mpz], proof: bytes | None = None) -> list[bytes]:
        """Signs ciphertexts and a proof, of zeros where none is given."""
        return list(write(self.context, self.signer, ciphertexts, proof or bytes(proof_bytes(self.context.public))))

    def resigned(self, raw: bytes, **changes) -> bytes:
        """A message with another header, signed by this site."""
        header, _, body = parse(raw)
        return self.framed(replace(header, **changes).raw(), body)

    def framed(self, head: bytes, body: bytes = b"") -> bytes:
        """Any header at all, signed by this site."""
        return len(head).to_bytes(LENGTH_BYTES, "big") + head + self.signer.sign(PREFIX + head) + body


def ciphertexts_of(context: RoundContext, messages: Sequence[bytes]) -> list[mpz]:
    """The ciphertexts of a report, as anybody who sees it can read them."""
    found = []
    for number, raw in zip(context.chunk_sizes, messages, strict=True):
        found += context.public.from_bytes(parse(raw)[2][: number * context.public.ciphertext_bytes])
    return found


def message(client: str, parts: Sequence[bytes]) -> Message:
    """A report as it crosses the wire."""
    named = {f"report-{i}" if i else "report": _tensor(raw) for i, raw in enumerate(parts)}
    return Message(client, named)


def _tensor(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.zeros(0, dtype=torch.uint8)
