"""Templates that are files of the server's: what they ask for is there when the sandbox is, and what cannot be had is
named."""

import http.server
import io
import os
import subprocess
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

from paddock_testing import run as run_paddock
from paddock_testing.server import Server, check_error

SERVED = """\
# A server, its page, and a program that looks for it.
title = A page
from = base
programs = sh python3
env = GREETING=hello from the template
env = BOTH=template
memory = 300M
pids = 99
file = /workspace/site/index.html
    <h1>Served</h1>

    and the rest
file = ~/.config/served.ini
    [served]
start = cd /workspace/site; exec python3 -m http.server 8123
ready = port 8123
port = 8123 The page
"""
FILES = {
    "served": SERVED,
    "by-command": "from = default\nstart = sleep 0.3; echo there > /tmp/flag; sleep 1000\nready = test -e /tmp/flag\n",
    "daemon": "start = (sleep 0.3; echo there > /tmp/flag; sleep 1000) >/dev/null 2>&1 & exit 0\nready = test -e /tmp/flag\n",
    "missing": "programs = sh no-such-program other-one\n",
    "missing-package": "programs = no-such-program\npackages = npm:no-such\npackages_from = registry.example\n",
    "never": "start = echo why it hangs >&2; sleep 1000\nready = false\nready_within = 500ms\n",
    "dies": "start = echo 'no \033 such thing' >&2; exit 3\nready = false\n".replace("\033", "?"),
    "unwritable": "file = /proc/nothing\n    text\n",
    "secret": "allow = api.example.com\nsecret = KEY nobodys api.example.com\n",
    "image": "from = image:nothing.example/here:1\n",
}


@pytest.fixture(scope="session")
def folder():
    """One that the server can read when it is nobody."""
    with tempfile.TemporaryDirectory(prefix="paddock-templates-", dir=os.environ.get("PADDOCK_TEST_DIR", "/var/tmp")) as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def house(folder):
    where = folder
    for name, text in FILES.items():
        (where / f"{name}.template").write_text(text)
    (where / "notes.txt").write_text("this is no template")
    with Server({"requests_per_s": 0, "creates_per_s": 0, "template_dir": str(where)}) as server:
        server.templates = where
        yield server


@pytest.fixture(scope="session")
def api(house):
    return house.client()


@pytest.fixture
def make(api):
    made = []

    def create(**body):
        answer = api.post("/v1/sandboxes", json=body)
        if answer.status == 201:
            made.append(answer.json()["id"])
        return answer

    yield create
    for sandbox in made:
        api.delete(f"/v1/sandboxes/{sandbox}")


def run(api, sandbox, command):
    answer = api.post(f"/v1/sandboxes/{sandbox}/exec", json={"command": command})
    assert answer.status == 200, answer
    return answer.json()["stdout"]


def test_they_are_listed(api):
    listed = {t["name"]: t for t in api.get("/v1/templates").json()["templates"]}
    assert {"default", "base", "restricted"} <= {n for n, t in listed.items() if t["kind"] == "profile"}
    assert listed["code-interpreter-v1"]["kind"] == "alias" and listed["code-interpreter-v1"]["of"] == "base"
    assert {"code-server", "cloud", "claude", "codex"} | set(FILES) == {n for n, t in listed.items() if t["kind"] == "file"}
    served = listed["served"]
    assert served["title"] == "A page" and served["profile"] == "dev" and served["env"] == ["GREETING", "BOTH"]
    assert served["ports"] == [{"port": 8123, "title": "The page"}]
    assert served["files"] == ["/workspace/site/index.html", "~/.config/served.ini"]
    assert "hello from" not in str(served["env"])
    assert listed["claude"]["secrets"] == [{"env": "ANTHROPIC_API_KEY", "secret": "anthropic", "host": "api.anthropic.com"}]
    e2b = {t["templateID"] for t in api.get("/templates").json()}
    assert e2b == set(listed)


def test_what_it_says_is_there_when_the_sandbox_is(api, make):
    answer = make(template="served", env={"BOTH": "request"})
    assert answer.status == 201, answer
    made = answer.json()
    assert made["template"] == "served" and made["profile"] == "dev"
    assert made["limits"]["memory_bytes"] == 300 << 20 and made["limits"]["pids"] == 99
    page = api.get(f"/v1/sandboxes/{made['id']}/ports/8123/")
    assert page.status == 200 and page.text == "<h1>Served</h1>\n\nand the rest\n"
    assert run(api, made["id"], 'echo "$GREETING, $BOTH"; cat ~/.config/served.ini') == "hello from the template, request\n[served]\n"
    # What was started is a process like others, and the steps before it are nobody's.
    processes = api.get(f"/v1/sandboxes/{made['id']}/processes").json()["processes"]
    assert [p["command"] for p in processes if p["running"]] == ["cd /workspace/site; exec python3 -m http.server 8123"]
    assert len(processes) == 2


