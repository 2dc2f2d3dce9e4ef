"""images.py [--quick]: sandboxes from an image beside those of the host's template, and what a pull takes.

Run by tests/bench/run --only images, as root. Starts by turns with one keeper: `paddock run -- true` from the host's /usr,
from an image of five layers and from one of twenty, whose programs are the host's own; at most 1.5 times. Then a thousand
sandboxes of one image by a server, each with a process in it: by how much the page cache grows; at most 10 MB. Last, the
image is pulled from a docker-registry on loopback, each time into nothing: by `paddock image pull`, by skopeo, which keeps
the packed layers as they are, and by docker. Numbers go to build/bench-images.json."""

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from paddock_testing import engine, images  # noqa: E402  pylint: disable=wrong-import-position
from paddock_testing import run as paddock  # noqa: E402  pylint: disable=wrong-import-position
from paddock_testing.server import Server  # noqa: E402  pylint: disable=wrong-import-position

QUICK = "--quick" in sys.argv
STARTS = 40 if QUICK else 300
CROWD = 100 if QUICK else 1000
PULLS = 2 if QUICK else 7
AT_ONCE = 8
PROGRAMS = ("/bin/bash", "/bin/true", "/bin/sleep")
TEXT = b"".join(b"line %d of a file such as programs have, which packs to a third or so\n" % i for i in range(20000))


def needed():
    """The programs and their libraries: the same files in the image as in the host's template."""
    found = {}
    for program in PROGRAMS:
        found[program] = Path(program)
        for word in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split():
            if word.startswith("/"):
                found[word] = Path(word)
    return found


def layers(count):
    members = [images.directory("bin"), images.directory("lib"), images.directory("lib64"), images.directory("etc"),
               images.link("bin/sh", "bash"), images.entry("etc/passwd", b"root:x:0:0::/:/bin/sh\n")]
    members += [images.entry(name.lstrip("/"), path.read_bytes(), mode=0o755) for name, path in needed().items()]
    more = [images.layer(images.directory(f"data{at}"),
                         *(images.entry(f"data{at}/{i}", os.urandom(60000) + TEXT[i * 1000:i * 1000 + 90000]) for i in range(100)))
            for at in range(count - 1)]
    return [images.layer(*members), *more]


class Place:
    """A state directory of its own, with images in it."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="paddock-bench-", dir="/var/tmp"))
        self.path.chmod(0o755)
        self.env = paddock.clean_environment({"PADDOCK_STATE_DIR": str(self.path / "state"), "PADDOCK_RUN_DIR": str(self.path / "run")})

    def call(self, *words, **more):
        return subprocess.run([paddock.PADDOCK, *map(str, words)], env=self.env, stdin=subprocess.DEVNULL, check=True,
                              capture_output=True, **more)

    def bring(self, name, some):
        images.saved(self.path / "image.tar", some, name=name)
        self.call("image", "import", self.path / "image.tar")

    def close(self):
        shutil.rmtree(self.path, ignore_errors=True)


def milliseconds(argv, env):
    begun = time.monotonic()
    pid = os.posix_spawn(argv[0], argv, env)
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f"images.py: {' '.join(argv)} ended with {status}")
    return (time.monotonic() - begun) * 1000


def starts(place):
    socket = place.path / "keeper"
    with subprocess.Popen([paddock.PADDOCK, "keeper", "--socket", str(socket)], env=place.env) as keeper:
        paddock.wait_for(socket.exists, 30, "the keeper listens")
        env = {**place.env, "PADDOCK_KEEPER": str(socket)}
        rows = {"host template": [], "five layers": ["--image", "five:1"], "twenty layers": ["--image", "twenty:1"]}
        took = {name: [] for name in rows}
        for at in range(STARTS + 5):
            for name, words in rows.items():
                one = milliseconds([paddock.PADDOCK, "run", *words, "--", "/bin/true"], env)
                if at >= 5:
                    took[name].append(one)
                time.sleep(0.01)  # the keeper makes kits when nobody asks
        keeper.send_signal(signal.SIGTERM)
    found = {name: statistics.median(some) for name, some in took.items()}
    print(f"{'paddock run -- true':24}{'p50 ms':>10}{'p95 ms':>10}{'times':>8}")
    for name, some in took.items():
        print(f"{name:24}{found[name]:10.2f}{sorted(some)[len(some) * 95 // 100]:10.2f}{found[name] / found['host template']:8.2f}")
    ratio = found["five layers"] / found["host template"]
    print(f"five layers to the host's template: {ratio:.2f} (at most 1.5)\n")
    return {"start_ms": found, "start_ratio": ratio}


def page_cache():
    """In MB: what the kernel keeps of files on disks, what is in memory file systems, and what it needs to know them."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    cached, own, slab = (int(lines[name].split()[0]) / 1024 for name in ("Cached", "Shmem", "Slab"))
    return cached - own, own, slab


