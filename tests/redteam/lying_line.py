"""Whoever lies at the other end of a line: HTTPS on loopback, a Fleet API for a site or a Runtime API for a server's grid.

A SuperLink takes a tenth of a second of a core for one answer, and refuses some lies itself; here all come through.
"""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2, message_pb2, node_pb2, runtime_pb2
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

from tacit.deploy.operate.certificates import make_authority, make_node_key, make_server

NODE, RUN = 77, 1


class Https:
    """Serves `answer(path, body)`, a status and bytes, in threads of this process."""

    def __init__(self, folder):
        folder.mkdir()
        make_authority(folder, name="them")
        make_server(folder, hosts=("127.0.0.1",))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.authority = (folder / "ca.crt").read_bytes()

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()


class LyingRuntime(Https):
    """A SuperLink for a server's `grid`, that hands on what `lie(node, envelope)` makes of each question, unlooked at."""

    def __init__(self, folder, ids):
        super().__init__(folder)
        self.ids, self.lie, self._asked, self._held = ids, None, {}, {}
        self.grid = HttpGrid(self.address, False, self.authority, token="anybody's")
        self.grid.set_run(Run.create_empty(run_id=RUN))

    def __exit__(self, *error):
        self.grid.close()
        super().__exit__(*error)

    def answer(self, path, body):
        """As the Runtime API does."""
        name = path.rsplit("/", 1)[-1]
        if name == "push-messages":
            asked = runtime_pb2.PushAppMessagesRequest.FromString(body).messages_list
            self._asked, self._held = {one.metadata.message_id: one for one in asked}, {}
            reply = runtime_pb2.PushAppMessagesResponse(message_ids=list(self._asked))
        elif name == "pull-messages":
            reply = self._lies()
        elif name == "pull-object":
            content = self._held.get(message_pb2.PullObjectRequest.FromString(body).object_id)
            reply = message_pb2.PullObjectResponse(
                object_found=content is not None, object_available=bool(content), object_content=content or b""
            )
        elif name == "get-nodes":
            reply = runtime_pb2.GetNodesResponse(nodes=[node_pb2.NodeInfo(node_id=node) for node in self.ids])
        else:
            return 200, b""
        return 200, reply.SerializeToString()

    def _lies(self):
        reply = runtime_pb2.PullAppMessagesResponse()
        for asked in self._asked.values():
            pushed = self.lie(asked.metadata.dst_node_id, asked)
            self._held |= pushed.named()
            envelope = reply.messages_list.add().metadata
            envelope.CopyFrom(asked.metadata)
            envelope.message_id, envelope.reply_to_message_id = pushed.tree.object_id, asked.metadata.message_id
            reply.message_object_trees.append(pushed.tree)
        self._asked = {}
        return reply


class LyingLine(Https):
    """Serves one node. `ask` makes the next question, or None; `told` is given the envelope of each answer."""

    def __init__(self, folder, site, ask, told):
        super().__init__(folder)
        make_node_key(site)
        (site / "ca.crt").write_bytes(self.authority)
        self._ask, self._told, self._lock = ask, told, threading.Lock()
        self._held = {}

    def answer(self, path, body):
        """A status and the bytes of the answer to a request."""
        name = path.rsplit("/", 1)[-1]
        if name == "activate-node":
            return 200, fleet_pb2.ActivateNodeResponse(node_id=NODE).SerializeToString()
        if name == "send-node-heartbeat":
            return 200, b"\x08\x01"
        if name == "pull-messages":
            with self._lock:
                return self._next()
        if name == "pull-object":
            content = self._held.get(message_pb2.PullObjectRequest.FromString(body).object_id)
            found = {"object_found": content is not None, "object_available": content is not None}
            return 200, message_pb2.PullObjectResponse(object_content=content or b"", **found).SerializeToString()
        if name == "push-messages":
            asked = fleet_pb2.PushMessagesRequest.FromString(body)
            self._told(asked.messages_list[0])
        if name == "push-object":
            return 200, b"\x08\x01"
        return 200, b""

    def _next(self):
        asked = self._ask()
        if asked is None:
            return 200, b""
        message, pushed, status, spoil = asked
        self._held = dict([*self._held.items(), *pushed.named().items()][-400:])
        envelope = message_to_proto(message)
        envelope.metadata.message_id = pushed.tree.object_id
        reply = fleet_pb2.PullMessagesResponse(messages_list=[envelope], message_object_trees=[pushed.tree])
        return status, spoil(reply.SerializeToString())


def _handler(line):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_POST(self):
            status, body = line.answer(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response_only(status)
            self.send_header("content-type", "application/protobuf")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    return Handler
