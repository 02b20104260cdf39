"""Attacks on a deployed server from outside, from another user of its machine, and by what dies beside it. Real processes."""

import contextlib
import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import time
from threading import Timer

import httpx
import pytest
from redteam.conftest import make_federation

from tacit.deploy.operate import inspect as check
from tacit.deploy.operate.certificates import make_node_key
from tacit.deploy.operate.layout import open_federation
from tacit.deploy.operate.processes import Processes, alive
from tacit.deploy.operate.serve import follow
from tacit.errors import TacitError


@pytest.fixture(scope="module")
def server(up):
    return up[0]


def outside(federation, method, path, **options):
    """What a stranger is told who has the authority's certificate, which is public, and reaches the port."""
    trust = ssl.create_default_context(cafile=str(federation.server / "ca.crt"))
    with httpx.Client(verify=trust, trust_env=False) as client:
        return client.request(method, f"https://127.0.0.1:{federation.port}{path}", **options).status_code


def raw(federation, sent, *, port=None):
    """The status of every answer to bytes as they are, until the server hangs up or says nothing more."""
    context = ssl.create_default_context(cafile=str(federation.server / "ca.crt"))
    with (
        socket.create_connection(("127.0.0.1", port or federation.port), timeout=1.5) as line,
        context.wrap_socket(line, server_hostname="127.0.0.1") as tls,
    ):
        found = b""
        with contextlib.suppress(TimeoutError, OSError):
            tls.sendall(sent)
            while piece := tls.recv(65536):
                found += piece
    return [int(part[:3]) for part in found.split(b"HTTP/1.1 ")[1:]]


def others():
    """Every path of the SuperLink's Control and Runtime API."""
    from fastapi.routing import APIRoute, iter_route_contexts
    from flwr.supercore.routers.runtime import create_runtime_router, responses_router
    from flwr.superlink.routers.control import router

    routers = (router, create_runtime_router("SuperLink"), responses_router)
    found = (context.route for each in routers for context in iter_route_contexts(each.routes))
    return sorted({route.path for route in found if isinstance(route, APIRoute)})


def test_whoever_has_the_public_certificate_cannot_list_runs_register_a_node_or_start_a_program(server):
    paths = others()
    assert {"/v1/control/list-runs", "/v1/control/register-node", "/v1/control/start-run"} <= set(paths)
    headers = {"content-type": "application/protobuf"}
    assert {path: outside(server, "POST", path, headers=headers, content=b"") for path in paths} == dict.fromkeys(
        paths, 403
    )
    for path in ("/docs", "/openapi.json", "/v1/fleet/register-node", "/v1/fleet/unregister-node", "/"):
        assert outside(server, "GET", path) == outside(server, "POST", path, content=b"") == 403
    assert "/v1/control/start-run" in (server.server / "gateway.log").read_text()


@pytest.mark.filterwarnings("ignore:`verify=<str>` is deprecated")  # by httpx; Flower's own command line does it
def test_the_control_api_is_there_for_the_servers_own_people(server):
    from flwr.cli.typing import SuperLinkConnection
    from flwr.cli.utils import init_http_client_from_connection
    from flwr.proto.control_pb2 import ListNodesRequest

    connection = SuperLinkConnection(name="x", address=server.control, root_certificates=str(server.server / "ca.crt"))
    with init_http_client_from_connection(connection) as client:
        assert sorted(node.name for node in client.ListNodes(ListNodesRequest()).nodes_info) == list(server.sites)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_servers_machine_gets_no_byte_from_what_is_behind_the_gateway(server):
    ask = (
        b"POST /v1/control/list-runs HTTP/1.1\r\nHost: x\r\nContent-Type: application/protobuf\r\nContent-Length: 0\r\n"
    )
    assert raw(server, ask + b"Connection: close\r\n\r\n", port=server.inner_port) == [200]
    pid = os.fork()
    if not pid:  # pragma: no cover - another user
        told = 1
        with contextlib.suppress(BaseException):
            os.setuid(65534)
            with socket.create_connection(("127.0.0.1", server.inner_port), timeout=10) as line:
                told = 0 if line.recv(1) == b"" else 2  # nothing was said: it hung up
        os._exit(told)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_site_joins_with_its_key_and_nobody_with_another(server, tmp_path):
    from tacit.deploy.server.node import FleetNode, NotLetIn

    node = FleetNode(server.site("client-2"), server=server.address)
    node.join(died=False)
    node.beat()
    assert node.look() is None
    node.leave()
    make_node_key(tmp_path)
    shutil.copy(server.server / "ca.crt", tmp_path / "ca.crt")
    stranger = FleetNode(tmp_path, server=server.address)
    with pytest.raises(NotLetIn):
        stranger.join(died=False)
    stranger.leave()


