"""Keys on disk: Paillier keys in the JSON form that python-paillier's `pheutil` reads and writes, and who is who.

What is Tacit's own (the shape, h_s, the short primes) stands under "tacit", which `pheutil` passes over. A key made by
`pheutil` can be used here: it is an ordinary one without h_s, so its randomisers cost a whole exponentiation.

Every client has an Ed25519 key (RFC 8032), as a JSON web key (RFC 8037). Its signing key is its own file; the public halves of
all members lie in one folder that everybody has. Which keys belong to which institution is agreed outside Tacit: whoever can
change that folder can invent members."""

import hashlib
import json
import os
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from gmpy2 import mpz

from tacit import store
from tacit.crypto.paillier import PublicKey
from tacit.crypto.secret_key import SecretKey
from tacit.crypto.threshold import Share, Verification
from tacit.errors import BadInput, KeyRefused
from tacit.wire import json_object

SECRET, PUBLIC = 0o600, 0o644
MOST_BYTES = 1 << 20  # the verification keys of 100 shares of 4096 bits take 140 kB
SECRET_FILE, PUBLIC_FILE, VERIFICATION_FILE = "secret.json", "public.json", "verification.json"
SHARE_FILE = "share.json"  # in the folder of whoever has one
MEMBER, SIGNING = ".member.json", ".signing.json"
GARBLED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)  # what reading a crafted record raises


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
    """What `bytes_to_text` wrote, with or without padding. Raises: ValueError, or TypeError for what is no text."""
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


# Keys of Paillier's encryption.

Key = PublicKey | SecretKey | Share | Verification
T = TypeVar("T", PublicKey, SecretKey, Share, Verification)
WORDS = {
    PublicKey: "a public key",
    SecretKey: "a secret key",
    Share: "a share of a key",
    Verification: "a verification key",
}


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
    except GARBLED as error:
        raise KeyRefused(f"{path} is not a key file of Tacit or pheutil: it lacks or garbles {error}.") from error


def load_as(kind: type[T], path: Path) -> T:
    """A key of one kind. Raises: KeyRefused as `load`, and for a key of another kind: a server must not have a secret one."""
    key = load(path)
    if not isinstance(key, kind):
        raise KeyRefused(f"{path} does not hold {WORDS[kind]}.")
    return key


def load_share(path: Path) -> Share:
    """One share of a split key, which is the one that its verification key was made from. Raises: KeyRefused."""
    share = load_as(Share, path)
    if not share.genuine():
        raise KeyRefused(f"{path} does not hold share {share.index} of its key: it was altered, so ask for it again.")
    return share


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


# Who is who: signing keys, and the members of a run.

Members = Mapping[str, Ed25519PublicKey]


@dataclass(frozen=True)
class Signer:
    """A client and the key it signs with, which is never printed."""

    client: str
    key: Ed25519PrivateKey = field(repr=False)

    def sign(self, content: bytes) -> bytes:
        """A signature of 64 bytes (Ed25519, deterministic). Assumes: content with a prefix of its own use (`reports.PREFIX`)."""
        return self.key.sign(content)

    @property
    def public(self) -> Ed25519PublicKey:
        return self.key.public_key()


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
    """All members in a folder of NAME.member.json, by name. Raises: KeyRefused; BadInput for a folder without members.

    Guarantee: one key a name and one name a key, so that counting names counts keys. Whether a key is an institution's is
    agreed outside Tacit.
    """
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


def verified(members: Members, client: str, content: bytes, signature: bytes) -> bool:
    """Whether a member signed the content. Raises: KeyError for somebody who is no member.

    >>> signer = new_signer("north")
    >>> verified({"north": signer.public}, "north", b"content", signer.sign(b"content"))
    True
    """
    try:
        members[client].verify(signature, content)
    except InvalidSignature:
        return False
    return True
