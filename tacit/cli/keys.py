"""`tacit keys`: make, show and split keys. Nothing secret is ever printed."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tacit.cli.running import Program

keys = Program(name="keys", help="Make, show and split the keys of encrypted sums.", no_args_is_help=True)
Force = Annotated[bool, typer.Option("--force", help="Overwrite key files that exist. What they sealed stays sealed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")]


@keys.command("new")
def new_command(
    folder: Annotated[Path, typer.Argument(help="Where the key files go.")],
    bits: Annotated[int, typer.Option(help="2048 (experiments), 3072 or 4096.")] = 3072,
    shape: Annotated[
        str, typer.Option(help="ordinary; short-exponent (faster, a stronger assumption); safe-prime (can be split).")
    ] = "ordinary",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make a Paillier key pair: secret.json for the clients, public.json for everybody."""
    from tacit.crypto import keys as on_disk
    from tacit.crypto.secret_key import generate
    from tacit.errors import BadInput

    if folder.is_file():
        raise BadInput(f"{folder} is a file: name the folder that the key files go into.")
    taken = [name for name in (on_disk.SECRET_FILE, on_disk.PUBLIC_FILE) if (folder / name).exists()]
    if taken and not force:
        raise BadInput(f"{folder / taken[0]} exists: choose another folder, or overwrite it with --force.")
    with Console(stderr=True).status(f"Looking for primes for a key of {bits} bits"):
        key = generate(bits=bits, shape=shape)  # type: ignore[arg-type]  # refused by name if it is none of the shapes
    paths = on_disk.save(folder, key, force=force)
    _tell(_facts(key.public, "public key") | {"files": [str(path) for path in paths]}, as_json=as_json)


@keys.command("client")
def client_command(
    folder: Annotated[Path, typer.Argument(help="Where the key files go.")],
    name: Annotated[str, typer.Argument(help="The client's id.")],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make a client's signing key: NAME.signing.json stays with it, NAME.member.json goes to everybody."""
    from tacit.crypto import signing

    signer = signing.new_signer(name)
    paths = signing.save(folder, signer, force=force)
    facts = {"kind": "signing key", "client": name, "id": signing.fingerprint(signer.public)}
    _tell(facts | {"files": [str(path) for path in paths]}, as_json=as_json)


@keys.command("show")
def show_command(file: Annotated[Path, typer.Argument(help="A key file.")], as_json: AsJson = False) -> None:
    """Say what a key file holds: its kind, size, shape and fingerprint."""
    from tacit.crypto import keys as files
    from tacit.crypto import keys as on_disk
    from tacit.crypto import signing
    from tacit.crypto.paillier import PublicKey
    from tacit.crypto.secret_key import SecretKey
    from tacit.crypto.threshold import Share

    record = files.read(file, secret=False)
    if record.get("kty") == "OKP":
        client, public, kind = signing.described(file, record)
        _tell({"kind": kind, "client": client, "id": signing.fingerprint(public)}, as_json=as_json)
        return
    key = on_disk.load(file)
    if isinstance(key, PublicKey):
        facts = _facts(key, "public key")
    elif isinstance(key, SecretKey):
        facts = _facts(key.public, "secret key")
    else:
        whole, kind = (key.verification, f"share {key.index}") if isinstance(key, Share) else (key, "verification key")
        facts = _facts(whole.public, kind) | {"opened by": f"{whole.threshold} of {whole.of}"}
    _tell(facts, as_json=as_json)


@keys.command("split")
def split_command(
    file: Annotated[Path, typer.Argument(help="A secret key of shape safe-prime.")],
    threshold: Annotated[int, typer.Option(help="How many shares open a sum; more than half.")],
    of: Annotated[int, typer.Option(help="How many shares there are.")],
    out: Annotated[Path, typer.Option(help="Where the shares go.")],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Split a secret key, so that no single client opens anything."""
    from tacit.crypto import keys as on_disk
    from tacit.crypto.threshold import deal

    shares = deal(on_disk.load_secret(file), threshold=threshold, of=of)
    paths = on_disk.save_shares(out, shares, force=force)
    facts = _facts(shares[0].verification.public, "shares") | {"opened by": f"{threshold} of {of}"}
    _tell(facts | {"files": [str(path) for path in paths]}, as_json=as_json)
    if not as_json:
        typer.echo(f"Give each client its own share, then destroy {file}: whoever has it opens everything alone.")


def _facts(key: Any, kind: str) -> dict[str, Any]:
    return {"kind": kind, "bits": key.bits, "shape": key.shape, "id": key.id}


def _tell(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        for line in value if isinstance(value, list) else [value]:
            typer.echo(f"{name:10} {line}")
