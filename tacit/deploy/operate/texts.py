"""What `tacit deploy init` writes for people and their machines: the README, systemd units and container files (`templates/`)."""

from pathlib import Path

import tacit
from tacit.deploy.operate.layout import CONNECTION, Federation
from tacit.deploy.site.deployable import OWN_FILES
from tacit.deploy.site.layout import called
from tacit.experiment import Experiment

SERVICES = "services"
PROGRAM, STATE, VOLUME = "/opt/tacit/bin/tacit", "/var/lib/tacit", "/federation"
USER = 10001  # of a container: nobody on the machine
OWN_ROWS = """ The site puts its rows into
`sites/NAME/records.{kind}`, or names another file in `site.toml`."""


def template(name: str, /, **words: object) -> str:
    """A template with its words filled in."""
    return Path(__file__).with_name("templates").joinpath(name).read_text("utf-8").format(**words)


def readme(federation: Federation, experiment: Experiment) -> str:
    """The README's text for one federation: its sites, address and ports, and who can open its sums. Paths are relative to it."""
    kind, sites = experiment.data.name, federation.sites
    return template(
        "README.md",
        name=called(federation.name),
        count=len(sites),
        address=federation.address,
        port=federation.port,
        inner=federation.inner_port,
        connection=CONNECTION,
        keys=_keys(experiment, len(sites)) if experiment.protect.kind == "paillier" else "",
        data=OWN_ROWS.format(kind=kind) if kind in OWN_FILES else "",
        sites="\n".join(f"    tacit deploy check sites/{name} && tacit deploy site sites/{name}" for name in sites),
    )


def _keys(experiment: Experiment, sites: int) -> str:
    t = experiment.protect.threshold or 1
    if t == 1:
        return template("keys-common.md")
    few = f", and with {sites - t + 1} of them lost no sum can be opened any more"
    return template("keys-split.md", t=t, n=sites, lost=few if t < sites else ", and every one is needed")


def write_services(federation: Federation) -> None:
    """Writes `services/`, a systemd unit and a container file each, for the server and into every site's folder.

    Guarantee: no file names a place of this machine, and none holds a secret. The commands are those that a person types.
    """
    name, port = called(federation.name), federation.port
    server = {
        "title": f"The server of {name}, a federation by Tacit",
        "about": "README.md",
        "secret": "what sites have sent",
    }
    server |= {"publish": f"--publish {port}:{port} ", "expose": f"EXPOSE {port}\n"}
    _write(federation.folder, "server", image="tacit-server", home="federation", **server)
    for site in federation.sites:
        words = {"title": f"Site {site} of {name}, a federation by Tacit", "about": "budget.toml", "secret": "rows"}
        words |= {"publish": "", "expose": ""}
        _write(federation.site(site), "site", image=f"tacit-site-{site.lower()}", home=site, **words)


def _write(folder: Path, command: str, *, image: str, home: str, **words: str) -> None:
    unit = f"{image}.service"
    words |= {"command": command, "image": image, "unit": unit, "folder": f"{STATE}/{home}", "program": PROGRAM}
    words |= {"state": STATE, "volume": VOLUME, "user": str(USER), "version": tacit.__version__}
    (folder / SERVICES).mkdir(mode=0o700)
    (folder / SERVICES / unit).write_text(template("unit.service", **words), "utf-8")
    (folder / SERVICES / "Containerfile").write_text(template("Containerfile", **words), "utf-8")
