"""Randomness derived from a seed or a digest and the place it is used, or taken from the operating system.

A `Stream` is AES-256 in counter mode (NIST SP 800-38A) under a key. The key is either a hash of the run's seed and the
place it is used (partition, initial weights), or of a digest of the whole release (tacit/engine/release.py: a resumed run equals
an uninterrupted one, bit for bit, and no other release has the same noise), or 32 bytes of the operating system's entropy
(deployments: nobody can draw the noise again). The same code follows, so what is tested seeded is what
is deployed.

Normals are Box-Muller pairs in float32. A 31-bit uniform would cut the tail at 6.6 sigma; the smallest 2^-16 of the
uniforms are therefore refined with 53 more bits, which moves the cut to 10.8 sigma. Floating-point noise is still only
an approximation of real-valued noise: see docs/sharp-edges.md.
"""

import hashlib
import math
import os
from collections.abc import Callable

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

KEY_BYTES = 32
REFINE_BELOW = 1 << 15  # of 2^31: one uniform in 65,536 gets 53 more bits
TO_UNIT = float(2.0**-31)
TO_ANGLE = float(2 * math.pi * 2.0**-32)

Derive = Callable[..., "Stream"]


class Stream:
    """A stream of random numbers under one key.

    >>> a, b = seeded(7)(3, "client-1", "noise"), seeded(7)(3, "client-1", "noise")
    >>> bool((a.normal(5) == b.normal(5)).all())
    True
    """

    def __init__(self, key: bytes):
        if len(key) != KEY_BYTES:
            raise ValueError(f"a stream needs a key of {KEY_BYTES} bytes, got {len(key)}")
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> np.ndarray:
        """`count` uniform 32-bit words."""
        return np.frombuffer(self._cipher.update(bytes(4 * count)), dtype=np.uint32)

    def uniform(self, count: int) -> np.ndarray:
        """`count` float64 uniforms on [0, 1) with 53 random bits."""
        bits = np.frombuffer(self._cipher.update(bytes(8 * count)), dtype=np.uint64)
        return (bits >> np.uint64(11)) * 2.0**-53

    def normal(self, count: int) -> torch.Tensor:
        """`count` standard normals, float32 (Box and Muller 1958)."""
        half = (count + 1) // 2
        words = self.words(2 * half)
        radius = (words[:half] >> 1).view(
            np.int32
        )  # 31 bits: signed integers convert to float32 by vector instructions
        u = radius.astype(np.float32)
        u *= np.float32(TO_UNIT)
        if half and radius.min() < REFINE_BELOW:
            small = np.flatnonzero(radius < REFINE_BELOW)
            u[small] = (radius[small] + np.maximum(self.uniform(len(small)), 2.0**-53)) * TO_UNIT
        np.minimum(u, np.float32(1), out=u)
        np.log(u, out=u)
        u *= np.float32(-2)
        np.sqrt(u, out=u)
        theta = words[half:].view(np.int32).astype(np.float32)
        theta *= np.float32(TO_ANGLE)
        out = np.empty(2 * half, dtype=np.float32)
        np.cos(theta, out=out[:half])
        np.sin(theta, out=out[half:])
        out[:half] *= u
        out[half:] *= u
        return torch.from_numpy(out[:count])

    def normal_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A standard normal for every number of a tensor, in its shape and where it lies."""
        return self.normal(tensor.numel()).to(tensor.device).view_as(tensor)

    def bernoulli(self, count: int, rate: float | np.ndarray) -> np.ndarray:
        """The places of the successes among `count` independent trials, of one rate or each of its own; a trial's rate is within
        2^-53 of what is said, never above."""
        return np.flatnonzero(self.uniform(count) < np.floor(np.multiply(rate, 2.0**53)) * 2.0**-53)

    def generator(self) -> np.random.Generator:
        """A NumPy generator seeded from this stream, for what needs no secrecy (partitions, cohorts, batches of plain SGD)."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.words(8).tolist())))

    def torch_seed(self) -> int:
        """A 63-bit seed for a torch generator (initial weights, dropout)."""
        high, low = (int(word) for word in self.words(2))
        return (high << 32 | low) >> 1


def seeded(seed: int) -> Derive:
    """Streams that are a function of the seed and of the place they are used: `seeded(7)(round, client, "noise")`."""

    def derive(*purpose: int | str) -> Stream:
        text = repr((int(seed), *purpose)).encode()
        return Stream(hashlib.blake2b(text, digest_size=KEY_BYTES, person=b"tacit-stream").digest())

    return derive


def keyed(key: bytes, *, kind: type[Stream] = Stream) -> Derive:
    """Streams that are a function of a secret or public key and of the place they are used."""

    def derive(*purpose: int | str) -> Stream:
        text = repr(purpose).encode()
        return kind(hashlib.blake2b(text, digest_size=KEY_BYTES, key=key, person=b"tacit-stream").digest())

    return derive


def from_os() -> Derive:
    """Streams keyed by the operating system's entropy, whatever the place: never the same twice."""

    def derive(*purpose: object) -> Stream:
        del purpose
        return Stream(os.urandom(KEY_BYTES))

    return derive
