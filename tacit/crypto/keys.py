"""Paillier keys on disk, in the JSON form that python-paillier's `pheutil` reads and writes.

What is Tacit's own (the shape, h_s, the short primes) stands under "tacit", which `pheutil` passes over. A key made by
`pheutil` can be used here: it is an ordinary one without h_s, so its randomisers cost a whole exponentiation."""

import json
import os
from base64 import b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any, TypeVar

from gmpy2 import mpz

from tacit import store
from tacit.crypto.paillier import PublicKey
from tacit.crypto.secret_key import SecretKey
from tacit.crypto.threshold import Share, Verification
from tacit.errors import BadInput, KeyRefused
from tacit.wire import json_object

# Key files: JSON that only its owner can read.

SECRET, PUBLIC = 0o600, 0o644
MOST_BYTES = 1 << 20  # the verification keys of 100 shares of 4096 bits take 140 kB


def to_text(number: int) -> str:
    """A number as JSON web keys have it: base64url of its big-endian bytes, without padding (RFC 7518, section 2).

    >>> to_text(65537), from_text("AQAB")
    ('AQAB', mpz(65537))
    """
    number = int(number)
    return bytes_to_text(number.to_bytes((number.bit_length() + 7) // 8, "big"))


def from_text(text: str) -> mpz:
    """The number that `to_text` wrote. Raises: ValueError or TypeError, as `bytes_from_text`."""
    return mpz(int.from_bytes(bytes_from_text(text), "big"))


def bytes_to_text(raw: bytes) -> str:
    """base64url without padding."""
    return urlsafe_b64encode(raw).decode().rstrip("=")


def bytes_from_text(text: str) -> bytes:
    r"""What `bytes_to_text` wrote, with or without padding. Raises: ValueError, or TypeError for what is no text."""
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} in the place of base64url")
    return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def write(path: Path, record: dict[str, Any], *, mode: int, force: bool = False) -> None:
    """Writes a record as JSON into a file of exactly this mode. Without `force` an existing file is left as it is.

    Guarantee: the file is there complete, and forced to the disk, or not at all; a secret is never readable by others, not
    for a moment. Raises: BadInput.
    """
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
    """The JSON object in a key file. Raises: KeyRefused for a file that is missing, unreadable, too long or no JSON object.

    Guarantee: with `secret`, nobody else has any right to the very file that is read, and it is this user's or root's.
    """
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


SECRET_FILE, PUBLIC_FILE, VERIFICATION_FILE = "secret.json", "public.json", "verification.json"
SHARE_FILE = "share.json"  # in the folder of whoever has one
Key = PublicKey | SecretKey | Share | Verification
T = TypeVar("T", PublicKey, SecretKey, Share, Verification)


def save(folder: Path, key: SecretKey, *, force: bool = False) -> tuple[Path, Path]:
    """Writes `secret.json` (its owner's alone), then `public.json` (everybody's), and returns where they are. Raises: BadInput."""
    secret, public = folder / SECRET_FILE, folder / PUBLIC_FILE
    write(secret, secret_record(key), mode=SECRET, force=force)
    write(public, public_record(key.public), mode=PUBLIC, force=force)
    return secret, public


def save_shares(folder: Path, shares: list[Share], *, force: bool = False) -> list[Path]:
    """Writes one secret file per share and the public verification keys, and returns where they are, the verification last.

    Assumes: the dealer hands every share to its owner and keeps none: all of them open everything. Raises: BadInput.
    """
    paths = [folder / f"share-{share.index}.json" for share in shares]
    for path, share in zip(paths, shares, strict=True):
        save_share(path, share, force=force)
    return [*paths, save_verification(folder, shares[0].verification, force=force)]


def save_share(path: Path, share: Share, *, force: bool = False) -> None:
    """Writes one share, for its owner alone, with the verification key it belongs to. Raises: BadInput."""
    record = verification_record(share.verification) | {"key_ops": ["share"], "index": share.index}
    write(path, record | {"share": to_text(share.value)}, mode=SECRET, force=force)


def save_verification(folder: Path, key: Verification, *, force: bool = False) -> Path:
    """Writes what everybody may know of a split key and returns where it is. Raises: BadInput."""
    path = folder / VERIFICATION_FILE
    write(path, verification_record(key), mode=PUBLIC, force=force)
    return path


def load(path: Path) -> Key:
    """The key in a file, whatever its kind. Raises: KeyRefused for one that is damaged, too weak, or readable by others.

    Guarantee: a key that is returned has passed the checks of its class; secrets were read by `read(secret=True)`.
    """
    record = read(path, secret=False)
    if "p" in record or "share" in record:
        record = read(path, secret=True)
    try:
        return _parse(record)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise KeyRefused(f"{path} is not a key file of Tacit or pheutil: it lacks or garbles {error}.") from error


def load_public(path: Path) -> PublicKey:
    """A public key. Raises: KeyRefused as `load`, and for a secret key's file: the server must not have one."""
    return _expect(path, PublicKey, "a public key")


def load_secret(path: Path) -> SecretKey:
    """A secret key. Raises: KeyRefused as `load`, and for a key of another kind."""
    return _expect(path, SecretKey, "a secret key")


def load_share(path: Path) -> Share:
    """One share of a split key, which is the one that its verification key was made from. Raises: KeyRefused."""
    share = _expect(path, Share, "a share of a key")
    if not share.genuine():
        raise KeyRefused(f"{path} does not hold share {share.index} of its key: it was altered, so ask for it again.")
    return share


def load_verification(path: Path) -> Verification:
    """The public part of a split key. Raises: KeyRefused as `load`, and for a key of another kind, a share among them."""
    return _expect(path, Verification, "a verification key")


def public_record(key: PublicKey) -> dict[str, Any]:
    """A public key as pheutil writes it, with shape and h_s under "tacit". `kid` is the key's id; a reader computes it anew."""
    own = {"shape": key.shape} | ({"h_s": to_text(key.h_s)} if key.h_s is not None else {})
    return {"kty": "DAJ", "alg": "PAI-GN1", "key_ops": ["encrypt"], "n": to_text(key.n), "kid": key.id, "tacit": own}


def secret_record(key: SecretKey) -> dict[str, Any]:
    """A secret key as pheutil writes it. It holds p and q: write it by `save` only."""
    record = {"kty": "DAJ", "key_ops": ["decrypt"], "p": to_text(key.p), "q": to_text(key.q), "kid": key.public.id}
    short = {"tacit": {"short": [to_text(prime) for prime in key.short]}} if key.short else {}
    return record | {"pub": public_record(key.public)} | short


def verification_record(key: Verification) -> dict[str, Any]:
    """What everybody may know of a split key, and the first part of a share's own record."""
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
        return SecretKey(public, from_text(record["p"]), from_text(record["q"]), pair)
    keys = tuple(from_text(text) for text in record["keys"])
    verification = Verification(public, _integer(record["threshold"]), from_text(record["v"]), keys)
    if "share" not in record:
        return verification
    return Share(verification, _integer(record["index"]), from_text(record["share"]))


def _integer(number: Any) -> int:
    if type(number) is not int:
        raise TypeError(f"{number!r:.40} in the place of a whole number")
    return number


def _public(record: dict[str, Any]) -> PublicKey:
    if record["alg"] != "PAI-GN1":
        raise ValueError("alg")
    own = record.get("tacit", {})
    h_s = from_text(own["h_s"]) if "h_s" in own else None
    return PublicKey(from_text(record["n"]), own.get("shape", "ordinary"), h_s)


def _expect(path: Path, kind: type[T], words: str) -> T:
    key = load(path)
    if not isinstance(key, kind):
        raise KeyRefused(f"{path} does not hold {words}.")
    return key
