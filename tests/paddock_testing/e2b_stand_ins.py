"""What the tests of E2B's SDKs find on the internet, on this machine: nothing of theirs leaves it.

- one TLS server for the addresses and the check page that they ask for, with a certificate of an authority of its own;
  `egress_hosts` leads there, and `egress_ca` makes sandboxes trust it
- the template `httpbin`, a file: a server that answers with the headers of a request
- a resolver that knows no name: those that are not led here are nobody's"""

import http.server
import os
import socket
import ssl
import subprocess
import threading

ANSWERS = {"1.1.1.1": 301, "8.8.8.8": 302, "connectivitycheck.gstatic.com": 204}
NAMES = ",".join(f"IP:{n}" if n[0].isdigit() else f"DNS:{n}" for n in ANSWERS)

# As go-httpbin's /headers, in short.
HTTPBIN = """title = The headers of a request
from = base
programs = python3
file = ~/httpbin.py
    import http.server, json
    class H(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"headers": {k: self.headers.get_all(k) for k in self.headers}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
    http.server.ThreadingHTTPServer(("", 8080), H).serve_forever()
start = exec python3 ~/httpbin.py
ready = port 8080
"""


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):  # pylint: disable=invalid-name
        self.send_response(ANSWERS.get(self.headers.get("Host", ""), 404))
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


def answer_no_name(resolver):
    while True:
        question, who = resolver.recvfrom(2000)
        if question == b"end":
            return
        name, _, rest = question[12:].partition(b"\0")
        resolver.sendto(question[:2] + b"\x81\x83\0\1\0\0\0\0\0\0" + name + b"\0" + rest[:4], who)


def openssl(*argv):
    subprocess.run(["openssl", *argv], check=True, capture_output=True, timeout=60)


def make_certificate(folder):
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    openssl("req", "-x509", *key, "-subj", "/CN=stand-ins", "-addext", "keyUsage=critical,keyCertSign",
            "-keyout", f"{folder}/ca-key", "-out", f"{folder}/ca")
    openssl("req", "-x509", *key, "-subj", "/CN=stand-in", "-addext", f"subjectAltName={NAMES}",
            "-addext", "basicConstraints=critical,CA:FALSE", "-CA", f"{folder}/ca", "-CAkey", f"{folder}/ca-key",
            "-keyout", f"{folder}/key", "-out", f"{folder}/cert")


class StandIns:
    """For one server. `settings` are the server's; `trusted` are files of authorities besides."""

    def __init__(self, folder, trusted=()):
        os.makedirs(folder, mode=0o755, exist_ok=True)
        make_certificate(folder)
        bundle = os.path.join(folder, "bundle.pem")
        with open(bundle, "w", encoding="ascii") as out:
            for name in (f"{folder}/ca", *trusted):
                with open(name, encoding="ascii") as part:
                    out.write(part.read())
        os.chmod(bundle, 0o644)
        templates = os.path.join(folder, "templates")
        os.mkdir(templates, 0o755)
        with open(os.path.join(templates, "httpbin.template"), "w", encoding="ascii") as out:
            out.write(HTTPBIN)

        self.tls = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.tls.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{folder}/cert", f"{folder}/key")
        self.tls.socket = context.wrap_socket(self.tls.socket, server_side=True, do_handshake_on_connect=False)
        port = self.tls.server_address[1]
        self.resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.resolver.bind(("127.0.0.1", 0))
        self.settings = {
            "egress": "open", "egress_ca": bundle, "template_dir": templates,
            "egress_resolvers": f"127.0.0.1:{self.resolver.getsockname()[1]}",
            "egress_hosts": ",".join(f"{name}=127.0.0.1:{port}" for name in ANSWERS)}
        self.threads = [threading.Thread(target=self.tls.serve_forever, daemon=True),
                        threading.Thread(target=answer_no_name, args=(self.resolver,), daemon=True)]
        for t in self.threads:
            t.start()

    def close(self):
        self.tls.shutdown()
        self.resolver.sendto(b"end", self.resolver.getsockname())
        for t in self.threads:
            t.join(10)
