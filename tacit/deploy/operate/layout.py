"""Where everything of a federation lies, and `federation.toml`, which names it."""

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit.check import shown
from tacit.deploy.site.layout import SETTINGS, wording
from tacit.errors import BadInput

APP_FILES = ("pyproject.toml", "tacit_app/__init__.py", "tacit_app/client_app.py", "tacit_app/server_app.py",
             "tacit_app/experiment.toml")  # fmt: skip
CONNECTION = "federation"  # the SuperLink's name in Flower's own configuration
FEDERATION = "TACIT_FEDERATION"  # tells the ServerApp, which runs below the SuperLink, where this federation lies
FILE = "federation.toml"
HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*", re.ASCII)  # a name, or an address of numbers
LONGEST_HOST = 253  # characters of a name (RFC 1035)
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]


class Federation(BaseModel):
    """A federation as `federation.toml` has it: no path is named, so that a folder can be moved. `home` is Flower's own."""

    model_config = ConfigDict(frozen=True)

    name: str
    host: str
    port: Port  # the gateway's, which sites reach
    inner_port: Port  # the SuperLink's own, on loopback
    sites: tuple[str, ...]
    app_sha256: str
    folder: Path = Field(default=Path(), exclude=True)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def control(self) -> str:
        return f"127.0.0.1:{self.inner_port}"

    @property
    def server(self) -> Path:
        return self.folder / "server"

    @property
    def app(self) -> Path:
        return self.folder / "app"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def home(self) -> Path:
        return self.folder / "flwr"

    def site(self, name: str) -> Path:
        return self.folder / "sites" / name

    def public_key(self, name: str) -> Path:
        """The server's copy, because the site's folder goes to the site."""
        return self.server / "nodes" / f"{name}.pub"

    def key(self, name: str) -> Path:
        """A site's public key: the site's own where its folder is here, else the server's copy."""
        mine = self.site(name) / "node.pub"
        return mine if mine.is_file() else self.public_key(name)

    def write_flower(self) -> None:
        """Flower's own configuration for this machine, so that `flwr run` finds the SuperLink wherever the folder lies."""
        self.home.mkdir(mode=0o700, exist_ok=True)
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{self.control}"\n'
        (self.home / "config.toml").write_text(f'{text}root-certificates = "{self.server / "ca.crt"}"\n', "utf-8")


def refuse_host(host: str) -> None:
    """Refuses what is no name and no address: it is written into certificates, addresses and units. Raises: BadInput."""
    if len(host) > LONGEST_HOST or not HOST.fullmatch(host):
        raise BadInput(
            "Expected the server's host to be a name or an IPv4 address, such as server.example.org or 192.0.2.7, got"
            f" {shown(host)}."
        )


def open_federation(folder: Path) -> Federation:
    """Reads `federation.toml`. Raises: BadInput, with what may have been meant where there is none."""
    path, values = folder / FILE, dict[str, Any]()
    try:
        values = tomllib.loads(path.read_text("utf-8"))
        federation = Federation.model_validate(values).model_copy(update={"folder": folder.resolve()})
    except FileNotFoundError:
        instead = f"make one with `tacit deploy init {folder}`"
        if (folder / SETTINGS).exists():
            instead = f"it is one site's; the federation may be {folder.resolve().parents[1]}"
        elif not folder.exists() and (sites := sorted(one.parent.name for one in folder.parent.glob(f"*/{SETTINGS}"))):
            instead = f"the sites here are {', '.join(sites)}"
        raise BadInput(f"{folder} holds no federation: {instead}.") from None
    except ValidationError as error:
        raise BadInput(f"{path}: {wording(error, Federation, values)}") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be used ({error}).") from None
    refuse_host(federation.host)
    return federation


def refuse_keyless(site: Path) -> None:
    """Refuses to start a site without its key or the authority's certificate. Raises: BadInput, naming the file."""
    for name in ("node.key", "ca.crt"):
        if not (site / name).is_file():
            raise BadInput(f"{site / name} is missing: the site cannot prove who it is, or who the server is.")


def app_digest(app: Path) -> str:
    """The SHA-256 over the names and contents of the app's files. Raises: BadInput for one missing, or one too many."""
    found = {str(path.relative_to(app)) for path in app.rglob("*") if path.is_file()}
    found = {name for name in found if "__pycache__" not in name}
    for name in sorted(found ^ set(APP_FILES)):
        raise BadInput(f"{app / name} {'is no part of' if name in found else 'is missing from'} the app that was made.")
    digest = hashlib.sha256()
    for name in APP_FILES:
        digest.update(name.encode() + b"\0" + hashlib.sha256((app / name).read_bytes()).digest())
    return digest.hexdigest()