POST = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n"
CONTROL = b"POST /v1/control/list-runs HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CONTROL), CONTROL)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (POST + b"Content-Length: 0\r\n\r\n" + CONTROL, [401]),  # pipelined behind a question of sites
        (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK, [501]),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK, [501]),
        (POST + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNK, [400]),
        (POST + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n" + CONTROL, [400]),
        (POST + b"Content-Length: 0, 5\r\n\r\n" + CONTROL, [400]),
        (POST + b"Content-Length: +0\r\n\r\n" + CONTROL, [400]),
        (POST + b"X: y\r\n Content-Length: 0\r\n\r\n" + CONTROL, [400]),
        (POST + b"X: y\nContent-Length: 0\r\n\r\n" + CONTROL, [400]),
        (POST + b"X: \x00\r\nContent-Length: 0\r\n\r\n" + CONTROL, [400]),
        (POST + b"\r\n" + CONTROL, [411]),
        (POST + b"Content-Length: 99999999999\r\n\r\n", [413]),
        (POST + b"X: " + b"y" * 20_000 + b"\r\n\r\n", [431]),
        (POST + b"X: y\r\n" * 100 + b"\r\n", [431]),
        (POST + b"Upgrade: h2c\r\nContent-Length: 0\r\n\r\n" + CONTROL, [403]),
        (POST + b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n" + CONTROL, [403]),
        (POST.replace(b"1.1", b"1.0") + b"Content-Length: 0\r\n\r\n", [403]),
        (b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n", [403]),
        (b"POST /v1/fleet/../control/list-runs HTTP/1.1\r\nContent-Length: 0\r\n\r\n", [403]),
        (b"POST /v1/fleet/pull-messages/..%2f..%2fcontrol/list-runs HTTP/1.1\r\nContent-Length: 0\r\n\r\n", [403]),
        (b"POST /v1/fleet/pull-messages?x HTTP/1.1\r\nContent-Length: 0\r\n\r\n", [403]),
        (b"POST //v1/fleet/pull-messages HTTP/1.1\r\nContent-Length: 0\r\n\r\n", [403]),
        (b"POST https://x/v1/control/list-runs HTTP/1.1\r\nContent-Length: 0\r\n\r\n", [403]),
        (b"POST\t/v1/fleet/pull-messages HTTP/1.1\r\nContent-Length: 0\r\n\r\n", [400]),
        (b"nonsense\r\n\r\n", [400]),
    ],
)  # fmt: skip
def test_no_request_is_smuggled_past_the_gateway(server, sent, told):
    assert raw(server, sent) == told


def test_check_sees_from_outside_whether_strangers_are_let_in(server):
    said = [finding.text for finding in check.findings(server.site("client-0"))]
    assert f"The server {server.address} lets nobody but sites in" in said
    from tacit.deploy.operate.inspect import control_findings

    (finding,) = control_findings("127.0.0.1", server.inner_port, authority=server.server / "ca.crt")
    assert finding.wrong
    assert "whoever reaches it can start programs on it. Start it with `tacit deploy server`" in finding.text


def test_nothing_of_a_federation_can_be_read_by_others_whatever_the_umask(server):
    places = [server.folder, *server.folder.rglob("*")]
    assert (server.server / "superlink.db").exists()
    assert (server.server / "superlink.log").exists()
    opened = [str(path) for path in places if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert opened == []


def test_a_folder_of_before_is_closed_when_its_site_or_server_starts(tmp_path):
    from tacit.deploy.operate.processes import close

    place = tmp_path / "site"
    place.mkdir(mode=0o755)
    (place / "log.jsonl").write_text("a cell of a patient's row")
    (tmp_path / "elsewhere").write_text("somebody else's")
    (place / "link").symlink_to(tmp_path / "elsewhere")
    for path, mode in ((place, 0o755), (place / "log.jsonl", 0o644), (tmp_path / "elsewhere", 0o644)):
        path.chmod(mode)
    close(place)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (place, place / "log.jsonl", tmp_path / "elsewhere")]
    assert modes == [0o700, 0o600, 0o644]


def test_a_serverapp_that_died_and_that_nobody_has_waited_for_is_found_and_said(tmp_path):
    federation = make_federation(tmp_path / "federation")
    zombie = subprocess.Popen(["true"])
    while alive(zombie.pid):
        time.sleep(0.01)
    os.kill(zombie.pid, 0)  # the kernel still has it
    federation.results.mkdir()
    status = {"state": "running", "text": "", "pid": zombie.pid, "began": time.time() + 1}
    (federation.results / "status.json").write_text(json.dumps(status))
    with pytest.raises(TacitError, match="The server's process ended in the middle of the run: go on with --resume"):
        follow(federation, Processes(home=federation.home), since=time.monotonic(), observe=lambda record: None)
    zombie.wait()


def test_the_last_word_of_a_server_on_its_way_out_is_not_taken_for_the_new_servers(tmp_path):
    federation = make_federation(tmp_path / "federation")
    federation.results.mkdir()
    late = {"state": "failed", "text": "gone", "pid": os.getpid(), "began": time.time() - 60, "time": time.time() + 60}
    fresh = {
        "state": "finished",
        "text": "rounds",
        "pid": os.getpid(),
        "began": time.time() + 1,
        "time": time.time() + 61,
    }
    (federation.results / "summary.json").write_text('{"stopped": "rounds"}')
    (federation.results / "status.json").write_text(json.dumps(late))
    Timer(0.3, lambda: (federation.results / "status.json").write_text(json.dumps(fresh))).start()
    told = follow(federation, Processes(home=federation.home), since=time.monotonic(), observe=lambda record: None)
    assert told == {"stopped": "rounds"}


def test_a_copied_folder_is_as_it_was_made_and_names_no_place_of_the_one_it_was_copied_from(tmp_path):
    first = make_federation(tmp_path / "first")
    shutil.copytree(first.folder, tmp_path / "second")
    shutil.rmtree(first.folder)
    second = open_federation(tmp_path / "second")
    assert [finding.text for finding in check.findings(second.folder) if finding.wrong] == []
    second.write_flower()  # as the server does when it starts
    for path in (*second.app.rglob("*.toml"), second.home / "config.toml", second.folder / "federation.toml"):
        assert str(first.folder) not in path.read_text(), path
