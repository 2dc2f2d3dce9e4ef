"""What a check says of a backend that cannot be used, the same for each: a place where nobody is, one that refuses, one that
is somebody else, one that keeps silent. What is wrong with its own settings and credentials is in the file of each."""

import contextlib
import http.server
import os
import socket
import subprocess
import threading

import pytest

import elsewhere
from paddock_testing import run as paddock
from paddock_testing.kube import server_context

def nightly(test):
    return test if paddock.NIGHTLY else None


SECRET = "ya29.secret-of-this-test"
KUBECONFIG = """apiVersion: v1
kind: Config
current-context: test
contexts:
- name: test
  context:
    cluster: test
    user: test
clusters:
- name: test
  cluster:
    server: {url}
    certificate-authority: {ca}
users:
- name: test
  user:
    token: {secret}
"""


def settings(provider, place, ca, directory):
    """Those that are right but for the place, and what is in the environment. Plain HTTP is for this machine alone."""
    token = directory / "token"
    token.write_text(SECRET)
    if provider == "e2b":
        return {"e2b_api_key_file": token, "e2b_api_url": f"http://{place}"}, {}
    if provider == "daytona":
        return {"daytona_api_key_file": token, "daytona_api_url": f"http://{place}/api"}, {}
    if provider == "cloudrun":
        return {"cloudrun_token_file": token, "cloudrun_endpoint": f"http://{place}", "cloudrun_project": "test-project",
                "cloudrun_region": "europe-west1", "cloudrun_job": "boxes", "cloudrun_listen": "127.0.0.1:17443",
                "cloudrun_call": "127.0.0.1:17443", "cloudrun_network": "isolated"}, {}
    if provider == "fargate":
        return {"fargate_region": "eu-central-1", "fargate_endpoint": f"http://{place}", "fargate_cluster": "boxes",
                "fargate_task_definition": "paddock", "fargate_subnets": "subnet-1", "fargate_security_groups": "sg-1",
                "fargate_network": "isolated"}, {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": SECRET}
    config = directory / "kubeconfig"
    config.write_text(KUBECONFIG.format(url=f"https://{place}", ca=ca, secret=SECRET))
    return {"kubernetes_config": config, "kubernetes_box_image": "test/paddock-box:1"}, {}


def check(provider, place, ca, directory):
    if provider == "docker":
        program = os.path.join(os.path.dirname(paddock.PADDOCK), "paddock-remote")
        done = subprocess.run([program, "check", "docker", "--host", f"tcp://{place}"], capture_output=True, text=True,
                              check=False, timeout=paddock.seconds(60), env=paddock.clean_environment({}))
        status, text = done.returncode, done.stdout
    else:
        given, env = settings(provider, place, ca, directory)
        status, text = elsewhere.check(provider, given, env, image="debian:12")
    assert SECRET not in text, text
    return status, text


class Place:
    """Somebody who has one answer for everything; with TLS where that is asked for."""

    def __init__(self, status, body, directory, tls):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked += 1
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = serve

            def log_message(self, *_args):
                pass

        self.asked = 0
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context, self.ca = server_context(directory)
        if tls:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@contextlib.contextmanager
def place(provider, status, body, directory):
    with contextlib.closing(Place(status, body, str(directory), provider == "kubernetes")) as made:
        yield made


PROVIDERS = ["docker", "kubernetes", "e2b", "daytona", "fargate", "cloudrun"]
REFUSAL = (b'{"message": "not for you", "error": {"code": 403, "message": "not for you", "status": "PERMISSION_DENIED"}, '
           b'"__type": "AccessDeniedException", "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403}')
# What helps, where a permission is missing.
REMEDY = {"docker": "not for you", "kubernetes": "does not allow to ask", "e2b": "e2b_api_key_file", "daytona": "daytona_api_key_file",
          "fargate": "needs ecs:RunTask", "cloudrun": "roles of the service account"}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_place_where_nobody_is(provider, tmp_path):
    with socket.socket() as nobody:  # bound, and not listening
        nobody.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{nobody.getsockname()[1]}"
        status, text = check(provider, at, "/etc/ssl/certs/ca-certificates.crt", tmp_path)
    assert status == 1 and "error " in text and at in text and "connect" in text, text


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_permission_that_is_missing(provider, tmp_path):
    with place(provider, 403, REFUSAL, tmp_path) as somebody:
        status, text = check(provider, somebody.address, somebody.ca, tmp_path)
        assert somebody.asked
    assert status == 1 and REMEDY[provider] in text, text


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_place_where_somebody_else_is(provider, tmp_path):
    """An answer that is good and means nothing: found before anything is made there."""
    with place(provider, 200, b"<html>welcome</html>", tmp_path) as somebody:
        status, text = check(provider, somebody.address, somebody.ca, tmp_path)
        assert 1 <= somebody.asked <= 3, "nothing more is asked of it"
    assert status == 1 and "error " in text and "welcome" not in text.replace("error", ""), text


@nightly  # 20 s each
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_place_that_keeps_silent(provider, tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        status, text = check(provider, at, "/etc/ssl/certs/ca-certificates.crt", tmp_path)
    assert status == 1 and at in text and any(says in text for says in ("timed out", "timeout", "in time")), text


def test_a_certificate_of_nobody_that_is_known(tmp_path):
    """What is asked for by https is not asked of anybody else; e2b and daytona have the same in their own files."""
    with contextlib.closing(Place(200, b"{}", str(tmp_path), True)) as somebody:
        given, env = settings("fargate", somebody.address, "", tmp_path)
        status, text = elsewhere.check("fargate", {**given, "fargate_endpoint": f"https://{somebody.address}"}, env)
        assert status == 1 and "certificate" in text and not somebody.asked, text
        given, _ = settings("kubernetes", somebody.address, "/etc/ssl/certs/ca-certificates.crt", tmp_path)
        status, text = elsewhere.check("kubernetes", given, image="debian:12")
        assert status == 1 and "certificate" in text and not somebody.asked, text
