"""Real engines for tests: dockerd, podman's service, a registry, and images made here.

`Dockerd` and `Podman` start an engine of their own below a temporary directory, `Registry` a
docker-registry on loopback; each is ended by its pid with its data and mounts. Images are made by
import from busybox and this machine's bash: no network. `why_not(kind)` says why an engine cannot be
started here, or is empty.
"""

import base64
import contextlib
import crypt
import functools
import gzip
import http.client
import io
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
from pathlib import Path

from . import images
from . import run as paddock
from .server import free_port

BUSYBOX = "/bin/busybox"
# What an image with a shell has of busybox.
APPLETS = ("sh cat echo ls sleep env id pwd mkdir rm cp mv head tail wc grep sed tr seq true false "
           "kill ps touch dd printf sort test stat mkfifo nc httpd yes find tar nproc free df mount "
           "ln chmod readlink date timeout xargs awk setsid stty").split()


class UnixHTTP(http.client.HTTPConnection):
    def __init__(self, path, timeout=60):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Engine:
    """What both engines have: a socket that speaks docker's API."""

    kind = ""

    def __init__(self):
        self.dir = Path(tempfile.mkdtemp(prefix=f"paddock-{self.kind}-"))
        self.socket = str(self.dir / "engine.sock")
        self.host = "unix://" + self.socket
        self.process = None

    def start(self):
        self.log = open(self.dir / "log", "ab")
        # What watches over podman's containers writes a file `oom` where it is.
        self.process = subprocess.Popen(
            self.command(), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=self.dir,
            start_new_session=True)
        paddock.wait_for(self.answers, 60, f"{self.kind} answers: {self.log_tail()}")
        return self

    def answers(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.kind} ended: {self.log_tail()}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.call("GET", "/_ping")[0] == 200
        return False

    def log_tail(self):
        with contextlib.suppress(OSError):
            return (self.dir / "log").read_text(errors="replace")[-600:]
        return ""

    def call(self, method, path, body=None, headers=None, timeout=120):
        """Status and body; a dict is sent as JSON."""
        connection = UnixHTTP(self.socket, paddock.seconds(timeout))
        try:
            sent = dict(headers or {})
            if isinstance(body, dict):
                body = json.dumps(body).encode()
                sent["Content-Type"] = "application/json"
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def good(self, method, path, body=None, **more):
        status, text = self.call(method, path, body, **more)
        assert status < 300, (method, path, status, text[:600])
        return text

    def import_image(self, name, tar, changes=()):
        repository, _, tag = name.rpartition(":")
        query = [("fromSrc", "-"), ("repo", repository), ("tag", tag)]
        query += [("changes", change) for change in changes]
        text = self.good("POST", "/images/create?" + urllib.parse.urlencode(query), tar,
                         headers={"Content-Type": "application/x-tar"})
        assert b"errorDetail" not in text, text[-600:]
        return name

    def containers(self, label="paddock.owner"):
        filters = urllib.parse.quote(json.dumps({"label": [label]}))
        return json.loads(self.good("GET", f"/containers/json?all=1&filters={filters}"))

    def container_of(self, box):
        """The container of a box by its label, or None."""
        found = self.containers(f"paddock.box={box}")
        return found[0]["Id"] if found else None

    def roots(self):
        """The files of sandboxes that it keeps: names of images, and of containers that have ended."""
        images = json.loads(self.list_images())
        names = [tag for i in images for tag in i["RepoTags"] or () if "paddock-root-" in tag]
        return names + [c["Names"][0] for c in self.containers() if c["State"] != "running"]

    def list_images(self):
        """Podman's list fails while an image that is in it is being removed."""
        deadline = time.monotonic() + paddock.seconds(30)
        while True:
            status, text = self.call("GET", "/images/json")
            if status != 500 or b"image not known" not in text:
                assert status < 300, (status, text[:600])
                return text
            assert time.monotonic() < deadline, text[:600]
            time.sleep(0.05)

    def inspect(self, name):
        return json.loads(self.good("GET", f"/containers/{name}/json"))

    def stop(self, hard=False):
        """Ends the engine alone; its containers stay if it lets them (live-restore)."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
            self.process.wait(paddock.seconds(60))
        self.process = None

    def close(self):
        if self.process and self.process.poll() is None:
            with contextlib.suppress(OSError, AssertionError, http.client.HTTPException):
                for container in json.loads(self.good("GET", "/containers/json?all=1")):
                    self.call("DELETE", f"/containers/{container['Id']}?force=1&v=1")
        self.stop()
        self.log.close()
        self.unmount()
        shutil.rmtree(self.dir, ignore_errors=True)

    def unmount(self):
        mounts = [line.split()[4] for line in open("/proc/self/mountinfo")]
        for mount in reversed([m for m in mounts if m.startswith(str(self.dir) + "/")]):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)


class Dockerd(Engine):
    kind = "docker"

    def __init__(self, *options):
        super().__init__()
        self.options = options
        self.space = "paddock-" + secrets.token_hex(8)  # containerd takes no underscores in a row

    def command(self):
        return ["dockerd", "--host", self.host, "--data-root", str(self.dir / "data"),
                "--exec-root", str(self.dir / "exec"), "--pidfile", str(self.dir / "pid"),
                "--iptables=false", "--ip6tables=false", "--bridge=none",
                "--containerd-namespace", self.space, "--containerd-plugins-namespace",
                self.space + "-plugins", *self.options]


class FarDockerd(Dockerd):
    """An engine that might be on another machine: by TCP with TLS, in a mount namespace where every directory in which
    tests and servers keep anything is empty. Its own socket is the tests' own way to it."""

    # A handle on its own directory is kept while the places above it are covered.
    COVER = ("set -e; d=$1; shift; mount -t tmpfs none /mnt; mkdir /mnt/d; mount --bind \"$d\" /mnt/d; "
             "for place in /tmp /var/tmp /var/lib/paddock /dev/shm; do [ ! -d $place ] || mount -t tmpfs none $place; done; "
             "mkdir -p \"$d\"; mount --bind /mnt/d \"$d\"; exec \"$@\"")

    def __init__(self):
        super().__init__()
        self.certs, self.port = self.dir / "certs", free_port()
        self.tcp = f"tcp://127.0.0.1:{self.port}"
        own = self.dir / "own"
        self.certs.mkdir()
        own.mkdir()
        make_ca(self.certs / "ca.pem", own / "ca-key.pem")
        sign(self.certs / "ca.pem", own / "ca-key.pem", own, "server", "subjectAltName=IP:127.0.0.1")
        sign(self.certs / "ca.pem", own / "ca-key.pem", self.certs, "client", "extendedKeyUsage=clientAuth")
        self.options = ("--host", self.tcp, "--tlsverify", "--tlscacert", str(self.certs / "ca.pem"),
                        "--tlscert", str(own / "cert.pem"), "--tlskey", str(own / "key.pem"))

    def command(self):
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", self.COVER, "sh", str(self.dir),
                *super().command()]

    def settings(self):
        """What a server needs to use it."""
        return {"docker_host": self.tcp, "docker_cert_path": str(self.certs)}


