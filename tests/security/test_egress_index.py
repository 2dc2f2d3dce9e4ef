"""Package clients through the gate, from the index that this machine's clients use.

Where that is is asked of the clients and of the machine's resolver when the tests run, and the hosts that it needs
besides are learned from what the gate refuses. Then the same with one name missing, which has to fail and be told.
"""

import ipaddress
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from paddock_testing import e2b_images
from paddock_testing.run import PADDOCK, clean_environment, seconds
from paddock_testing.server import Server

ROOT = Path(__file__).resolve().parent.parent.parent
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
PIP = "/usr/bin/python3 -m pip --disable-pip-version-check"
HOSTS_MAX = 6
SIZES = ("--memory", "2G", "--disk", "6G")
# `full` is 1 to 2 GB: for who asks for it.
TIERS = {"basic": "debian:12-slim", **({"full": "debian:12"} if os.environ.get("PADDOCK_TIER_FULL") else {})}


def output(*argv):
    try:
        r = subprocess.run(argv, capture_output=True, text=True, timeout=seconds(60), check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return r.stdout.strip() if r.returncode == 0 else ""


def pip_index():
    own = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    return (os.environ.get("PIP_INDEX_URL") or output(*PIP.split()[:3], "config", "get", "global.index-url")
            or output("/usr/bin/python3", "-c", own))


def npm_index():
    return output("npm", "config", "get", "registry")


def line_of(client, url):
    """A command that downloads a small package, for bash."""
    if client == "pip":
        cert = f" --cert {BUNDLE}" if os.path.exists(BUNDLE) else ""
        return (f"{PIP} download -q --no-cache-dir --no-deps --retries 0 --timeout 60{cert} --index-url {url} -d got six"
                " && ls got")
    return (f"export NODE_EXTRA_CA_CERTS={BUNDLE}; npm pack --silent --cache cache --fetch-retries 0"
            f" --registry {url} is-number")


def private_addresses(host):
    """Those of its addresses that the gate dials only on the operator's word, as company mirrors have."""
    found = {i[4][0] for i in socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)}
    return sorted(a for a in found if not ipaddress.ip_address(a).is_global)


def run(hosts, line, options=(), env=None):
    argv = [PADDOCK, "run", "--json", "--timeout", str(int(seconds(120)))]
    for host in hosts:
        argv += ["--allow", host]
        for address in private_addresses(host.rsplit(":", 1)[0]):
            argv += ["--allow-private", address]
    argv += ["--egress", "list", *options, "--", "bash", "-c", line]
    r = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                       timeout=seconds(150), env=clean_environment(env), check=False)
    assert r.stdout, r
    return json.loads(r.stdout)


def name_and_port(url):
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def learn(url, line, options=(), env=None):
    """The hosts with which it works; None: it does not."""
    hosts = [name_and_port(url)]
    while len(hosts) <= HOSTS_MAX:
        told = run(hosts, line, options, env)
        if told["exit_code"] == 0:
            return hosts
        more = {d["host"] for d in told["network"]["denied"]} - {h.rsplit(":", 1)[0] for h in hosts}
        if not more:
            return None
        hosts += sorted(f"{name}:443" for name in more)
    return None


@pytest.mark.parametrize("client,tool,index", [("pip", "/usr/bin/python3", pip_index), ("npm", "npm", npm_index)])
def test_a_package_is_fetched_by_the_names_that_it_needs_and_not_without_one(tmp_path, client, tool, index):
    if not os.environ.get("PADDOCK_NIGHTLY") and not os.environ.get("PADDOCK_INDEX"):
        pytest.skip("at night: it asks the package index that this machine's clients use")
    if not shutil.which(tool):
        pytest.skip(f"the package index cannot be tried: {tool} is not installed")
    url = index()
    line = line_of(client, url)
    outside = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False,
                             timeout=seconds(150)) if url else None
    if not outside or outside.returncode:
        pytest.skip(f"the package index cannot be tried: {client} gets nothing from it outside of a sandbox either")

    check(learn(url, line), line)


def check(hosts, line, options=(), env=None):
    """Without any of these hosts it fails, and the refusal is told."""
    assert hosts, "it works outside, and not by any rules"
    for missing in hosts:
        told = run([h for h in hosts if h != missing], line, options, env)
        assert told["exit_code"] != 0
        assert missing.rsplit(":", 1)[0] in {d["host"] for d in told["network"]["denied"]}, told


