"""TLS: addresses that speak it beside plain ones, and the certificate that `paddock cert` makes."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import Client, Server, free_port
from paddock_testing.tls import (DOMAIN, QUIET, BothServer, TlsClient, cert, exports_of,
                                 settings_of)

APP = Path(__file__).with_name("port_app.py")


@pytest.fixture(scope="module")
def both():
    with BothServer() as server:
        yield server


def curl(server, url, *words, ca=None, key=True):
    """Names of the domain lead to the server, as a wildcard in the DNS would have it."""
    name = re.match(r"https://([^:/]+)", url)[1]
    return subprocess.run(
        ["curl", "-sS", "--max-time", str(paddock.seconds(30)), "--cacert", ca or server.ca,
         "--resolve", f"{name}:{server.tls_port}:127.0.0.1",
         *(["-H", f"X-API-Key: {server.key}"] if key else []), *words, url], capture_output=True, text=True, timeout=paddock.seconds(40))


# ---- both kinds of addresses ----

def test_requests_over_both(both):
    assert f"Listening on http://127.0.0.1:{both.port}\n" in both.log()
    assert f"Listening on https://127.0.0.1:{both.tls_port}\n" in both.log()
    plain, tls = both.client(), both.tls(DOMAIN)
    id = tls.post("/v1/sandboxes").json()["id"]
    assert [s["id"] for s in plain.get("/v1/sandboxes").json()["sandboxes"]] == [id]
    done = tls.post(f"/v1/sandboxes/{id}/exec", json={"command": "echo over tls"})
    assert done.json()["stdout"] == "over tls\n"
    assert plain.delete(f"/v1/sandboxes/{id}").status in (200, 204)
    assert both.run("ls", "-q").stdout == ""
    tls.key = "e2b_" + "0" * 40
    assert tls.get("/v1/sandboxes").status == 401


def test_each_address_speaks_its_own_language(both):
    with pytest.raises(ssl.SSLError):
        TlsClient(both, both.port, both.ca).open()
    wrong = Client("127.0.0.1", both.tls_port, both.key)
    with pytest.raises((http.client.HTTPException, OSError)):
        wrong.get("/healthz")
    assert both.client().get("/healthz").status == both.tls().get("/healthz").status == 200


def test_a_client_that_does_not_trust_it_leaves(both, tmp_path):
    other = exports_of(cert(tmp_path, "--domain", DOMAIN))["NODE_EXTRA_CA_CERTS"]
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer|self-signed"):
        TlsClient(both, both.tls_port, other, DOMAIN).open()
    for name in ("elsewhere.test", f"a.b.{DOMAIN}", "127.0.0.2"):
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch|not valid for"):
            both.tls(name).open()
    for name in (DOMAIN, f"api.{DOMAIN}", "localhost", "127.0.0.1", "::1"):
        both.tls(name).open().close()


def test_our_own_commands_trust_it_by_the_variable(both):
    env = {**both.env, "PADDOCK_URL": f"https://127.0.0.1:{both.tls_port}"}
    words = [paddock.PADDOCK, "ls", "-q"]
    for extra, status in (({"SSL_CERT_FILE": both.ca}, 0), ({}, 125)):
        done = subprocess.run(words, env={**env, **extra}, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=paddock.seconds(30))
        assert done.returncode == status, done
    assert "not trusted" in done.stderr


def test_a_port_by_its_host_name(both):
    api = both.client()
    id = api.post("/v1/sandboxes").json()["id"]
    base = f"/v1/sandboxes/{id}"
    assert api.put(f"{base}/files?path=app.py", data=APP.read_bytes()).status in (200, 201)
    assert api.post(f"{base}/processes", json={"argv": ["python3", "app.py"]}).status == 201
    paddock.wait_for(
        lambda: 8000 in [p["port"] for p in api.get(f"{base}/ports").json()["ports"]], 20,
        "the application listens")
    url = f"https://8000-{id}.{DOMAIN}:{both.tls_port}/echo"
    done = curl(both, url)
    assert done.returncode == 0, done
    headers = {name.lower(): value for name, value in json.loads(done.stdout)["headers"]}
    assert headers["x-forwarded-proto"] == "https"
    # A browser offers HTTP/2, too: there is none, and none is needed.
    done = curl(both, url, "--http2", "-o", "/dev/null", "-w", "%{http_version} %{http_code}")
    assert done.stdout == "1.1 200", done
    assert curl(both, url, ca="/etc/hostname").returncode == 77  # no certificates in it
    nobody = curl(both, f"https://a.8000-{id}.{DOMAIN}:{both.tls_port}/echo")
    assert nobody.returncode == 60, nobody
    # A link that is made over TLS is one for TLS.
    link = both.tls(DOMAIN).post(
        f"{base}/ports/8000/preview", json={},
        headers={"Host": f"{DOMAIN}:{both.tls_port}"}).json()["url"]
    assert link.startswith(f"https://8000-{id}.{DOMAIN}:{both.tls_port}/"), link
    follow = ("-L", "-c", "/dev/null", "-o", "/dev/null", "-w", "%{http_code}")
    assert curl(both, link.replace("/?", "/echo?"), *follow, key=False).stdout == "200"
    assert curl(both, url, *follow, key=False).stdout == "401"
    # So is one for who comes by the Unix socket, and has used no address.
    local = subprocess.run(
        [paddock.PADDOCK, "port", id, "8000"], capture_output=True, text=True,
        env={**both.env, "PADDOCK_URL": f"unix:{both.run_dir}/paddock.sock"},
        timeout=paddock.seconds(30))
    assert local.stdout.startswith(f"https://8000-{id}.{DOMAIN}:{both.tls_port}/"), local
    api.delete(base)


@pytest.mark.parametrize("offered, taken", [
    (["h2", "http/1.1"], "http/1.1"), (["http/1.1"], "http/1.1"), (["h2"], None), ([], None)])
def test_only_http_1_by_alpn(both, offered, taken):
    client = both.tls()
    context = ssl.create_default_context(cafile=both.ca)
    if offered:
        context.set_alpn_protocols(offered)
    with client.open(context) as sock:
        assert sock.selected_alpn_protocol() == taken
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_old_versions_are_refused(both):
    context = ssl.create_default_context(cafile=both.ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    both.tls().open(context).close()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):  # so the server says
        both.tls().open(context)


def test_many_at_once(both):
    """More than a client of E2B opens at a server, beside some that say nothing."""
    client, failures = both.tls(f"api.{DOMAIN}"), []
    silent = [socket.create_connection(("127.0.0.1", both.tls_port)) for _ in range(50)]
    gate = threading.Barrier(paddock.scaled_down(200, 20))

    def work():
        try:
            client._connection()
            gate.wait(paddock.seconds(60))  # all of them are open
            for _ in range(3):
                assert client.get("/v1/sandboxes").status == 200
        except BaseException as e:
            failures.append(e)
            gate.abort()
        finally:
            client.close()

    threads = [threading.Thread(target=work) for _ in range(gate.parties)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for s in silent:
        s.close()
    assert not failures, failures[:3]


def test_large_bodies(both):
    client = both.tls(DOMAIN)
    id = client.post("/v1/sandboxes").json()["id"]
    data = os.urandom(4 << 20)
    assert client.put(f"/v1/sandboxes/{id}/files?path=big", data=data).status in (200, 201)
    assert client.get(f"/v1/sandboxes/{id}/files?path=big").body == data
    client.delete(f"/v1/sandboxes/{id}")


# ---- how it is set up ----

def test_reload_and_restart(tmp_path):
    with BothServer() as server:
        text = Path(server.config).read_text()
        other = text.replace(f":{server.tls_port}", f":{free_port()}")
        Path(server.config).write_text(other + "templates = mine=base\n")
        server.send_signal(signal.SIGHUP)
        for said in ("config.reload", "listen_tls: .* needs a restart",
                     "templates: 'code-interpreter-v1=base' is now 'mine=base'"):
            paddock.wait_for(lambda said=said: re.search(said, server.log()), 20, f"it has reloaded and says {said}")
        assert server.tls().get("/healthz").status == 200
        # A renewed certificate is of the same authority, so clients need nothing new.
        Path(server.config).write_text(text)
        before = server.tls(DOMAIN).open().getpeercert()["serialNumber"]
        cert(server.tls_dir, "--domain", DOMAIN)
        assert server.stop() == 0
        server.start()
        assert server.tls(DOMAIN).open().getpeercert()["serialNumber"] != before


class OnlyTls(BothServer):
    """As before there were addresses for TLS alone: a certificate makes them all such."""

    def __init__(self):
        super().__init__()
        text = Path(self.config).read_text()
        Path(self.config).write_text(re.sub("listen_tls = .*\n", "", text))
        self.tls_port = self.port

    def start(self):
        self.starts += 1
        with open(os.path.join(self.directory, f"log.{self.starts}"), "wb") as log:
            self.process = subprocess.Popen(self.argv(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, env=self.env, start_new_session=True)

        def answers():
            assert self.process.poll() is None, self.log()
            try:
                return self.tls().get("/readyz").status == 200
            except OSError:
                return False

        paddock.wait_for(answers, 30, "the server is ready")
        self.note_instances()
        return self


def test_a_certificate_alone_makes_every_address_speak_tls():
    with OnlyTls() as server:
        assert f"Listening on https://127.0.0.1:{server.port}\n" in server.log()
        assert server.tls(DOMAIN).get("/v1/sandboxes").status == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            server.client().get("/healthz")


class Activated(BothServer):
    """Started with two listening sockets, as a service manager does."""

    def __init__(self, plain, tls):
        super().__init__()
        text = Path(self.config).read_text()
        self.port, self.tls_port = (s.getsockname()[1] for s in (plain, tls))
        # By its port alone: a manager may have bound it to another address.
        Path(self.config).write_text(
            re.sub("listen_tls = .*", f"listen_tls = 0.0.0.0:{self.tls_port}", text))
        self.sockets = (plain, tls)
        self.pass_fds = tuple(s.fileno() for s in self.sockets)

    def argv(self):
        # From high numbers down to 3 and 4, which may be taken.
        script = (f"exec 103<&{self.pass_fds[0]} 104<&{self.pass_fds[1]} 3<&103 4<&104 "
                  '103<&- 104<&-; export LISTEN_PID=$$ LISTEN_FDS=2; exec "$@"')
        return ["/bin/bash", "-c", script, "bash", *super().argv()]


def test_sockets_that_were_opened_for_it():
    with socket.socket() as plain, socket.socket() as tls:
        for s in (plain, tls):
            s.bind(("127.0.0.1", 0))
            s.listen(64)
        with Activated(plain, tls) as server:
            assert server.client().get("/v1/sandboxes").status == 200
            assert server.tls(DOMAIN).get("/v1/sandboxes").status == 200
            with pytest.raises(ssl.SSLError):
                TlsClient(server, server.port, server.ca).open()


def test_an_address_for_tls_needs_a_certificate(tmp_path):
    done = subprocess.run(
        [paddock.PADDOCK, "serve", "--listen-tls", "127.0.0.1:0", "--state-dir", tmp_path / "s"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=paddock.seconds(30),
        env=paddock.clean_environment({"PADDOCK_RUN_DIR": str(tmp_path / "r")}))
    assert done.returncode == 2 and "listen_tls" in done.stderr, done
    done = subprocess.run(
        [paddock.PADDOCK, "serve", "--listen-tls", "127.0.0.1:1", "--state-dir", tmp_path / "s"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=paddock.seconds(30),
        env=paddock.clean_environment({"PADDOCK_RUN_DIR": str(tmp_path / "r")}))
    assert done.returncode == 2 and "`paddock cert`" in done.stderr, done


# ---- paddock cert ----

def test_cert_prints_what_to_set(tmp_path):
    directory = tmp_path / "my files"
    printed = cert(directory, "--domain", "dev.example", "--name", "10.1.2.3", "--name",
                   "*.more.example", "--days", "7")
    assert "# A certificate for dev.example, *.dev.example, localhost, 127.0.0.1, ::1, 10.1.2.3, " \
        "*.more.example\n" in printed
    ends = time.strftime("%Y-%m-%d", time.gmtime(time.time() + 7 * 86400 - 3600))
    assert f"good until {ends}" in printed
    exports = exports_of(printed)
    ca = str(directory / "ca.pem")
    assert exports == {"E2B_DOMAIN": "dev.example:8443", "NODE_EXTRA_CA_CERTS": ca,
                       "SSL_CERT_FILE": ca}
    (tmp_path / "conf").write_text(settings_of(printed))
    done = subprocess.run([paddock.PADDOCK, "config", "--json", "--config", tmp_path / "conf"],
                          capture_output=True, text=True, timeout=paddock.seconds(30),
                          env=paddock.clean_environment())
    keys = {k["key"]: k["value"] for k in json.loads(done.stdout)["keys"]}
    assert keys["domain"] == "dev.example" and keys["listen_tls"] == "127.0.0.1:8443"
    assert keys["tls_cert"] == str(directory / "cert.pem")
    assert keys["tls_key"] == str(directory / "key.pem")
    modes = {p.name: p.stat().st_mode & 0o777 for p in directory.iterdir()}
    assert modes == {"ca.pem": 0o644, "cert.pem": 0o644, "ca.key": 0o600, "key.pem": 0o600}


def test_cert_of_the_default_domain_and_place(tmp_path):
    env = {"PADDOCK_STATE_DIR": str(tmp_path / "state"), "PADDOCK_LISTEN_TLS": "0.0.0.0:443"}
    done = subprocess.run([paddock.PADDOCK, "cert"], capture_output=True, text=True,
                          timeout=paddock.seconds(30), env=paddock.clean_environment(env))
    assert done.returncode == 0 and done.stderr == "", done
    exports = exports_of(done.stdout)
    assert exports["E2B_DOMAIN"] == "paddock.localhost"
    assert exports["SSL_CERT_FILE"] == str(tmp_path / "state/tls/ca.pem")


def test_cert_leaves_the_files_of_others_alone(tmp_path):
    (tmp_path / "cert.pem").write_text("mine\n")
    assert "--force" in cert(tmp_path, status=125)
    assert [p.name for p in tmp_path.iterdir()] == ["cert.pem"]
    assert (tmp_path / "cert.pem").read_text() == "mine\n"
    cert(tmp_path, "--force")
    first = (tmp_path / "ca.pem").read_bytes()
    cert(tmp_path)
    assert (tmp_path / "ca.pem").read_bytes() == first


@pytest.mark.parametrize("words, says", [
    (["--days", "826"], "825"), (["--days", "0"], "--days"), (["--name", "a b"], "--name"),
    (["--domain", "UPPER.test"], "--domain"), (["--domain", "10.0.0.1"], "--domain"),
    (["--domain", "*.x.test"], "--domain"), (["--nonsense", "1"], "--nonsense"), (["word"], "word"),
    (["--domain"], "--domain"), (["--dir", ""], "--dir"), (["--force=1"], "--force")])
def test_cert_says_what_is_wrong(tmp_path, words, says):
    assert says in cert(tmp_path, *words, status=2)
    assert not list(tmp_path.iterdir())