def _openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, stdin=subprocess.DEVNULL)


def make_ca(cert, key):
    _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/CN=test ca", "-keyout", key, "-out", cert)


def sign(ca, ca_key, directory, name, extension):
    """cert.pem and key.pem in a directory, by this authority."""
    _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
             "-keyout", directory / "key.pem", "-out", directory / "request.pem")
    (directory / "extension").write_text(extension)
    _openssl("x509", "-req", "-in", directory / "request.pem", "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2",
             "-extfile", directory / "extension", "-out", directory / "cert.pem")


class Podman(Engine):
    kind = "podman"

    def __init__(self, *plain):
        """`plain`: registries without TLS, which it has to be told of."""
        super().__init__()
        self.registries = self.dir / "registries.conf"
        self.registries.write_text("".join(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n'
                                           for address in plain))

    def command(self):
        return ["env", f"CONTAINERS_REGISTRIES_CONF={self.registries}", "podman", "--root", str(self.dir / "root"), "--runroot", str(self.dir / "run"),
                "--cgroup-manager=cgroupfs", "--runtime", runtime_of_podman(), "system", "service",
                "--time=0", self.host]


def runtime_of_podman():
    """crun of Debian 12 refuses hybrid cgroups; runc takes them."""
    return shutil.which("runc", path=os.environ["PATH"] + ":/usr/sbin") or "crun"


