"""A stand-in of the Hub's HTTP API on this machine: creates repositories and takes commits, files in LFS and inline."""

import base64
import json
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

TOKEN = "hf_stand_in"


class Hub:
    """What was published: `repositories[id]` is `{"private": bool, "files": {path: bytes}, "commits": [title]}`.

    Of models that are only asked for by name, `answers` are (status, headers); the connection is dropped for others.
    """

    def __init__(self):
        self.repositories: dict[str, dict] = {}
        self.answers: dict[str, tuple[int, dict]] = {}
        self.asked: Counter[str] = Counter()
        self.objects: dict[str, bytes] = {}


@contextmanager
def hub_stand_in():
    """Yields (address, Hub); the server ends with the block."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def answer(self, content, status=200):
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def read(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline().strip(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def do_HEAD(self):
            name = self.path.removeprefix("/").split("/resolve/")[0]
            hub.asked[name] += 1
            if name in hub.answers:
                status, headers = hub.answers[name]
                self.send_response(status)
                for header in headers.items():
                    self.send_header(*header)
                self.end_headers()

        def do_GET(self):
            if "whoami" in self.path:
                return self.answer({"name": "me", "type": "user", "orgs": []})
            self.answer({"error": "not found"}, 404)

        def do_PUT(self):
            hub.objects[self.path.rsplit("/", 1)[-1]] = self.read()
            self.answer({})

        def do_POST(self):
            body = self.read()
            if self.path == "/api/validate-yaml":
                return self.answer({"errors": [], "warnings": []})
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.answer({"error": "Invalid credentials"}, 401)
            if self.path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked.get('organization') or 'me'}/{asked['name']}"
                if name in hub.repositories:
                    return self.answer({"url": f"{address}/{name}", "error": "exists"}, 409)
                hub.repositories[name] = {"private": asked.get("visibility") == "private", "files": {}, "commits": []}
                return self.answer({"url": f"{address}/{name}", "name": name, "id": name})
            if "/preupload/" in self.path:
                files = json.loads(body)["files"]
                large = (".safetensors", ".npz")
                modes = {f["path"]: "lfs" if f["path"].endswith(large) else "regular" for f in files}
                described = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
                return self.answer({"files": described})
            if self.path.endswith("/info/lfs/objects/batch"):
                objects = json.loads(body)["objects"]
                for one in objects:
                    one["actions"] = {"upload": {"href": f"{address}/lfs/{one['oid']}"}}
                return self.answer({"transfer": "basic", "objects": objects})
            if "/commit/" in self.path:
                name = self.path.removeprefix("/api/models/").split("/commit/")[0]
                repository = hub.repositories[name]
                for line in map(json.loads, body.splitlines()):
                    value = line["value"]
                    if line["key"] == "header":
                        repository["commits"].append(value["summary"])
                    elif line["key"] == "file":
                        repository["files"][value["path"]] = base64.b64decode(value["content"])
                    elif line["key"] == "lfsFile":
                        repository["files"][value["path"]] = hub.objects[value["oid"]]
                return self.answer(
                    {"success": True, "commitOid": "0" * 40, "commitUrl": f"{address}/{name}/commit/{'0' * 40}"}
                )
            self.answer({"error": f"unexpected {self.path}"}, 500)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield address, hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
