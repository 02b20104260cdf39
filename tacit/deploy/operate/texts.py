"""The README of a federation's folder: the exact commands for each machine."""

from pathlib import Path

import tacit
from tacit.deploy.operate.layout import CONNECTION, Federation
from tacit.deploy.site.layout import called
from tacit.deploy.site.rows import OWN_FILES
from tacit.experiment import Experiment

TEXT = """\
# {name}: a federation of {count} sites

Made by `tacit deploy init`. Every machine needs Python 3.11 or 3.12 and Tacit with its extra `flower` (docs/install.md).
Paths are relative to this folder:
type the commands here, wherever it lies.

## A trial on this machine

    tacit deploy check .
    tacit deploy up .

starts the server and all sites here, runs the experiment, and leaves model, log, summary and `report.html` in `results/`. After a
failure, `tacit deploy up . --resume` goes on. A trial is charged to the sites' ledgers like any other run: with real rows it
is a real release, so rehearse with rows that are not.

## In earnest

**1. Give every site its folder.** `sites/NAME` holds the site's key (`node.key`), its budget (`budget.toml`), its ledger and the
authority's certificate. Send it by a way you trust, and delete it here: from then on it belongs to the site. `server/ca.key`
can sign new certificates: keep it offline.{data}

**2. Start the server** (the machine that sites reach as {address}), in one terminal:

    tacit deploy server .

It starts Flower's SuperLink on 127.0.0.1:{inner} and a gateway on port {port}, and tells the SuperLink the sites' public keys.
Open port {port} to the sites, and no other: the gateway passes on what sites ask, each proved by its key, and refuses
everything else, above all Flower's Control API, with which anybody could start programs here. That one answers only this
machine, and under Linux only the user who started the server. Run `tacit deploy check .` meanwhile: it tries the door.

**3. Every site reads `proposal.toml` and `budget.toml`, and decides.** The first is the experiment; the second holds the epsilon
that the site allows over all runs, and the digest of the one experiment it accepts. Then, each on its own machine:

{sites}

`check` says what is wrong with the folder, the rows or the way to the server; `site` joins the server and answers until Ctrl-C.
`tacit ledger show FOLDER` prints who was charged what, when and for what; `log.jsonl` says what was asked and refused;
`tacit report FOLDER` makes the site's own page, which stays there: what it was promised and has spent, and what it gets from
joining.

**4. Run** (on the server, in another terminal):

    export FLWR_HOME=$PWD/flwr FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
    flwr run app {connection} --stream

To go on after a failure: `flwr run app {connection} --stream --run-config 'resume=true'`; to set the run aside and start anew,
`'force=true'`.

{keys}## With Flower's own SuperNode

A site may also run `flower-supernode` itself, as any Flower user does. The app that the server sends is then executed at the site,
so the site trusts the server not to have changed it; with `tacit deploy site`, which is a node of its own and never fetches
that app, it does not need to.

    flower-supernode --root-certificates ca.crt --superlink {address} --auth-supernode-private-key node.key \\
        --node-config 'tacit-site="'$PWD'"'

## What is where

| path | what | who |
|---|---|---|
| `server/` | the authority, the server's certificate, the sites' public keys, the SuperLink's database and both logs | the server |
| `app/` | the Flower app: `experiment.toml` and two short files | the server |
| `results/` | `rounds.jsonl`, `ledger.db` (of this run), `model.safetensors`, `summary.json`, `report.html` | the server |
| `services/` | a systemd unit and a container file, to run the server for good; every site's folder has its own | the server |
| `sites/NAME/` | `site.toml`, `proposal.toml`, `budget.toml`, `ledger.db`, `log.jsonl`, `node.key`, `ca.crt` | the site |
"""
KEYS = """\
## Who can open a sum

{opening}

Whoever ran `tacit deploy init` has held all keys: run it where the clients trust, not at the server, and give the server
`server/` and `app/`.

"""
SPLIT = """\
{t} of the {n} sites together, and nobody alone. Every site's `keys/` holds its own share of the clients' key (`share.json`) and
its own signing key; the whole key was never written to a disk. The server has the public key, the members' names and
`verification.json`, by which it finds a wrong answer. In every round it asks all sites; each checks and adds the signed
reports itself, and `openings-*.db` in its folder remembers that it has had its part in the round. While fewer than {t} sites
are up, a run stops; `resume=true` goes on with it. A lost share cannot be made again{lost}."""
COMMON = """\
Every site: its `keys/` holds the clients' common secret key and its own signing key; the server has the public key and the members'
names only. One site opens each round, by turns; `openings-*.db` in its folder remembers which. The server and any one site
together could read single reports: leave out `protect.threshold` and make a new federation to split the key."""
OWN = """ The site puts its rows into
`sites/NAME/records.{kind}`, or names another file in `site.toml`."""


