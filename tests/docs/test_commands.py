"""The commands of the Makefile that a newcomer types: run, demo, install; and the units of
dist/systemd."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.server import free_port

TOP = Path(__file__).resolve().parents[2]


def make(*words, limit=300, **more):
    done = subprocess.run(["make", *words], cwd=TOP, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=paddock.seconds(limit), check=False,
                          env=paddock.clean_environment(more))
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


def test_run(tmp_path_factory):
    """What `make run` calls after the build: it prints three lines, which work, and ends by Ctrl-C."""
    place = tmp_path_factory.mktemp("run")
    for directory in (place, place.parent, place.parent.parent):
        directory.chmod(0o755)
    port = free_port()
    env = paddock.clean_environment({
        "PADDOCK_STATE_DIR": str(place / "state"), "PADDOCK_RUN_DIR": str(place / "run"),
        "PADDOCK_LISTEN": f"127.0.0.1:{port}", "PADDOCK_URL": f"http://127.0.0.1:{port}"})
    with open(place / "log", "w+b") as log:
        process = subprocess.Popen(["make", "run"], cwd=TOP, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log, env=env, start_new_session=True)
        try:
            text = lambda: (place / "log").read_text(errors="replace")
            told = lambda: re.findall(r"^    (\S.*)$", text(), re.M)
            paddock.wait_for(lambda: "Listening on" in text() and len(told()) >= 3, 120, "the server listens")
            lines = told()
            assert len(lines) == 3, text()
            done = subprocess.run(["bash", "-ec", "\n".join(lines)], cwd=TOP, env=env, text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True,
                                  timeout=paddock.seconds(60), check=False)
            assert (done.returncode, done.stdout) == (0, "42\n"), (done, text())
            link = rf"http://localhost:{port}/#code=[0-9a-f]{{64}}"
            paddock.wait_for(lambda: re.search(link, text()), 30, "the link to the console")
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=paddock.seconds(60))
    paddock.wait_for(lambda: not any(str(place) in word for p in host.pids() for word in host.command_line(p)), 30,
                     "nothing runs after Ctrl-C")


def test_demo():
    said = make("demo").stdout
    assert "All as it should be" in said and "WRONG" not in said, said


def test_install(tmp_path):
    # Another prefix would configure the build directory anew, which other tests use at this moment.
    make("install", f"DESTDIR={tmp_path}")
    top = tmp_path / "usr/local"
    for name in ("bin/paddock", "libexec/paddock/paddockd", "libexec/paddock/paddock-remote", "include/paddock.h",
                 "share/man/man1/paddock.1", "share/man/man1/paddock-serve.1",
                 "share/bash-completion/completions/paddock"):
        assert (top / name).exists() or list(top.glob(name + "*")), (name, sorted(
            str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()))
    assert list(tmp_path.rglob("libpaddock.so.1"))
    assert {p.name for p in tmp_path.rglob("*.service")} == {
        "paddock.service", "paddock-keeper.service"}
    said = subprocess.run([top / "bin/paddock", "run", "--", "echo", "installed"], text=True,
                          capture_output=True, timeout=paddock.seconds(30), check=True,
                          env=paddock.clean_environment())
    assert said.stdout == "installed\n"
    # paddock finds the server where it was put.
    help_text = subprocess.run([top / "bin/paddock", "config", "--json"], text=True,
                               capture_output=True, timeout=paddock.seconds(30), check=False,
                               env=paddock.clean_environment())
    assert help_text.returncode == 0 and json.loads(help_text.stdout), help_text


@pytest.mark.parametrize("unit", sorted(p.name for p in (TOP / "dist/systemd").glob("*.service")))
def test_systemd_unit(unit, tmp_path):
    """systemd-analyze knows every directive, and complains of one that does not exist."""
    text = (TOP / "dist/systemd" / unit).read_text(encoding="utf-8")
    text = re.sub(r"@\w+@", "/usr", text)
    # The program need not be installed for the unit to be well-formed.
    text = re.sub(r"^(Exec\w+=)\S+", r"\1/bin/true", text, flags=re.M)

    def verify(name, text):
        for other in (TOP / "dist/systemd").glob("*.service"):
            (tmp_path / other.name).write_text(re.sub(
                r"^(Exec\w+=)\S+", r"\1/bin/true", re.sub(r"@\w+@", "/usr", other.read_text()),
                flags=re.M))
        (tmp_path / name).write_text(text)
        return subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / name], text=True,
                              stderr=subprocess.STDOUT, stdout=subprocess.PIPE, check=False,
                              timeout=paddock.seconds(60),
                              env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"})

    done = verify(unit, text)
    assert done.returncode == 0 and unit not in done.stdout, done.stdout
    broken = verify(unit, text.replace("[Service]\n", "[Service]\nNoSuchThing=yes\n"))
    assert "NoSuchThing" in broken.stdout, "the control: a wrong directive is not noticed"
