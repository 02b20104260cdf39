"""Units and container files: their commands are ours, their paths are there, and they may write nothing but their folder."""

import configparser
import json
import re
import shutil
import subprocess

import pytest
import typer.main

import tacit
from tacit.cli.app import app
from tacit.deploy.operate.init import PROGRAM, SERVICES, STATE, VOLUME, init

KNOWN = {"ARG", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "RUN", "USER", "VOLUME", "WORKDIR"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    values = {"data": {"clients": 20}, "train": {"rounds": 2}, "privacy": {"kind": "local", "epsilon": 1.0}}
    experiment = tacit.Experiment(name="100% o'ne", **values)
    folder = tmp_path_factory.mktemp("services") / "federation"
    return init(folder, sites="2", experiment=experiment, host="server.example", port=8443)


def folders(federation):
    return [federation.folder, *(federation.site(name) for name in federation.sites)]


def units(federation):
    return [(folder, path) for folder in folders(federation) for path in sorted((folder / SERVICES).glob("*.service"))]


def containers(federation):
    return [(folder, folder / SERVICES / "Containerfile") for folder in folders(federation)]


def parsed(unit):
    found = configparser.ConfigParser(interpolation=None, strict=False)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read_string(unit.read_text("utf-8"))
    return found


def instructions(file):
    """(instruction, words) of a container file; lines that end in a backslash go on."""
    text = re.sub(r"^#.*\n", "", file.read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def typed(words):
    """The folder that a command of `tacit deploy` would work on, if it is one."""
    assert words[:2] == [PROGRAM, "deploy"]
    deploy = typer.main.get_command(app).get_command(None, "deploy")  # type: ignore[attr-defined]
    command = deploy.commands[words[2]]
    return words[2], command.make_context(words[2], words[3:]).params["folder"]


def test_server_and_sites_have_a_unit_and_a_container_file_each_which_name_no_place_of_this_machine(federation):
    names = ["tacit-server.service", "tacit-site-client-0.service", "tacit-site-client-1.service"]
    assert [path.name for _, path in units(federation)] == names
    for folder in folders(federation):
        files = sorted((folder / SERVICES).iterdir())
        assert len(files) == 2
        assert all(path.stat().st_mode & 0o077 == 0 for path in files)
        text = "".join(path.read_text("utf-8") for path in files)
        assert str(federation.folder) not in text
        assert "PRIVATE KEY" not in text


def test_what_units_and_containers_start_are_commands_on_the_folder_they_are_in(federation):
    wanted = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "", "LimitCORE": "0"}
    wanted |= {"LimitNOFILE": "65536", "UMask": "0077", "PrivateTmp": "yes", "ProtectHome": "yes", "User": "tacit"}
    for folder, path in units(federation):
        service = parsed(path)["Service"]
        assert {key: service[key] for key in wanted} == wanted  # it gains nothing and dumps nothing
        command, place = typed(service["ExecStart"].split())
        assert str(place) == service["WorkingDirectory"] == service["ReadWritePaths"]
        assert str(place).startswith(f"{STATE}/")
        assert (folder / ("federation.toml" if command == "server" else "site.toml")).is_file()
        about = parsed(path)["Unit"]["Documentation"].removeprefix(f"file:{place}/")
        assert (folder / about).is_file()
        assert f"services/{path.name}" in path.read_text("utf-8")


def test_a_container_is_no_ones_root_has_one_volume_and_copies_nothing_in(federation):
    for folder, path in containers(federation):
        found = instructions(path)
        assert {name for name, _ in found} <= KNOWN  # above all no COPY and no ADD: keys stay outside
        said, order = dict(found), [name for name, _ in found]
        command, place = typed(json.loads(said["ENTRYPOINT"]))
        assert (folder / ("federation.toml" if command == "server" else "site.toml")).is_file()
        assert json.loads(said["VOLUME"]) == [said["WORKDIR"]] == [VOLUME] == [str(place)]
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", said["USER"])
        assert re.search(r":3\.11-\w+", said["FROM"])
        assert order.index("USER") > order.index("RUN")
        text = path.read_text("utf-8")
        assert all(words in text for words in ("--read-only", "--cap-drop all", "no-new-privileges", f":{VOLUME}:Z"))
        assert ("EXPOSE" in said) == (folder == federation.folder)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_itself_understands_every_line_of_the_units(federation, tmp_path):
    for _, path in units(federation):
        copy = tmp_path / path.name  # neither the program nor its user are here
        text = path.read_text("utf-8").replace(PROGRAM, "/bin/true").replace("User=tacit\n", "")
        copy.write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE), "utf-8")
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert path.name not in done.stderr, done.stderr


def test_a_folder_is_moved_to_where_its_unit_runs_it_so_that_no_second_ledger_stays_behind(federation, tmp_path):
    for folder, path in units(federation):
        here, state = tmp_path / path.stem / "here", str(tmp_path / path.stem / "lib")
        shutil.copytree(folder, here)
        (line,) = [line[1:].split("  #")[0] for line in path.read_text("utf-8").splitlines() if " mv " in line]
        command = line.strip().partition(" && chown")[0].replace(STATE, state)
        subprocess.run(["sh", "-ec", command], cwd=here, check=True)
        assert not here.exists()
        place = parsed(path)["Service"]["WorkingDirectory"].replace(STATE, state)
        assert (tmp_path / place / SERVICES / path.name).is_file()
