"""Who is who: an Ed25519 key per client (RFC 8032), as JSON web keys (RFC 8037).

A client's signing key is its own file; the public halves of all members lie in one folder that everybody has. Which keys
belong to which institution is agreed outside Tacit: whoever can change that folder can invent members."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tacit.crypto import keys as files
from tacit.crypto.keys import bytes_from_text, bytes_to_text
from tacit.errors import BadInput, KeyRefused

Members = Mapping[str, Ed25519PublicKey]
MEMBER, SIGNING = ".member.json", ".signing.json"


@dataclass(frozen=True)
class Signer:
    """A client and the key it signs with, which is never printed."""

    client: str
    key: Ed25519PrivateKey = field(repr=False)

    def sign(self, content: bytes) -> bytes:
        """A signature of 64 bytes (Ed25519, deterministic). Assumes: content with a prefix of its own use (`envelope.PREFIX`)."""
        return self.key.sign(content)

    @property
    def public(self) -> Ed25519PublicKey:
        return self.key.public_key()


def new_signer(client: str) -> Signer:
    """A new signing key, from the operating system's entropy. Raises: BadInput for a name that cannot be a file's."""
    if not _usable(client):
        raise BadInput(f"Expected a client's name of letters, digits, '-', '_' and '.', got {client!r}.")
    return Signer(client, Ed25519PrivateKey.generate())


def save(folder: Path, signer: Signer, *, force: bool = False) -> tuple[Path, Path]:
    """Writes NAME.signing.json (its owner's alone), then NAME.member.json (for others' folders); returns both. Raises: BadInput."""
    x = bytes_to_text(signer.public.public_bytes_raw())
    public = {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": signer.client}
    secret, member = folder / f"{signer.client}{SIGNING}", folder / f"{signer.client}{MEMBER}"
    files.write(secret, public | {"d": bytes_to_text(signer.key.private_bytes_raw())}, mode=files.SECRET, force=force)
    files.write(member, public, mode=files.PUBLIC, force=force)
    return secret, member


def load_signer(path: Path) -> Signer:
    """A signing key, whose public half belongs to it and whose name can be a file's. Raises: KeyRefused."""
    record = files.read(path, secret=True)
    try:
        signer = Signer(_kid(record), Ed25519PrivateKey.from_private_bytes(bytes_from_text(record["d"])))
        if bytes_from_text(record["x"]) != signer.public.public_bytes_raw():
            raise ValueError("x, which is not the public half of d")
        return signer
    except (KeyError, ValueError, TypeError, AttributeError) as error:
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
        record = files.read(path, secret=False)
        client, key = _member(path, record)
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
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise KeyRefused(f"{path} is not a member's key: it lacks or garbles {error}.") from error


def _usable(name: str) -> bool:
    return bool(name) and all(sign.isalnum() or sign in "-_." for sign in name) and not name.startswith(".")


def _kid(record: dict[str, Any]) -> str:
    name = record["kid"]
    if not isinstance(name, str) or not _usable(name):
        raise ValueError("kid, which is no client's name")
    return name


def verified(members: Members, client: str, content: bytes, signature: bytes) -> bool:
    """Whether a member signed the content.

    Raises: KeyError for somebody who is no member.

    >>> signer = new_signer("north")
    >>> verified({"north": signer.public}, "north", b"content", signer.sign(b"content"))
    True
    """
    try:
        members[client].verify(signature, content)
    except InvalidSignature:
        return False
    return True
