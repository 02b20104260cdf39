"""Keys, made and on disk, in the JSON form that python-paillier's `pheutil` reads and writes (what is Tacit's own stands
under "tacit", which it passes over); and who the members of a run are: every client has an Ed25519 key (RFC 8032), as a JSON
web key (RFC 8037), and everybody a folder with all public halves. Which keys belong to which institution is agreed outside
Tacit."""

import hashlib
import json
import os
import secrets
from base64 import b64decode, urlsafe_b64encode
from functools import cache
from math import gcd
from pathlib import Path
from typing import Any, TypeVar

import gmpy2
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from gmpy2 import mpz

from tacit import check, store
from tacit.crypto import paillier
from tacit.crypto.reports import Signer
from tacit.crypto.threshold import Share, Verification
from tacit.errors import BadInput, KeyRefused
from tacit.wire import json_object

SECRET, PUBLIC = 0o600, 0o644
MOST_BYTES = 1 << 20  # the verification keys of 100 shares of 4096 bits take 140 kB
SECRET_FILE, PUBLIC_FILE, VERIFICATION_FILE = "secret.json", "public.json", "verification.json"
SHARE_FILE = "share.json"  # in the folder of whoever has one
MEMBER, SIGNING = ".member.json", ".signing.json"
GARBLED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)  # what reading a crafted record raises

ROUNDS = 64  # GMP 6.2 and later count Baillie-PSW as 24 of them: 40 rounds of Miller-Rabin are left, an error of 4^-40
SIEVE_BELOW = 1 << 20  # a Miller-Rabin round costs as much as sieving by many thousand small primes
SIEVE_SPAN = 1 << 17  # candidates per random start; a hit is chosen at random among them


def draw(bits: int, *, top: int = 2) -> mpz:
    """A random number of exactly `bits` bits that is 3 modulo 4 and has its `top` highest bits set."""
    return mpz(secrets.randbits(bits)) | ((mpz(1) << top) - 1 << (bits - top)) | 3


def random_prime(bits: int, *, top: int = 2) -> mpz:
    while True:
        candidate = draw(bits, top=top)
        if gmpy2.is_prime(candidate, ROUNDS):
            return candidate


def safe_prime(bits: int) -> mpz:
    """A random prime p with (p - 1) / 2 prime, its two top bits set: both are sieved at once behind a random start."""
    while True:
        start = draw(bits - 1)  # p' is odd, so p = 2p' + 1 is 3 modulo 4
        hits = _sieve(start)
        secrets.SystemRandom().shuffle(hits)
        for hit in hits:
            half = start + 2 * hit
            safe = 2 * half + 1
            if not gmpy2.is_strong_prp(half, 2) or safe >> (bits - 2) != 3:
                continue
            if gmpy2.is_prime(safe, ROUNDS) and gmpy2.is_prime(half, ROUNDS):
                return safe


def structured_prime(bits: int, short: int) -> tuple[mpz, mpz]:
    """A prime P = 2pp' + 1 of `bits` bits, its two top bits set, and its short prime p of `short` bits; p' is prime as well."""
    rest = random_prime(bits - 1 - short, top=3)  # so that every second p or so gives P its two top bits
    while True:
        p = draw(short)
        structured = 2 * p * rest + 1
        if structured >> (bits - 2) != 3 or not gmpy2.is_prime(p, 1) or not gmpy2.is_strong_prp(structured, 2):
            continue
        if gmpy2.is_prime(p, ROUNDS) and gmpy2.is_prime(structured, ROUNDS):
            return structured, p


def _sieve(start: mpz) -> list[int]:
    # the i below SIEVE_SPAN for which no small prime divides start + 2i or 2(start + 2i) + 1
    alive = np.ones(SIEVE_SPAN, dtype=bool)
    for small in _small_primes():
        residue, half = int(start % small), (small + 1) // 2  # half = 1/2 modulo small
        alive[-residue * half % small :: small] = False
        alive[(-half - residue) * half % small :: small] = False
    return [int(hit) for hit in np.flatnonzero(alive)]


@cache
def _small_primes() -> list[int]:
    sieve = np.ones(SIEVE_BELOW, dtype=bool)
    for number in range(3, int(SIEVE_BELOW**0.5) + 1, 2):
        sieve[number * number :: number] = False
    return [int(prime) for prime in np.flatnonzero(sieve) if prime > 2 and prime % 2]