@pytest.fixture(scope="module")
def debian():
    """Where apt's index is, a store with a Debian of it as an image, and the archive of that."""
    if not os.environ.get("PADDOCK_NIGHTLY") and not os.environ.get("PADDOCK_INDEX"):
        pytest.skip("at night: it asks the package index that this machine's clients use")
    place = Path(tempfile.mkdtemp(prefix="paddock-index-", dir="/var/tmp"))
    try:
        archive = e2b_images.make(place)
        if not archive:
            pytest.skip("the package index cannot be tried: mmdebstrap is not installed, or apt has no sources")
        sources = "".join(p.read_text() for p in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("debian*"))
                          if p.exists())
        env = {"PADDOCK_STATE_DIR": str(place / "state"), "PADDOCK_RUN_DIR": str(place / "run")}
        subprocess.run([PADDOCK, "image", "import", "--name", "debian:index", archive], env=clean_environment(env), check=True,
                       stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds(300))
        yield re.search(r"^[^#\n]*(https?://\S+)", sources, re.M)[1], env, archive
    finally:
        shutil.rmtree(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_apt_installs_in_an_image(debian):
    url, env, _ = debian
    line = "apt-get -q update && apt-get -qy install --no-install-recommends hello && hello"
    options = ("--image", "debian:index", "--profile", "dev", "--user", "root", "--memory", "1G")
    check(learn(url, line, options, env), line, options, env)


def template(server, *words):
    env = {**server.env, "PADDOCK_URL": server.url, "PADDOCK_API_KEY": server.key}
    return subprocess.run([PADDOCK, "template", *map(str, words)], env=env, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=seconds(900))


def hosts_refused(server):
    """What builds did not reach, because it is at private addresses."""
    found = set()
    for file in Path(server.state_dir).rglob("audit*"):
        for line in file.read_text().splitlines() if file.is_file() else []:
            told = json.loads(line)
            if told.get("action") == "egress" and told.get("result") == "refused" and told.get("name"):
                found.add(told["name"])
    return found


def serve_tier(tier, archive, private):
    """A server whose builds reach public addresses and these, with an image of the name that the tier begins with."""
    settings = {"egress": "open", "providers": "jail", "requests_per_s": 0, "creates_per_s": 0, "pool_max": 0,
                "max_memory_bytes": "4G", "max_disk_bytes": "8G"}
    if private:
        settings["egress_private"] = ",".join(private)
    if os.path.exists(BUNDLE):
        settings["egress_ca"] = BUNDLE
    server = Server(settings)
    server.__enter__()
    subprocess.run([PADDOCK, "image", "import", "--name", TIERS[tier], archive], env=server.env, check=True,
                   stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds(300))
    return server


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_is_built_and_requirements_go_on_top(debian, tmp_path, tier):
    """As docs/builds.md has it: apt and pip in a build, the same again without doing anything, then one file more."""
    hosts, done = {urlsplit(url).hostname for url in (debian[0], pip_index())}, None
    for _ in range(HOSTS_MAX):
        server = serve_tier(tier, debian[2], sorted({a for host in hosts for a in private_addresses(host)}))
        try:
            done = template(server, "build", *SIZES, ROOT / "templates" / tier)
            more = hosts_refused(server) - hosts
            if done.returncode == 0:
                look_at(server, tier, tmp_path)
                return
        finally:
            e2b_images.forget(server)
            server.close()
        assert more, done
        hosts |= more
    raise AssertionError(done)


def look_at(server, tier, tmp_path):
    again = template(server, "build", *SIZES, ROOT / "templates" / tier)
    assert again.returncode == 0 and "all of it was built before" in again.stdout + again.stderr, again
    (tmp_path / "more.txt").write_text("six\n")
    (tmp_path / "Dockerfile").write_text("FROM nothing\nCOPY more.txt /tmp/more.txt\n"
                                         "RUN /opt/python/bin/pip install --no-cache-dir -r /tmp/more.txt\n")
    layered = template(server, "build", "--name", "more", "--template", tier, *SIZES, tmp_path)
    assert layered.returncode == 0, layered
    client = server.client()
    for name, has_it in ((tier, False), ("more", True)):
        made = client.post("/v1/sandboxes", json={"template": name})
        assert made.status == 201, made
        line = "/opt/python/bin/python -c 'import yaml, requests{}'"
        for imports, works in (("", True), (", six", has_it)):
            told = client.post(f"/v1/sandboxes/{made.json()['id']}/exec", json={"command": line.format(imports)}).json()
            assert (told["exit_code"] == 0) == works, told
        client.delete(f"/v1/sandboxes/{made.json()['id']}")
