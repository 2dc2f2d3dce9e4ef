"""The files of the tiers can be read, and agree with each other. Nothing is built here: that needs an engine and the
network, and is done at night (tests/backends/test_tiers.py)."""

import re
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
WORDS = {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "CMD"}


def instructions(tier):
    text = (TOP / "templates" / tier / "Dockerfile").read_text()
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [line.split(None, 1) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("tier", ["basic", "full"])
def test_a_dockerfile_can_be_read(tier):
    found = instructions(tier)
    assert found[0][0] == "FROM" and {word for word, _ in found} == WORDS
    for word, rest in found:
        if word == "COPY":
            assert (TOP / "templates" / tier / rest.split()[0]).is_file(), rest
        if word == "RUN":
            assert subprocess.run(["bash", "-nc", rest]).returncode == 0, rest
    assert ["USER", "user"] in found and ["WORKDIR", "/workspace"] in found


def test_make_has_the_targets():
    listed = subprocess.run(["make", "help"], cwd=TOP, capture_output=True, text=True, check=True).stdout
    for target in ("sandbox-build-basic", "sandbox-build-full", "sandbox-test", "sandbox-clean", "test-local-mode",
                   "test-sandbox-mode", "dev-full"):
        assert re.search(rf"^  make {target} ", listed, re.M), target


def test_the_script_says_what_is_wrong(tmp_path):
    script = TOP / "scripts" / "sandbox-image"
    assert subprocess.run([script, "build", "huge"], env={"PATH": "/bin:/usr/bin", "ENGINE": "true"},
                          capture_output=True).returncode == 2
    engine = tmp_path / "engine"
    engine.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/asked\ncat \"$4/requirements.txt\" >> {tmp_path}/asked\n")
    engine.chmod(0o755)
    mine = tmp_path / "mine.txt"
    mine.write_text("one-of-mine\n")
    subprocess.run([script, "build", "basic"], check=True, env={
        "PATH": "/bin:/usr/bin", "ENGINE": str(engine), "TAG": "t", "REQUIREMENTS": str(mine)})
    asked = (tmp_path / "asked").read_text()
    assert "build --tag paddock-basic:t" in asked and "one-of-mine" in asked