def generate(
    *, bits: int = 3072, shape: paillier.Shape = "ordinary", least_bits: int = paillier.LEAST_BITS
) -> paillier.SecretKey:
    """A new key from the operating system's entropy. Guarantee: n has exactly `bits` bits; p and q are random primes of half
    of them, both 3 modulo 4, at least 2^(bits/2 - 100) apart (FIPS 186-5, A.1.1), with gcd(p - 1, q - 1) = 2 and n prime to
    (p - 1)(q - 1). Raises: BadInput for a size that is not one of SIZES (`least_bits` is for tests), or an unknown shape."""

    def new_prime() -> tuple[mpz, mpz | None]:
        if shape == "short-exponent":
            return structured_prime(bits // 2, paillier.short_bits(bits) // 2)
        return (safe_prime if shape == "safe-prime" else random_prime)(bits // 2), None

    check.one_of(paillier.SHAPES, shape=shape)
    if bits % 2 or bits < least_bits or (least_bits == paillier.LEAST_BITS and bits not in paillier.SIZES):
        raise BadInput(f"Expected bits to be one of {', '.join(map(str, paillier.SIZES))}; got {bits!r}.")
    while True:
        (p, short_p), (q, short_q) = new_prime(), new_prime()
        n = p * q
        apart = abs(p - q).bit_length() > bits // 2 - paillier.CLOSENESS_BITS
        if apart and gcd(p - 1, q - 1) == 2 and gcd(n, (p - 1) * (q - 1)) == 1:
            break
    while gcd(x := mpz(secrets.randbelow(int(n))), n) != 1:
        pass
    short = (short_p, short_q) if short_p and short_q else None
    cofactor = (p - 1) // (2 * short_p) * ((q - 1) // (2 * short_q)) if short_p and short_q else 1  # p'q'
    h = -gmpy2.powmod(x, 2 * cofactor, n) % n  # -x^2, or -y^(2p'q') in the secret subgroup
    return paillier.SecretKey(paillier.PublicKey(n, shape, gmpy2.powmod(h, n, n * n), least_bits), p, q, short)


# Files.


def to_text(number: int) -> str:
    """A number as JSON web keys have it: base64url of its big-endian bytes, without padding (RFC 7518, section 2)."""
    number = int(number)
    return bytes_to_text(number.to_bytes((number.bit_length() + 7) // 8, "big"))


def from_text(text: str) -> mpz:
    return mpz(int.from_bytes(bytes_from_text(text), "big"))


def bytes_to_text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


def bytes_from_text(text: str) -> bytes:
    """What `bytes_to_text` wrote, with or without padding. Raises: ValueError, or TypeError for what is no text."""
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} in the place of base64url")
    return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def write(path: Path, record: dict[str, Any], *, mode: int, force: bool = False) -> None:
    """Writes a record as JSON, complete and on the disk or not at all, with exactly this mode: a secret is never readable by
    others. Raises: BadInput, also for a file that stands, without `force`."""
    content = (json.dumps(record, indent=1) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if force:
            store.write(path, content, mode=mode)
            return
        created = store.create(path, content, mode=mode)
    except OSError as error:
        raise BadInput(f"{path} could not be written ({error.strerror}): choose another folder.") from error
    if not created:
        raise BadInput(f"{path} exists: choose another folder, or overwrite it with --force.")


def read(path: Path, *, secret: bool) -> dict[str, Any]:
    """The JSON object in a key file; if it is `secret`, nobody else has any right to the very file that is read. Raises:
    KeyRefused."""
    try:
        with path.open("rb") as stream:
            state = os.fstat(stream.fileno())
            if secret and state.st_mode & 0o077:
                raise KeyRefused(f"{path} can be read by others: make a new key, or `chmod 600` it if nobody else did.")
            if secret and state.st_uid not in (os.getuid(), 0):
                raise KeyRefused(f"{path} belongs to another user: make a key of your own.")
            return json_object(stream.read(MOST_BYTES + 1).decode("utf-8"), most=MOST_BYTES, finite=True)
    except IsADirectoryError as error:
        raise KeyRefused(f"{path} is a folder: name a key file in it, such as {path / 'public.json'}.") from error
    except FileNotFoundError as error:
        raise KeyRefused(f"{path} is missing: get it from whoever made the keys, or make new ones.") from error
    except OSError as error:
        raise KeyRefused(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise KeyRefused(f"{path} is not a key file: it is not a JSON object such as Tacit writes.") from error


Key = paillier.PublicKey | paillier.SecretKey | Share | Verification
T = TypeVar("T", paillier.PublicKey, paillier.SecretKey, Share, Verification)
WORDS = {
    paillier.PublicKey: "a public key",
    paillier.SecretKey: "a secret key",
    Share: "a share of a key",
    Verification: "a verification key",
}


def save(folder: Path, key: paillier.SecretKey, *, force: bool = False) -> tuple[Path, Path]:
    """Writes `secret.json` (its owner's alone), then `public.json` (everybody's), and returns where they are. Raises: BadInput."""
    secret, public = folder / SECRET_FILE, folder / PUBLIC_FILE
    write(secret, secret_record(key), mode=SECRET, force=force)
    write(public, public_record(key.public), mode=PUBLIC, force=force)
    return secret, public


def save_shares(folder: Path, shares: list[Share], *, force: bool = False) -> list[Path]:
    """Writes a secret file per share, then the public verification keys; returns where they are. Raises: BadInput."""
    paths = [folder / f"share-{share.index}.json" for share in shares]
    for path, share in zip(paths, shares, strict=True):
        save_share(path, share, force=force)
    public = folder / VERIFICATION_FILE
    write(public, verification_record(shares[0].verification), mode=PUBLIC, force=force)
    return [*paths, public]


def save_share(path: Path, share: Share, *, force: bool = False) -> None:
    """Writes one share, for its owner alone, with the verification key it belongs to. Raises: BadInput."""
    record = verification_record(share.verification) | {"key_ops": ["share"], "index": share.index}
    write(path, record | {"share": to_text(share.value)}, mode=SECRET, force=force)


def load(path: Path) -> Key:
    """The key in a file, whatever its kind, once it has passed the checks of its class. Raises: KeyRefused."""
    record = read(path, secret=False)
    if "p" in record or "share" in record:
        record = read(path, secret=True)
    try:
        key = _parse(record)
    except GARBLED as error:
        raise KeyRefused(f"{path} is not a key file of Tacit or pheutil: it lacks or garbles {error}.") from error
    if isinstance(key, Share) and not key.genuine():
        raise KeyRefused(f"{path} does not hold share {key.index} of its key: it was altered, so ask for it again.")
    return key


def load_as(kind: type[T], path: Path) -> T:
    """A key of one kind: a server must not have a secret one. Raises: KeyRefused."""
    key = load(path)
    if not isinstance(key, kind):
        raise KeyRefused(f"{path} does not hold {WORDS[kind]}.")
    return key


def public_record(key: paillier.PublicKey) -> dict[str, Any]:
    """A public key as pheutil writes it, with shape and h_s under "tacit". `kid` is the key's id; a reader computes it anew."""
    own = {"shape": key.shape} | ({"h_s": to_text(key.h_s)} if key.h_s is not None else {})
    return {"kty": "DAJ", "alg": "PAI-GN1", "key_ops": ["encrypt"], "n": to_text(key.n), "kid": key.id, "tacit": own}


def secret_record(key: paillier.SecretKey) -> dict[str, Any]:
    """A secret key as pheutil writes it. It holds p and q: write it by `save` only."""
    record = {"kty": "DAJ", "key_ops": ["decrypt"], "p": to_text(key.p), "q": to_text(key.q), "kid": key.public.id}
    short = {"tacit": {"short": [to_text(prime) for prime in key.short]}} if key.short else {}
    return record | {"pub": public_record(key.public)} | short


def verification_record(key: Verification) -> dict[str, Any]:
    record = {"kty": "DAJ", "key_ops": ["verify"], "pub": public_record(key.public), "kid": key.public.id}
    numbers = {"v": to_text(key.v), "keys": [to_text(k) for k in key.keys]}
    return record | {"threshold": key.threshold, "of": key.of} | numbers


def _parse(record: dict[str, Any]) -> Key:
    if record["kty"] != "DAJ":
        raise ValueError("kty")
    if "pub" not in record:
        return _public(record)
    public = _public(record["pub"])
    if "p" in record:
        short = record.get("tacit", {}).get("short")
        pair = (from_text(short[0]), from_text(short[1])) if short else None
        return paillier.SecretKey(public, from_text(record["p"]), from_text(record["q"]), pair)
    for name in ("threshold", "index"):
        if type(number := record.get(name, 0)) is not int:
            raise TypeError(f"{number!r:.40} in the place of a whole number")
    keys = tuple(from_text(text) for text in record["keys"])
    verification = Verification(public, record["threshold"], from_text(record["v"]), keys)
    if "share" not in record:
        return verification
    return Share(verification, record["index"], from_text(record["share"]))


def _public(record: dict[str, Any]) -> paillier.PublicKey:
    if record["alg"] != "PAI-GN1":
        raise ValueError("alg")
    own = record.get("tacit", {})
    h_s = from_text(own["h_s"]) if "h_s" in own else None
    return paillier.PublicKey(from_text(record["n"]), own.get("shape", "ordinary"), h_s)


def new_signer(client: str) -> Signer:
    """A new signing key, from the operating system's entropy. Raises: BadInput for a name that cannot be a file's."""
    if not _usable(client):
        raise BadInput(f"Expected a client's name of letters, digits, '-', '_' and '.', got {client!r}.")
    return Signer(client, Ed25519PrivateKey.generate())


def save_signer(folder: Path, signer: Signer, *, force: bool = False) -> tuple[Path, Path]:
    """Writes NAME.signing.json (its owner's alone), then NAME.member.json (for others' folders); returns both. Raises: BadInput."""
    x = bytes_to_text(signer.public.public_bytes_raw())
    public = {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": signer.client}
    secret, member = folder / f"{signer.client}{SIGNING}", folder / f"{signer.client}{MEMBER}"
    write(secret, public | {"d": bytes_to_text(signer.key.private_bytes_raw())}, mode=SECRET, force=force)
    write(member, public, mode=PUBLIC, force=force)
    return secret, member


def load_signer(path: Path) -> Signer:
    """A signing key, whose public half belongs to it and whose name can be a file's. Raises: KeyRefused."""
    record = read(path, secret=True)
    try:
        signer = Signer(_kid(record), Ed25519PrivateKey.from_private_bytes(bytes_from_text(record["d"])))
        if bytes_from_text(record["x"]) != signer.public.public_bytes_raw():
            raise ValueError("x, which is not the public half of d")
        return signer
    except GARBLED as error:
        raise KeyRefused(f"{path} is not a signing key: it lacks or garbles {error}.") from error


def fingerprint(public: Ed25519PublicKey) -> str:
    """128 bits of SHA-256 of a member's key, in hexadecimal, to be compared by telephone."""
    return hashlib.sha256(b"tacit member" + public.public_bytes_raw()).hexdigest()[:32]


def described(path: Path, record: dict[str, Any]) -> tuple[str, Ed25519PublicKey, str]:
    """Whose key a file holds, its public half, and of which kind it is. Raises: KeyRefused."""
    if "d" in record:
        signer = load_signer(path)
        return signer.client, signer.public, "signing key"
    return *_member(path, record), "member's key"


def load_members(folder: Path) -> dict[str, Ed25519PublicKey]:
    """All members in a folder of NAME.member.json: one key a name, one name a key. Raises: KeyRefused; BadInput for no
    members."""
    members = {}
    for path in sorted(folder.glob(f"*{MEMBER}")):
        client, key = _member(path, read(path, secret=False))
        members[client] = key
        if path.name != f"{client}{MEMBER}":
            raise KeyRefused(f"{path} names the member {client!r}: it must have the member's own file name.")
    if not members:
        raise BadInput(f"There are no members in {folder}: put every client's NAME{MEMBER} there.")
    if len({key.public_bytes_raw() for key in members.values()}) < len(members):
        raise KeyRefused(f"Two members in {folder} have one key: each needs its own, so that reports can be counted.")
    return members


def _member(path: Path, record: dict[str, Any]) -> tuple[str, Ed25519PublicKey]:
    try:
        return _kid(record), Ed25519PublicKey.from_public_bytes(bytes_from_text(record["x"]))
    except GARBLED as error:
        raise KeyRefused(f"{path} is not a member's key: it lacks or garbles {error}.") from error


def _usable(name: str) -> bool:
    return bool(name) and all(sign.isalnum() or sign in "-_." for sign in name) and not name.startswith(".")


def _kid(record: dict[str, Any]) -> str:
    name = record["kid"]
    if not isinstance(name, str) or not _usable(name):
        raise ValueError("kid, which is no client's name")
    return name