class Registry:
    """docker-registry on a port of its own; with a user when `password` is given."""

    def __init__(self, user="", password=""):
        self.dir = Path(tempfile.mkdtemp(prefix="paddock-registry-"))
        self.address = f"127.0.0.1:{free_port()}"
        self.user, self.password = user, password
        config = {"version": 0.1, "log": {"level": "error"}, "http": {"addr": self.address},
                  "storage": {"filesystem": {"rootdirectory": str(self.dir / "data")},
                              "delete": {"enabled": True}}}
        if password:
            passwords = self.dir / "htpasswd"
            hashed = crypt.crypt(password, crypt.mksalt(crypt.METHOD_BLOWFISH))
            passwords.write_text(f"{user}:{hashed}\n")
            config["auth"] = {"htpasswd": {"realm": "test", "path": str(passwords)}}
        (self.dir / "config.yml").write_text(json.dumps(config))  # JSON is YAML

    def start(self):
        self.log = open(self.dir / "log", "ab")
        self.process = subprocess.Popen(
            ["docker-registry", "serve", str(self.dir / "config.yml")], stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=self.log, start_new_session=True)
        paddock.wait_for(self.answers, 60, "the registry answers")
        return self

    def answers(self):
        assert self.process.poll() is None, (self.dir / "log").read_text()[-600:]
        connection = http.client.HTTPConnection(self.address, timeout=5)
        with contextlib.suppress(OSError):
            connection.request("GET", "/v2/")
            return connection.getresponse().status == (401 if self.password else 200)
        return False

    def auth(self):
        """The header for a push, and the file for our own setting."""
        if not self.password:
            return "e30=", {"auths": {}}
        word = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        header = base64.urlsafe_b64encode(json.dumps(
            {"username": self.user, "password": self.password,
             "serveraddress": self.address}).encode()).decode()
        return header, {"auths": {self.address: {"auth": word}}}

    def push(self, engine, name, to):
        """Pushes an image of the engine as ADDRESS/to; gives that name and its digest."""
        repository, _, tag = to.rpartition(":")
        full = f"{self.address}/{repository}"
        engine.good("POST", f"/images/{name}/tag?repo={full}&tag={tag}")
        text = engine.good("POST", f"/images/{full}/push?tag={tag}",
                           headers={"X-Registry-Auth": self.auth()[0]}).decode()
        assert "errorDetail" not in text, text[-600:]
        digest = re.search(r"digest: (sha256:[0-9a-f]{64})", text)[1]
        engine.call("DELETE", f"/images/{full}:{tag}")
        return f"{full}:{tag}", digest

    def upload(self, name, layers):
        """Puts an image of plain layers there as docker does, packed with gzip; gives the packed bytes."""
        repository, _, tag = name.rpartition(":")
        word = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

        def ask(method, target, body=b"", kind="application/octet-stream"):
            connection = http.client.HTTPConnection(self.address, timeout=paddock.seconds(30))
            connection.request(method, target, body, {"Authorization": "Basic " + word, "Content-Type": kind})
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status in (201, 202), (answer.status, text)
            where = answer.headers["Location"]
            connection.close()
            return where.removeprefix(f"http://{self.address}") if where else None

        def blob(data, kind):
            place = ask("POST", f"/v2/{repository}/blobs/uploads/")
            ask("PUT", f"{place}{'&' if '?' in place else '?'}digest=sha256:{images.sha(data)}", data)
            return {"mediaType": kind, "digest": "sha256:" + images.sha(data), "size": len(data)}

        docker = "application/vnd.docker."
        packed = [gzip.compress(one, 6) for one in layers]
        manifest = {"schemaVersion": 2, "mediaType": docker + "distribution.manifest.v2+json",
                    "config": blob(images.config(layers), docker + "container.image.v1+json"),
                    "layers": [blob(one, docker + "image.rootfs.diff.tar.gzip") for one in packed]}
        ask("PUT", f"/v2/{repository}/manifests/{tag}", json.dumps(manifest).encode(), manifest["mediaType"])
        return sum(map(len, packed))

    def close(self):
        self.process.terminate()
        self.process.wait(paddock.seconds(30))
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