def readme(federation: Federation, experiment: Experiment) -> str:
    """The README's text for one federation: its sites, address and ports, and who can open its sums. Paths are relative to it."""
    kind = experiment.data.name
    return TEXT.format(
        name=called(federation.name),
        count=len(federation.sites),
        address=federation.address,
        port=federation.port,
        inner=federation.inner,
        connection=CONNECTION,
        keys=_keys(experiment, len(federation.sites)) if experiment.protect.kind == "paillier" else "",
        data=OWN.format(kind=kind) if kind in OWN_FILES else "",
        sites="\n".join(
            f"    tacit deploy check sites/{name} && tacit deploy site sites/{name}" for name in federation.sites
        ),
    )


def _keys(experiment: Experiment, sites: int) -> str:
    t = experiment.protect.threshold or 1
    lost = f", and with {sites - t + 1} of them lost no sum can be opened any more" if t < sites else ""
    return KEYS.format(
        opening=SPLIT.format(t=t, n=sites, lost=lost or ", and every one is needed") if t > 1 else COMMON
    )


# What runs a server or a site for good: a systemd unit and a container file in `services/`, written by `tacit deploy
# init`.

SERVICES = "services"
CONTAINER = "Containerfile"
PROGRAM, STATE, VOLUME = "/opt/tacit/bin/tacit", "/var/lib/tacit", "/federation"
USER = 10001  # of a container: nobody on the machine

UNIT = """\
# {title}. As root, once: make a user (useradd --system tacit) and install Tacit
# (python3.11 -m venv /opt/tacit && /opt/tacit/bin/pip install "tacit[flower]=={version}"). Then
#   mkdir -p {state} && mv "$PWD" {folder} && chown -R tacit: {folder}    # in the folder that holds services/
#   cp {folder}/services/{unit} /etc/systemd/system/ && systemctl enable --now {unit}
# It is moved, not copied: two folders would be two ledgers on one budget.
[Unit]
Description={title}
Documentation=file:{folder}/{about}
After=network-online.target
Wants=network-online.target

[Service]
User=tacit
WorkingDirectory={folder}
ExecStart={program} deploy {command} {folder}
Restart=on-failure
RestartSec=10
# SIGTERM ends it cleanly with this code
SuccessExitStatus=143
Environment=FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
UMask=0077
# One for each connection, and as many for what is behind it
LimitNOFILE=65536
# A core dump would hold {secret}
LimitCORE=0
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ReadWritePaths={folder}
# Rows that lie in a home need ProtectHome=read-only
ProtectHome=yes
PrivateTmp=yes
# A GPU needs PrivateDevices=no
PrivateDevices=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
"""
CONTAINERFILE = """\
# {title}. Without root, in the folder that holds services/:
#   podman build --tag {image} services
#   podman run --name {image} --read-only --tmpfs /tmp --cap-drop all --security-opt no-new-privileges \\
#     --userns keep-id:uid={user},gid={user} --volume .:{volume}:Z {publish}{image}
# The folder is the one volume: ledger, keys and budget stay outside the image, and the image's own files cannot be written.
FROM docker.io/library/python:3.11-slim-bookworm
ARG TACIT="tacit[flower]=={version}"
RUN python -m venv /opt/tacit \\
    && /opt/tacit/bin/pip install --no-cache-dir "$TACIT" \\
    && useradd --system --uid {user} --user-group --no-create-home --shell /usr/sbin/nologin tacit
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
USER {user}:{user}
VOLUME ["{volume}"]
WORKDIR {volume}
{expose}ENTRYPOINT ["{program}", "deploy", "{command}", "{volume}"]
"""


def write_services(federation: Federation) -> None:
    """Writes `services/` for the server and into every site's folder.

    Guarantee: no file names a place of this machine, and none holds a secret. The commands are those that a person types.
    """
    for folder in (federation.folder, *(federation.site(name) for name in federation.sites)):
        (folder / SERVICES).mkdir(mode=0o700)
    _write(federation.folder, _of_server(federation))
    for name in federation.sites:
        _write(federation.site(name), _of_site(federation, name))


def _write(folder: Path, words: dict[str, str]) -> None:
    (folder / SERVICES / words["unit"]).write_text(UNIT.format_map(words), "utf-8")
    (folder / SERVICES / CONTAINER).write_text(CONTAINERFILE.format_map(words), "utf-8")


def _of_server(federation: Federation) -> dict[str, str]:
    port = federation.port
    return _common("server", "tacit-server", f"{STATE}/federation") | {
        "title": f"The server of {called(federation.name)}, a federation by Tacit",
        "about": "README.md",
        "secret": "what sites have sent",
        "publish": f"--publish {port}:{port} ",
        "expose": f"EXPOSE {port}\n",
    }


def _of_site(federation: Federation, name: str) -> dict[str, str]:
    return _common("site", f"tacit-site-{name.lower()}", f"{STATE}/{name}") | {
        "title": f"Site {name} of {called(federation.name)}, a federation by Tacit",
        "about": "budget.toml",
        "secret": "rows",
        "publish": "",
        "expose": "",
    }


def _common(command: str, image: str, folder: str) -> dict[str, str]:
    known = {"command": command, "image": image, "unit": f"{image}.service", "folder": folder, "program": PROGRAM}
    return known | {"state": STATE, "volume": VOLUME, "user": str(USER), "version": tacit.__version__}
