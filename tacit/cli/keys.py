"""`tacit keys`: shows, makes and splits the keys of encrypted sums. Nothing secret is ever printed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.program import as_json, print_json, refuse_given
from tacit.errors import BadInput

if TYPE_CHECKING:
    from tacit.crypto.paillier import PublicKey

BITS = 3072


def keys_command(
    path: Annotated[Path, typer.Argument(help="A key file, which is shown or split; or the folder for new keys.")],
    new: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE",
            help="Make a Paillier key pair in the folder (secret.json for the clients, public.json for everybody): ordinary;"
            " short-exponent (faster, a stronger assumption); safe-prime (can be split).",
        ),
    ] = None,
    bits: Annotated[int | None, typer.Option(help=f"With --new: 2048 (experiments), 3072 or 4096. {BITS}")] = None,
    client: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Make a client's signing key: NAME.signing.json stays with it, NAME.member.json goes to everybody.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="T/N", help="Split a secret safe-prime key into N shares, of which T, more than half, open a sum."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="With --split: where the shares go.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite key files that exist. What they sealed stays sealed.")
    ] = False,
) -> None:
    """Say what a key file holds: its kind, size, shape and fingerprint; or make keys; or split one among clients."""
    if sum(one is not None for one in (new, client, split)) > 1:
        raise BadInput("--new, --client and --split do different things: use one of them.")
    refuse_given(
        {"--bits": bits if new is None else None}, "{} is for a new key pair: add --new SHAPE, or leave it out."
    )
    refuse_given({"--out": out if split is None else None}, "{} is where shares go: add --split T/N, or leave it out.")
    if new is not None:
        facts = _new(path, new, BITS if bits is None else bits, force=force)
    elif client is not None:
        facts = _client(path, client, force=force)
    elif split is not None:
        facts = _split(path, split, out, force=force)
    else:
        refuse_given({"--force": force}, "{} overwrites key files: add --new, --client or --split, or leave it out.")
        facts = _facts(path)
    if as_json():
        print_json(facts)
        return
    for name, value in facts.items():
        for line in value if isinstance(value, list) else [value]:
            typer.echo(f"{name:10} {line}")
    if split is not None:
        typer.echo(f"Give each client its own share, then destroy {path}: whoever has it opens everything alone.")


def _new(folder: Path, shape: str, bits: int, *, force: bool) -> dict[str, Any]:
    from rich.console import Console

    from tacit.crypto import keys
    from tacit.crypto.keys import generate

    if folder.is_file():
        raise BadInput(f"{folder} is a file: name the folder that the key files go into.")
    taken = [name for name in (keys.SECRET_FILE, keys.PUBLIC_FILE) if (folder / name).exists()]
    if taken and not force:
        raise BadInput(f"{folder / taken[0]} exists: choose another folder, or overwrite it with --force.")
    with Console(stderr=True).status(f"Looking for primes for a key of {bits} bits"):
        key = generate(bits=bits, shape=shape)  # type: ignore[arg-type]  # refused by name if it is none of the shapes
    return _of(key.public, "public key") | _files(keys.save(folder, key, force=force))


def _client(folder: Path, name: str, *, force: bool) -> dict[str, Any]:
    from tacit.crypto import keys

    signer = keys.new_signer(name)
    facts = {"kind": "signing key", "client": name, "id": keys.fingerprint(signer.public)}
    return facts | _files(keys.save_signer(folder, signer, force=force))


def _split(file: Path, shares: str, out: Path | None, *, force: bool) -> dict[str, Any]:
    from tacit.crypto import keys
    from tacit.crypto.threshold import deal

    threshold, _, of = shares.partition("/")
    if not (threshold.isdecimal() and of.isdecimal()):
        raise BadInput(f"Expected --split T/N, such as 2/3, got {shares!r}.")
    if out is None:
        raise BadInput("--split needs --out DIR, where the shares go.")
    made = deal(keys.load_as(keys.SecretKey, file), threshold=int(threshold), of=int(of))
    facts = _of(made[0].verification.public, "shares") | {"opened by": f"{threshold} of {of}"}
    return facts | _files(keys.save_shares(out, made, force=force))


def _facts(file: Path) -> dict[str, Any]:
    from tacit.crypto import keys
    from tacit.crypto.paillier import PublicKey, SecretKey
    from tacit.crypto.threshold import Share

    record = keys.read(file, secret=False)
    if record.get("kty") == "OKP":
        client, public, kind = keys.described(file, record)
        return {"kind": kind, "client": client, "id": keys.fingerprint(public)}
    key = keys.load(file)
    if isinstance(key, PublicKey):
        return _of(key, "public key")
    if isinstance(key, SecretKey):
        return _of(key.public, "secret key")
    whole, kind = (key.verification, f"share {key.index}") if isinstance(key, Share) else (key, "verification key")
    return _of(whole.public, kind) | {"opened by": f"{whole.threshold} of {whole.of}"}


def _of(key: "PublicKey", kind: str) -> dict[str, Any]:
    return {"kind": kind, "bits": key.bits, "shape": key.shape, "id": key.id}


def _files(paths: Any) -> dict[str, Any]:
    return {"files": [str(path) for path in paths]}