@functools.lru_cache(None)
def why_not(kind):
    """Why this engine cannot be started here; "" when it can."""
    program = {"docker": "dockerd", "podman": "podman"}[kind]
    if os.geteuid() != 0:
        return f"{program} needs root"
    for needed in (program, "busybox"):
        if not shutil.which(needed, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
            return f"{needed} is not installed (scripts/install-deps engines)"
    engine = Dockerd() if kind == "docker" else Podman()
    try:
        engine.start()
        return ""
    except Exception as error:  # pylint: disable=broad-except
        return f"{program} does not start: {str(error)[-300:]}"
    finally:
        engine.close()


# ---- images ----

def _add(tar, name, data=b"", mode=0o755, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.type, info.linkname = len(data), mode, kind, link
    info.mtime = int(time.time())
    tar.addfile(info, io.BytesIO(data) if data else None)


def _libraries(program):
    """The program and what the loader needs for it, as paths of this machine."""
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r"(/\S+)", text)))


def _layout(tar):
    for folder in ("bin", "etc", "tmp", "usr", "usr/bin", "home", "var", "proc", "sys", "dev", "run"):
        _add(tar, folder, mode=0o1777 if folder == "tmp" else 0o755, kind=tarfile.DIRTYPE)
    _add(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\napp:x:1234:1234::/home/app:/bin/sh\n",
         0o644)
    _add(tar, "etc/group", b"root:x:0:\napp:x:1234:\n", 0o644)


def _busybox(tar, applets):
    _add(tar, "bin/busybox", Path(os.path.realpath(BUSYBOX)).read_bytes())
    for applet in applets:
        _add(tar, f"bin/{applet}", kind=tarfile.SYMTYPE, link="busybox")


def image_tar(shell, root_mode=0o755):
    """A root file system: shell is "bash", "sh" or "none" (one static program and nothing else)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        _add(tar, ".", mode=root_mode, kind=tarfile.DIRTYPE)
        if shell == "none":
            _add(tar, "busybox", Path(os.path.realpath(BUSYBOX)).read_bytes())
            return out.getvalue()
        _layout(tar)
        _busybox(tar, APPLETS)
        if shell == "bash":
            _add(tar, "bin/bash", Path("/bin/bash").read_bytes())
            for library in _libraries("/bin/bash"):
                _add(tar, library.lstrip("/"), Path(library).read_bytes())
    return out.getvalue()


# What the suite of the API uses in a sandbox.
DEBIAN = ("base-files base-passwd bash coreutils dash debianutils diffutils findutils grep gzip hostname "
          "libc-bin login mawk perl-base procps python3 sed tar util-linux").split()
# The suites of the SDKs and of MCP use these besides: 300 MB, for the night.
DEBIAN_MORE = ["curl", "git", "libcurl3-gnutls", "nodejs", "python3-pip"]


def debian_tar(to, more=()):
    """Writes a root file system with a Debian, from the files of this machine's packages."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vm"))
    try:
        import image  # pylint: disable=import-outside-toplevel
    finally:
        sys.path.pop(0)
    with tempfile.TemporaryDirectory(prefix="paddock-image-") as stage:
        os.chmod(stage, 0o755)
        image.root_stage(stage, image.packages_resolve([*DEBIAN, *more], wanted=more))
        for names in (Path(stage, "etc/passwd"), Path(stage, "etc/group")):
            names.write_text(names.read_text().replace("tester", "user"))
        subprocess.run(["tar", "-C", stage, "--numeric-owner", "-cf", to, "."], check=True)


def make_debian(engine, more=(), name="test/debian:1"):
    """The image of `debian_tar`; its name."""
    with tempfile.NamedTemporaryFile(prefix="paddock-image-", suffix=".tar") as tar:
        debian_tar(tar.name, more)
        return engine.import_image(name, Path(tar.name).read_bytes(),
                                   ["ENV PATH=/usr/local/bin:/usr/bin:/bin"])


def make_images(engine):
    """The images that tests use; their names by what they have."""
    env = ["ENV FROM_IMAGE=yes", "ENV PATH=/bin:/usr/bin"]
    return {
        "bash": engine.import_image("test/bash:1", image_tar("bash"), env),
        "sh": engine.import_image("test/sh:1", image_tar("sh"), env),
        "none": engine.import_image("test/none:1", image_tar("none")),
        "user": engine.import_image("test/user:1", image_tar("sh"), [*env, "USER app"]),
    }
