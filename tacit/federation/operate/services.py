"""What runs a server or a site for good: a systemd unit and a container file in `services/`, written by `tacit deploy init`.

Both leave a program nothing to write but its own folder, no privilege to gain and no core dump, which would hold rows. They name
no place of the machine that made them: a unit expects Tacit in /opt/tacit and the folder below /var/lib/tacit, a container has the
folder as its one volume. `services/` holds no secret, so that it can be the whole context of an image.
"""

from pathlib import Path

import tacit
from tacit.federation.operate.layout import Federation
from tacit.federation.site.wording import called

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
