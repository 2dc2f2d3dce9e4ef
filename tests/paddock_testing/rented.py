"""Those who rent sandboxes out, on this machine: a second Paddock whose E2B door the backend e2b talks to, by TLS."""

import os
import shutil
import tempfile

from . import run as paddock
from .e2b import DOMAIN
from .server import Server, free_port
from .tls import TlsClient


class Landlord:
    """A server of its own whose sandboxes are rented: jails, and E2B's API at a TLS address. The key is in a file, as
    the setting of the tenant wants it."""

    def __init__(self, settings=None):
        self.port = free_port()
        self.server = Server({"providers": "jail", "requests_per_s": 0, "creates_per_s": 0, "domain": DOMAIN, "pool_min": 0, "pool_max": 0,
                              **(settings or {})})
        self.certificates = os.path.join(self.server.directory, "certificates")
        self.server.run("cert", "--domain", DOMAIN, "--dir", self.certificates)
        self.server.settings.update({"listen_tls": f"127.0.0.1:{self.port}",
                                     "tls_cert": os.path.join(self.certificates, "cert.pem"),
                                     "tls_key": os.path.join(self.certificates, "key.pem")})
        self.private = tempfile.mkdtemp(prefix="paddock-rented-", dir="/tmp")

    @property
    def ca(self):
        return os.path.join(self.certificates, "ca.pem")

    @property
    def key_file(self):
        return os.path.join(self.private, "key")

    @property
    def url(self):
        return f"https://127.0.0.1:{self.port}"

    def __enter__(self):
        self.server.__enter__()
        with open(os.open(self.key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(self.server.key + "\n")
        return self

    def __exit__(self, *_):
        try:
            self.server.close()
        finally:
            shutil.rmtree(self.private, ignore_errors=True)

    def client(self):
        return TlsClient(self.server, self.port, self.ca)

    def settings(self, url=None):
        """Those of a server that rents from here; `url`: by a way of the test's own."""
        return {"e2b_api_key_file": self.key_file, "e2b_api_url": url or self.url, "e2b_sandbox_url": url or self.url,
                "e2b_ca_file": self.ca}

    def rented(self):
        """What there is of sandboxes now."""
        answer = self.client().request("GET", "/v2/sandboxes?limit=100")
        assert answer.status == 200, answer
        return answer.json()

    def await_none(self, what, patience=30):
        paddock.wait_for(lambda: not self.rented(), patience, what)