@pytest.mark.parametrize("name", ["by-command", "daemon"])
def test_it_is_ready_when_the_command_says_so(api, make, name):
    made = make(template=name)
    assert made.status == 201, made
    assert run(api, made.json()["id"], "cat /tmp/flag") == "there\n"


@pytest.mark.parametrize(("name", "status", "code", "says"), [
    ("missing", 501, "unsupported", "has no no-such-program other-one"),
    ("missing-package", 501, "unsupported", "npm:no-such cannot be fetched without a way out"),
    ("never", 501, "unsupported", "it was not ready within 0 s: why it hangs"),
    ("dies", 501, "unsupported", "its start command ended with 3: no ? such thing"),
    ("unwritable", 400, "invalid", "/proc/nothing cannot be written"),
    ("secret", 403, "denied", "no way to the network"),
    ("code-server", 501, "unsupported", "has no code-server, and npm:code-server"),
    ("cloud", 501, "unsupported", "has no gcloud kubectl"),
])
def test_what_cannot_be_had_is_named_and_nothing_is_left(api, make, name, status, code, says):
    programs = {"cloud": ["gcloud", "kubectl"]}.get(name, [name])
    lacking = [program for program in programs if not any(os.path.exists(f"{d}/{program}") for d in ("/usr/bin", "/usr/local/bin"))]
    if not lacking:
        pytest.skip("this host has it")
    if name == "cloud":
        says = f"has no {' '.join(lacking)}"
    check_error(make(template=name), status, code, says=says)
    assert api.get("/v1/sandboxes").json()["sandboxes"] == []


def test_a_name_that_nobody_knows(api, make):
    check_error(make(template="no-such"), 400, "invalid", field="template", says="GET /v1/templates")


def test_by_user_and_thread_it_is_set_up_once(api):
    path = "/v1/sessions/ann/served"
    made = api.put(path, json={"template": "served"})
    assert made.status == 201, made
    again = api.put(path, json={"template": "served"})
    assert again.status == 200 and again.json()["id"] == made.json()["id"]
    assert len(api.get(f"/v1/sandboxes/{made.json()['id']}/processes").json()["processes"]) == 1
    assert api.delete(path).status == 204

    # One that could not be set up is nobody's: the next attempt is a new one.
    check_error(api.put(path, json={"template": "missing"}), 501, "unsupported")
    made = api.put(path, json={"template": "default"})
    assert made.status == 201, made
    api.delete(path)


def test_at_the_e2b_door(api):
    made = api.post("/v2/sandboxes", json={"templateID": "served", "envVars": {"BOTH": "e2b"}})
    assert made.status == 201, made
    box = made.json()["sandboxID"]
    assert run(api, box, 'echo "$GREETING, $BOTH"') == "hello from the template, e2b\n"
    assert api.get(f"/v1/sandboxes/{box}/ports/8123/").status == 200
    assert api.delete(f"/sandboxes/{box}").status == 204
    assert api.get("/templates/aliases/served").json() == {"templateID": "served", "public": True}


def test_a_snapshot_may_be_used_with_it(api, make):
    first = make(template="served").json()["id"]
    run(api, first, "echo '<h1>Mine</h1>' > /workspace/site/mine.html")
    kept = api.post(f"/v1/sandboxes/{first}/snapshots", json={})
    assert kept.status == 201, kept
    plain = make(snapshot=kept.json()["id"]).json()["id"]
    assert api.get(f"/v1/sandboxes/{plain}/processes").json()["processes"] == []
    both = make(snapshot=kept.json()["id"], template="served").json()["id"]
    assert api.get(f"/v1/sandboxes/{both}/ports/8123/mine.html").text == "<h1>Mine</h1>\n"
    api.delete(f"/v1/snapshots/{kept.json()['id']}")


def test_cloud_has_the_programs_of_the_host(api, make):
    if not all(os.path.exists(f"/usr/bin/{program}") for program in ("gcloud", "kubectl")):
        pytest.skip("this host has no gcloud and kubectl")
    made = make(template="cloud")
    assert made.status == 201, made
    assert "Client Version" in run(api, made.json()["id"], "kubectl version --client")
    assert "Google Cloud SDK" in run(api, made.json()["id"], "gcloud version")


