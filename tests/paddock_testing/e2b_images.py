"""Stand-ins for the images that E2B's tests of templates begin with: a Debian tree under their names. Made of Debian's
packages by mmdebstrap, once, and brought into the store of a server."""

import shutil
import subprocess
import time
from pathlib import Path

from . import run as paddock
from .images import saved

NAMES = ("ubuntu:22.04", "e2bdev/base:latest")
PACKAGES = "ca-certificates,curl,git,procps"


def make(folder):
    """The archive, or None where it cannot be made."""
    archive = Path(folder) / "debian-image.tar"
    tree = Path(folder) / "debian-tree.tar"
    if archive.exists():
        return archive
    sources = [p for p in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("debian*"))
               if p.exists()]
    if not shutil.which("mmdebstrap") or not sources:
        return None
    with open(Path(folder) / "debian-image.log", "wb") as log:
        subprocess.run(["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(tree), str(sources[0])],
                       stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=paddock.seconds(600), check=True)
    new = archive.with_suffix(".new")
    saved(new, [tree.read_bytes()], name=NAMES[0], Env=["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])
    tree.unlink()
    new.rename(archive)
    return archive


def put(server, archive):
    """Into the server's store, under all the names; the layer is unpacked once."""
    for name in NAMES:
        subprocess.run([paddock.PADDOCK, "image", "import", "--name", name, str(archive)], env=server.env, check=True,
                       stdin=subprocess.DEVNULL, capture_output=True, timeout=paddock.seconds(300))


def forget(server):
    """What the tests have built, so that nothing is left of the server."""
    client = server.client()
    for one in client.get("/v1/templates").json()["templates"]:
        if one["kind"] == "built":
            client.delete(f"/v1/templates/{one['id']}")
    until = time.monotonic() + paddock.seconds(60)
    while [s for s in client.get("/v1/sandboxes").json()["sandboxes"] if s["template"].startswith("build/")]:
        assert time.monotonic() < until, "a build does not end"
        time.sleep(0.05)
    client.delete("/v1/build-cache")
