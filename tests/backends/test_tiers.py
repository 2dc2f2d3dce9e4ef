"""The images of templates/, built with a real engine as a newcomer builds them: at night, because they come from
mirrors. The base image is made here with mmdebstrap, under the name that the Dockerfile has for it, and knows what
this machine tells apt and pip."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import Server
from kept_files import Box

TOP = Path(__file__).resolve().parents[2]
BASE, FULL_BASE = "debian:12-slim", "debian:12"
# What the real one of that name leaves out, too.
LEFT_OUT = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")]
OURS = ["/usr/local/share/ca-certificates", "/etc/pip.conf"]
SIZE_MAX = 300_000_000


def test_the_base_is_the_one_of_the_dockerfile():
    assert f"\nFROM {BASE}\n" in (TOP / "templates/basic/Dockerfile").read_text()
    assert f"\nFROM {FULL_BASE}\n" in (TOP / "templates/full/Dockerfile").read_text()


if os.environ.get("PADDOCK_NIGHTLY"):
    @pytest.fixture(scope="module")
    def base(dockerd, tmp_path_factory):
        """The base image, in the engine."""
        tar = tmp_path_factory.mktemp("base") / "base.tar"
        hooks = [f"--customize-hook=copy-in {path} {os.path.dirname(path)}" for path in OURS if os.path.exists(path)]
        clean = '--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/var/log/*'
        made = subprocess.run(["mmdebstrap", "--variant=apt", *LEFT_OUT, *hooks, clean, "bookworm", str(tar)],
                              capture_output=True, text=True, timeout=paddock.seconds(600))
        assert made.returncode == 0, made.stderr[-2000:]
        data = tar.read_bytes()
        dockerd.import_image(FULL_BASE, data)
        return dockerd.import_image(BASE, data)

    def make(dockerd, *words):
        """make TARGET, with this engine; its host has a network and no bridge."""
        assert shutil.which("docker"), "docker's command line is not installed"
        env = {**os.environ, "DOCKER_HOST": dockerd.host, "DOCKER_BUILDKIT": "0", "ENGINE": "docker"}
        done = subprocess.run(["make", *words, "BUILD_OPTIONS=--network=host"], cwd=TOP, env=env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=paddock.seconds(2400))
        assert done.returncode == 0, done.stdout[-3000:]
        return done.stdout

    def run_in(dockerd, image, line):
        """The output of a line in a sandbox of this image, through the server."""
        with Server({"providers": "jail,docker", "docker_host": dockerd.host, "image_pull": "never"}) as server:
            box = Box(server.client(), provider="docker", image=image)
            said = box.out(line)
            box.delete()
        return said

    @pytest.mark.timeout(paddock.seconds(1800))
    def test_basic(dockerd, base):
        """Built, tried, used, removed; with the packages of somebody else in place of its own."""
        make(dockerd, "sandbox-build-basic")
        said = make(dockerd, "sandbox-test")
        size = int(dockerd.good("GET", "/images/paddock-basic:local/json").split(b'"Size":')[1].split(b",")[0])
        assert f"paddock-basic:local: {size // 1000000} MB" in said and size <= SIZE_MAX, (size, said)
        print(f"basic: {size} bytes")
        line = "id -un; pwd; python3 -c 'import yaml, requests; print(1)'; git --version >/dev/null && jq -n 2"
        assert run_in(dockerd, "paddock-basic:local", line) == "user\n/workspace\n1\n2\n"

        mine = TOP / "templates/basic/requirements.txt"
        other = Path(dockerd.dir) / "requirements.txt"
        other.write_text(mine.read_text() + "tabulate\n")
        make(dockerd, "sandbox-build-basic", f"REQUIREMENTS={other}", "TAG=mine")
        line = "python3 -c 'import tabulate, yaml; print(tabulate.tabulate([[7]], tablefmt=\"plain\"))'"
        assert run_in(dockerd, "paddock-basic:mine", line) == "7\n"

        for tag in ("local", "mine"):
            make(dockerd, "sandbox-clean", f"TAG={tag}")
            assert dockerd.call("GET", f"/images/paddock-basic:{tag}/json")[0] == 404

    @pytest.mark.timeout(paddock.seconds(3600))
    def test_full(dockerd, base):
        """Compilers, Node.js, Java, Go, and Python with what data takes; built, tried, used, removed."""
        make(dockerd, "sandbox-build-full")
        said = make(dockerd, "sandbox-test")
        assert "paddock-full:local: " in said, said
        print(said.splitlines()[-1])
        line = ("printf 'int main(void) { return 7; }' > a.c && gcc -o a a.c; ./a; echo $?; node -p 6*7; "
                "python3 -c 'import numpy, pandas, matplotlib; print(numpy.arange(3).sum())'; "
                "for p in go javac cmake rg sqlite3 git jq; do command -v $p >/dev/null || echo no $p; done")
        assert run_in(dockerd, "paddock-full:local", line) == "7\n42\n3\n"
        make(dockerd, "sandbox-clean")
        assert dockerd.call("GET", "/images/paddock-full:local/json")[0] == 404