def test_cloud_is_made_where_its_programs_are(api, make):
    """They come with a snapshot here, as they would with an image."""
    first = make(template="base").json()["id"]
    run(api, first, "mkdir -p ~/.local/bin; for n in gcloud kubectl; do printf '#!/bin/sh\\necho %s $CLOUDSDK_CORE_DISABLE_PROMPTS\\n' $n > ~/.local/bin/$n; "
        "chmod +x ~/.local/bin/$n; done")
    kept = api.post(f"/v1/sandboxes/{first}/snapshots", json={}).json()["id"]
    made = make(template="cloud", snapshot=kept)
    assert made.status == 201, made
    assert made.json()["template"] == "cloud" and made.json()["limits"]["memory_bytes"] == 1 << 30
    assert run(api, made.json()["id"], "~/.local/bin/gcloud; ~/.local/bin/kubectl; type gcloud kubectl > /dev/null") == "gcloud 1\nkubectl 1\n"
    api.delete(f"/v1/snapshots/{kept}")


def test_a_reload_reads_them_anew_and_a_wrong_file_changes_nothing(house, api, make):
    def log_has(text, since):
        end = time.monotonic() + 20
        while text not in house.log()[since:]:
            assert time.monotonic() < end, house.log()[since:]
            time.sleep(0.05)

    new = house.templates / "new.template"
    for text, says in (("title = Two\nport = 70000 far\n", "new.template:2: port: the port: "), ("title = New\n", "changes=")):
        since = len(house.log())
        new.write_text(text)
        house.send_signal(1)
        log_has(says, since)
        names = [t["name"] for t in api.get("/v1/templates").json()["templates"]]
        assert ("new" in names) == (text == "title = New\n") and "served" in names
    assert make(template="new").status == 201
    new.unlink()


def test_a_server_does_not_start_with_a_wrong_one(tmp_path):
    (tmp_path / "bad.template").write_text("start = x\nstart = y\n")
    env = {**os.environ, "PADDOCK_TEMPLATE_DIR": str(tmp_path)}
    answer = subprocess.run([run_paddock.PADDOCK, "config"], env=env, capture_output=True, text=True, timeout=30, check=False)
    assert answer.returncode == 2 and "bad.template:2: start: is given twice" in answer.stderr, answer


class Index(http.server.BaseHTTPRequestHandler):
    """A package index with one package, whose program says where it came from."""

    @staticmethod
    def wheel():
        out, info = io.BytesIO(), "hello_from_index-1.0.dist-info"
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("hello_from_index.py", "def main():\n    print('from the index')\n")
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hello-from-index\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\nhello-from-index = hello_from_index:main\n")
            archive.writestr(f"{info}/RECORD", "")
        return out.getvalue()

    def do_GET(self):
        name = "hello_from_index-1.0-py3-none-any.whl"
        found = {"/simple/hello-from-index/": f'<a href="/{name}">{name}</a>'.encode(), f"/{name}": self.wheel()}.get(self.path)
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
        self.send_header("Content-Length", str(len(found or b"")))
        self.end_headers()
        self.wfile.write(found or b"")

    def log_message(self, *_):
        pass


def test_packages_are_installed_where_a_program_is_missing_and_secrets_are_usable_not_readable():
    if subprocess.run(["/usr/bin/python3", "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("there is no pip on this host")
    index = "packages_from = index.example\nenv = PIP_INDEX_URL=http://index.example/simple\nenv = PIP_TRUSTED_HOST=index.example\n"
    files = {
        "packaged": "from = base\nprograms = hello-from-index\npackages = pip:hello-from-index\n" + index,
        "unknown": "from = base\nprograms = other\npackages = pip:no-such-package\n" + index,
        "keyed": "from = base\nallow = api.example.com\nsecret = KEY mine api.example.com\n",
    }
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as web, \
            tempfile.TemporaryDirectory(prefix="paddock-templates-", dir=os.environ.get("PADDOCK_TEST_DIR", "/var/tmp")) as folder:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        os.chmod(folder, 0o755)
        for name, text in files.items():
            Path(folder, f"{name}.template").write_text(text)
        with Server({"requests_per_s": 0, "creates_per_s": 0, "template_dir": folder, "egress": "list",
                     "egress_allow": "index.example,api.example.com", "egress_hosts": f"index.example=127.0.0.1:{web.server_port}"}) as server:
            api = server.client()
            made = api.post("/v1/sandboxes", json={"template": "packaged"})
            assert made.status == 201, made
            assert made.json()["network"]["allow"] == ["index.example"]
            assert run(api, made.json()["id"], "hello-from-index") == "from the index\n"
            check_error(api.post("/v1/sandboxes", json={"template": "unknown"}), 501, "unsupported", says="packages by pip cannot be installed (1): ")

            check_error(api.post("/v1/sandboxes", json={"template": "keyed"}), 400, "invalid", says="mine")
            assert api.put("/v1/secrets/mine", json={"value": "the-value-of-mine"}).status in (200, 201, 204)
            keyed = api.post("/v1/sandboxes", json={"template": "keyed"})
            assert keyed.status == 201, keyed
            seen = run(api, keyed.json()["id"], "echo $KEY")
            assert seen.startswith("pdk-secret-") and "the-value" not in seen
        web.shutdown()
