"""`tacit deploy`: an experiment across machines, on Flower; and `tacit keys`, which shows, makes and splits the keys of encrypted
sums. Nothing secret is ever printed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from tacit.cli.program import Program, Settings, as_json, print_json, refuse_given
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.plugin import only_installed

if TYPE_CHECKING:
    from tacit.crypto.paillier import PublicKey

app = Program(help="Run an experiment across machines, on Flower.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.", show_default=False)]
PORT = 8443


@app.command("init")
def init_command(
    folder: Folder,
    sites: Annotated[
        str, typer.Option(help="How many sites; or their names, north,coast, where each has its own rows.")
    ] = "3",
    experiment: Annotated[str, typer.Option(help="A shipped experiment or a TOML file.")] = "digits",
    settings: Settings = None,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help=f"Where sites reach the server; port {PORT} if it has none.")
    ] = "127.0.0.1",
    trial: Annotated[
        bool, typer.Option("--trial", help="Keep seeded noise, to compare with a simulation. It protects nothing.")
    ] = False,
) -> None:
    """Write everything a federation needs: certificates, keys, a folder per site, the Flower app and a README."""
    chosen = Experiment.load(experiment, tuple(settings or ()))
    host, port = _address(address)

    from tacit.deploy.operate.init import init
    from tacit.deploy.operate.inspect import who_opens
    from tacit.deploy.site.consent import OWN_FILES

    console = Console()
    with Console(stderr=True).status("Making keys; the safe primes of a key that is split can take a minute"):
        made = init(folder, sites=sites, experiment=chosen, host=host, port=port, trial=trial)
    console.print(
        f"[bold]{made.name}[/]: {len(made.sites)} sites ({', '.join(made.sites)}), server {made.address}.",
        highlight=False,
    )
    for finding in who_opens(made, Experiment.load(made.app / "tacit_app" / "experiment.toml")):
        console.print(f"{escape(finding.text)}.", highlight=False)
    if chosen.data.name in OWN_FILES:
        rows = f"sites/NAME/records.{chosen.data.name}"
        console.print(f"Every site puts its rows into {folder / rows} first.", highlight=False, soft_wrap=True)
    console.print(
        f"Read {folder / 'README.md'}; a trial on this machine is `tacit deploy up {folder}`.",
        highlight=False,
        soft_wrap=True,
    )


def _address(text: str) -> tuple[str, int]:
    """Host and port of HOST, HOST:PORT or [IPv6]:PORT. Raises BadInput.

    >>> _address("fed.example.org"), _address("[::1]:9000"), _address("::1")
    (('fed.example.org', 8443), ('::1', 9000), ('::1', 8443))
    """
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        host, port = text, str(PORT)
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise BadInput(f"Expected --address HOST:PORT with a port from 1 to 65535, got {text!r}.")
    return host.removeprefix("[").removesuffix("]"), int(port)


@app.command("up")
def up_command(
    folder: Folder,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in results/.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Set an earlier run aside and start anew; budgets stay spent.")
    ] = False,
) -> None:
    """Start the server and all sites on this machine, run the experiment, and stop everything."""
    from tacit.deploy.operate.serve import trial

    only_installed()  # what sites will find, and not what lies here
    trial(folder, resume=resume, force=force, console=Console())


@app.command("check")
def check_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The federation's folder, or one site's.", show_default=False)
    ],
) -> None:
    """Say what is wrong with a federation, or with one site's folder; the exit code is 2 if anything is."""
    from tacit.deploy.operate.inspect import findings

    only_installed()
    console, wrong = Console(), 0
    for finding in findings(folder):
        wrong += finding.wrong
        mark = "[red]wrong[/]" if finding.wrong else "[yellow]note[/] " if finding.note else "[green]ok[/]   "
        console.print(f"{mark}  {escape(finding.text)}", highlight=False, soft_wrap=True)
    if wrong:
        raise typer.Exit(2)


@app.command("server")
def server_command(
    folder: Folder,
    listen: Annotated[
        str | None,
        typer.Option(help="The address to listen on; all of this machine's if left out.", show_default=False),
    ] = None,
) -> None:
    """Start the server that sites reach, and serve until stopped. Only sites' requests pass; runs are started from here."""
    from tacit.deploy.operate.serve import run_server

    run_server(folder, listen=listen, tell=lambda text: Console().print(text, highlight=False, soft_wrap=True))


@app.command("site")
def site_command(
    folder: Annotated[Path, typer.Argument(metavar="SITE", help="The site's folder.", show_default=False)],
    adapt: Annotated[
        bool, typer.Option("--adapt", help="Do not join: make the site's own models that are due, and compare.")
    ] = False,
    evaluate: Annotated[
        Path | None, typer.Option("--evaluate", metavar="FILE", help="Do not join: compare its models on new rows.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Which run's models; the newest unless said.")] = None,
) -> None:
    """Join the server as one site, and answer until stopped; or, with an option, work on the site's own models on its machine."""
    if adapt or evaluate is not None or run is not None:
        _own_models(folder, adapt=adapt, evaluate=evaluate, run=run)
        return
    from tacit.deploy.operate.site_process import run_site

    run_site(folder)


def _own_models(folder: Path, *, adapt: bool, evaluate: Path | None, run: str | None) -> None:
    """A site's own models, for its own people: makes and compares them, or judges them on new rows."""
    if adapt == (evaluate is not None):
        raise BadInput("Say one of --adapt and --evaluate FILE; --run goes with them.")

    from tacit.deploy.operate.site_page import write_site_page
    from tacit.deploy.site import models  # code that the process that answers never loads
    from tacit.deploy.site.layout import compared, due, newest, read_settings, wanted
    from tacit.table import facts_table

    only_installed()
    if evaluate is not None:
        Console().print(facts_table(models.in_words_new_rows(models.evaluate(folder, evaluate, run=run))))
    else:
        if wanted(read_settings(folder)).kind is None:
            raise BadInput(
                'site.toml asks for no own models: add held_out = 0.2 and, below it, [personal] with kind = "mean-regularised".'
            )
        meant = newest(folder, run)
        for one in [meant] if run else due(folder):
            models.adapt(folder, one)
        comparison = compared(folder, meant)
        if comparison is not None:
            Console().print(facts_table(models.in_words(comparison)))
    Console().print(Text(f"Report: {write_site_page(folder)} (for this site alone)"), soft_wrap=True)


# `tacit keys`.

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
    from tacit.crypto.paillier import SecretKey
    from tacit.crypto.threshold import deal

    threshold, _, of = shares.partition("/")
    if not (threshold.isdecimal() and of.isdecimal()):
        raise BadInput(f"Expected --split T/N, such as 2/3, got {shares!r}.")
    if out is None:
        raise BadInput("--split needs --out DIR, where the shares go.")
    made = deal(keys.load_as(SecretKey, file), threshold=int(threshold), of=int(of))
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
