"""A server as the E2B clients see it: one plain address for everything, and a TLS address with a
wildcard certificate for the ports of sandboxes.

`environment` is what such a client needs; the variables that begin with PADDOCK_E2B_ are for the
tests. Names below DOMAIN are resolved by the tests themselves: no DNS server is asked."""

import os
from pathlib import Path

from .e2b_stand_ins import StandIns
from .server import Server, free_port

DOMAIN = "sandboxes.test"


class Door:
    """Two servers: one without rate limits, and one that refuses the second request. With `internet` the first one's
    sandboxes have a way out, to stand-ins on this machine."""

    def __init__(self, tls=True, internet=False):
        self.tls_port = free_port()
        settings = {"requests_per_s": 0, "creates_per_s": 0, "domain": DOMAIN}
        self.server = Server(settings)
        self.certificates = os.path.join(self.server.directory, "certificates")
        if tls:
            self.server.run("cert", "--domain", DOMAIN, "--dir", self.certificates)
            for path in Path(self.certificates).iterdir():
                path.chmod(0o644)
            self.server.settings.update({
                "listen_tls": f"127.0.0.1:{self.tls_port}",
                "tls_cert": os.path.join(self.certificates, "cert.pem"),
                "tls_key": os.path.join(self.certificates, "key.pem")})
        self.tls = tls
        self.stand_ins = None
        if internet:
            self.stand_ins = StandIns(os.path.join(self.server.directory, "internet"), [self.ca] if tls else [])
            self.server.settings.update(self.stand_ins.settings)
        self.limited = Server({"requests_per_s": 1, "burst": 1, "pool_min": 0, "pool_max": 0})

    @property
    def ca(self):
        return os.path.join(self.certificates, "ca.pem")

    @property
    def environment(self):
        env = {
            "E2B_API_KEY": self.server.key,
            "E2B_API_URL": self.server.url,
            "E2B_SANDBOX_URL": self.server.url,
            "PADDOCK_E2B_DOMAIN": DOMAIN,
            "PADDOCK_E2B_LIMITED_URL": self.limited.url,
            "PADDOCK_E2B_LIMITED_KEY": self.limited.key,
        }
        if self.tls:
            env["PADDOCK_E2B_TLS_PORT"] = str(self.tls_port)
            env["PADDOCK_E2B_CA"] = env["NODE_EXTRA_CA_CERTS"] = self.ca
        return env

    def __enter__(self):
        self.server.__enter__()
        try:
            self.limited.__enter__()
        except BaseException:
            self.server.close()
            raise
        return self

    def __exit__(self, *_):
        try:
            if self.stand_ins:
                self.stand_ins.close()
            self.limited.close()
        finally:
            self.server.close()
