"""A registry made by hand, which also does what no registry should: it lies, cuts, loops and asks for secrets."""

import base64
import contextlib
import gzip
import http.server
import json
import threading

from paddock_testing.images import config, sha

MEDIA = "application/vnd.oci.image."


class Registry:
    """Serves images of layers on a port of its own. `auth`: "", "basic" or "token"; `twist`: a function
    of the handler and the path that may answer in the registry's place and says whether it did."""

    def __init__(self, auth="", twist=None):
        self.auth, self.twist = auth, twist
        self.blobs, self.manifests, self.requests = {}, {}, []
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):  # pylint: disable=invalid-name
                registry.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http://{self.address}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def add(self, text):
        data = text if isinstance(text, bytes) else json.dumps(text).encode()
        self.blobs[sha(data)] = data
        return {"digest": "sha256:" + sha(data), "size": len(data)}

    def put(self, name, layers, *, pack=gzip.compress, packed="+gzip", change=None, **settings):
        """An image under a name such as demo:1, by its manifest, whose digest it gives."""
        manifest = {
            "schemaVersion": 2, "mediaType": MEDIA + "manifest.v1+json",
            "config": {"mediaType": MEDIA + "config.v1+json", **self.add(config(layers, **settings))},
            "layers": [{"mediaType": MEDIA + "layer.v1.tar" + packed, **self.add(pack(one))} for one in layers]}
        if change:
            change(manifest)
        return self.name(name, manifest)

    def name(self, name, text):
        data = json.dumps(text).encode()
        repository, _, tag = name.rpartition(":")
        for reference in (tag, "sha256:" + sha(data)):
            self.manifests[f"{repository}/{reference}"] = data
        return "sha256:" + sha(data)

    def is_known(self, handler):
        given = handler.headers.get("Authorization", "")
        word = base64.b64encode(b"tester:secret word").decode()
        if self.auth == "basic":
            return given == "Basic " + word
        if self.auth == "token" and handler.path.startswith("/token"):
            return given == "Basic " + word and "scope=repository%3A" in handler.path
        return self.auth != "token" or given == "Bearer good-token"

    def answer(self, handler):
        self.requests.append((handler.path, dict(handler.headers)))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if self.twist and self.twist(handler, handler.path):
                return
            if not self.is_known(handler):
                how = "Basic realm=\"x\"" if self.auth == "basic" else (
                    f'Bearer realm="{self.url}/token",service="own",scope="repository:x:pull"')
                self.send(handler, 401, b"{}", {"WWW-Authenticate": how})
            elif handler.path.startswith("/token"):
                self.send(handler, 200, b'{"token":"good-token"}')
            else:
                self.serve(handler)

    def serve(self, handler):
        parts = handler.path.split("/")
        repository, kind, reference = "/".join(parts[2:-2]), parts[-2], parts[-1]
        if kind == "manifests":
            data = self.manifests.get(f"{repository}/{reference}")
        else:
            data = self.blobs.get(reference.removeprefix("sha256:"))
        if data is None:
            self.send(handler, 404, b"{}")
            return
        begin = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
        self.send(handler, 206 if int(begin) else 200, data[int(begin):])

    @staticmethod
    def send(handler, status, data, headers=None):
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def asked(self, what):
        return [(path, headers) for path, headers in self.requests if what in path]