def make_one(client, body):
    made = client.post("/v1/sandboxes", json=body)
    if made.status != 201:
        sys.exit(f"images.py: {made}")
    url = f"/v1/sandboxes/{made.json()['id']}"
    told = client.post(f"{url}/processes", json={"argv": ["/bin/sleep", "1000"]})
    if told.status != 201:
        sys.exit(f"images.py: {told}")
    return url


def many(server, count, body):
    left = list(range(count))

    def work():
        client = server.client()
        while left:
            with contextlib.suppress(IndexError):
                left.pop()
                make_one(client, body)

    threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def crowd():
    settings = {"requests_per_s": 0, "creates_per_s": 0, "providers": "jail", "pool_max": 0, "max_sandboxes": CROWD + 10,
                "max_sandboxes_per_tenant": CROWD + 10, "storage": "memory", "image_pull": "never"}
    found = {}
    for name, body in (("host template", {}), ("five layers", {"image": "five:1"})):
        with Server(settings) as server:
            path = images.saved(Path(server.directory) / "image.tar", layers(5), name="five:1")
            subprocess.run([paddock.PADDOCK, "image", "import", path], env=server.env, check=True, capture_output=True)
            path.unlink()
            make_one(server.client(), body)  # the files are in memory from here on
            before, own, slab = page_cache()
            begun = time.monotonic()
            many(server, CROWD, body)
            took = time.monotonic() - begun
            after, own_after, slab_after = page_cache()
            found[name] = {"seconds": took, "page_cache_mb": after - before, "own_files_mb": own_after - own,
                           "slab_kb_each": (slab_after - slab) * 1024 / CROWD}
            client = server.client()
            for one in client.get(f"/v1/sandboxes?limit=1000").json()["sandboxes"]:
                client.delete(f"/v1/sandboxes/{one['id']}")
    print(f"{CROWD} sandboxes, a process in each{'s':>11}{'page cache, MB':>18}{'own files, MB':>17}{'slab each, KB':>16}")
    for name, one in found.items():
        print(f"{name:32}{one['seconds']:10.1f}{one['page_cache_mb']:18.1f}{one['own_files_mb']:17.1f}{one['slab_kb_each']:16.0f}")
    print("(own files: what each has in memory file systems of its own, with storage in memory)")
    print(f"page cache by {CROWD} of one image: {found['five layers']['page_cache_mb']:.1f} MB (at most 10)\n")
    return {"crowd": found}


def pull_by_paddock(registry, name):
    place = Place()
    try:
        begun = time.monotonic()
        place.call("image", "pull", "-q", "--registry", f"http://{registry.address}", name)
        return time.monotonic() - begun
    finally:
        place.close()


def pull_by_skopeo(_, name):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        begun = time.monotonic()
        subprocess.run(["skopeo", "copy", "-q", "--insecure-policy", "--src-tls-verify=false", f"docker://{name}", f"oci:{place}/oci:1"],
                       check=True)
        return time.monotonic() - begun


def pulls():
    rows = {"paddock": pull_by_paddock}
    if shutil.which("skopeo"):
        rows["skopeo, packed"] = pull_by_skopeo
    else:
        print("skopeo is not installed: without it")
    docker = None
    if engine.why_not("docker"):
        print(f"without docker: {engine.why_not('docker')}")
    else:
        docker = engine.Dockerd()
        docker.start()

        def pull_by_docker(_, name):
            repository, _, tag = name.rpartition(":")
            begun = time.monotonic()
            docker.good("POST", f"/images/create?fromImage={repository}&tag={tag}")
            took = time.monotonic() - begun
            docker.good("DELETE", f"/images/{name}")
            return took

        rows["docker"] = pull_by_docker
    registry = engine.Registry().start()
    try:
        size = registry.upload("bench/five:1", layers(5))
        name = f"{registry.address}/bench/five:1"
        took = {row: [] for row in rows}
        for at in range(PULLS + 1):
            for row, pull in rows.items():
                one = pull(registry, name)
                if at:
                    took[row].append(one)
    finally:
        registry.close()
        if docker:
            docker.close()
    found = {row: statistics.median(some) for row, some in took.items()}
    print(f"pull of five layers, {size / 1e6:.0f} MB packed{'s':>8}{'to paddock':>14}")
    for row, one in found.items():
        print(f"{row:32}{one:8.2f}{one / found['paddock']:14.2f}")
    return {"pull_s": found, "pull_bytes": size}


def main():
    if os.geteuid():
        sys.exit("images.py: only root has idmapped layers and an engine")
    place = Place()
    try:
        place.bring("five:1", layers(5))
        place.bring("twenty:1", layers(20))
        found = starts(place)
    finally:
        place.close()
    found |= crowd()
    if shutil.which("docker-registry"):
        found |= pulls()
    else:
        print("docker-registry is not installed: without pulls")
    (ROOT / "build" / "bench-images.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
