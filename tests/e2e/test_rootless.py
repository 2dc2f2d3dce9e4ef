"""The same command line for an ordinary user. What the walls hold then is tests/security's."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from paddock_testing import host
from paddock_testing import run as paddock

from .helpers import check_gone, check_one_line, new_word, pause

UID = 1000


class Person:
    """An ordinary user with a home, a copy of the program, and a directory to work in."""

    def __init__(self, top, uid):
        self.top, self.uid = top, uid
        self.home = top / "home"
        self.binary = str(top / "paddock")
        self.env = {"HOME": str(self.home), "XDG_RUNTIME_DIR": str(top / "run")}

    def options(self):
        return {"uid": self.uid, "binary": self.binary, "env": self.env, "cwd": str(self.top)}

    def run(self, line, **options):
        return paddock.run(["/bin/sh", "-c", line], **self.options(), **options)

    def ok(self, line, **options):
        result = self.run(line, **options)
        assert result.status == 0, result.explain()
        return result.out

    def call(self, *arguments):
        done = subprocess.run([self.binary, *arguments], user=self.uid, group=self.uid,
                              extra_groups=None if self.uid is None else [], capture_output=True,
                              text=True, check=False, timeout=paddock.seconds(10),
                              stdin=subprocess.DEVNULL, env=paddock.clean_environment(self.env))
        return done


@pytest.fixture(scope="module")
def person(tmp_path_factory):
    uid = UID if os.geteuid() == 0 else None
    if uid is None:
        top = tmp_path_factory.mktemp("rootless")
    else:
        top = Path("/tmp") / f"paddock-e2e-rootless-{os.getpid()}"
        top.mkdir(mode=0o755)
    for name in (top / "home", top / "run", top / "data"):
        name.mkdir(mode=0o700 if name.name == "run" else 0o755)
    shutil.copy(paddock.PADDOCK, top / "paddock")
    (top / "paddock").chmod(0o755)
    if uid is not None:
        for path in (top, *top.iterdir()):
            os.chown(path, uid, uid)
    allowed = subprocess.run(["unshare", "-Ur", "true"], user=uid, check=False,
                             stderr=subprocess.PIPE, timeout=paddock.seconds(10))
    if allowed.returncode:
        shutil.rmtree(top)
        pytest.skip(f"no user namespaces for ordinary users: {allowed.stderr.decode().strip()}")
    yield Person(top, uid)
    shutil.rmtree(top)


def test_streams_and_status(person):
    result = person.run("echo out; echo err >&2; exit 7")
    assert (result.status, result.out, result.err) == (7, "out\n", "err\n")
    assert person.run("kill -9 $$").status == 137
    assert person.run("exec no-such-command").status == 127


def test_identity_inside(person):
    assert person.ok("id -u; id -un; pwd; echo $HOME; uname -n") == (
        "1000\nuser\n/workspace\n/home/user\nsandbox\n")


def test_own_processes_and_network(person):
    assert person.ok("ls -d /proc/[0-9]* | wc -l") in ("3\n", "4\n")
    assert person.ok("tail -n +3 /proc/net/dev | cut -d: -f1").split() == ["lo"]


def test_rung_and_reason_are_in_the_record(person):
    record = paddock.run_record(["/bin/true"], **person.options()).record
    assert record["isolation"] == "basic" and "root" in record["reason"]


def test_full_isolation_is_refused_with_the_reason(person):
    check_one_line(person.run("echo ran", min_isolation="full"), 125, "full", "basic", "root")
    assert person.ok("echo ran", min_isolation="basic") == "ran\n"


@pytest.mark.parametrize("user", ["root", "1234", "0:0"])
def test_other_users_are_refused(person, user):
    check_one_line(person.run("echo ran", user=user), 125, "--user", "root")


def test_the_user_itself_may_be_named(person):
    assert person.ok("id -u", user="user") == "1000\n"


def test_timeout_ends_everything(person):
    word = new_word()
    result = person.run(f"trap '' TERM; setsid sleep {word} & sleep {word}",
                        timeout=f"{pause(0.5)}s")
    assert result.status == 124
    assert not host.with_word(word)


def test_signals_and_kill(person):
    for sig, status in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        word = new_word()
        options = {k: v for k, v in person.options().items() if k != "cwd"}
        with paddock.background(["sleep", word], **options) as process:
            paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
            process.send_signal(sig)
            assert process.wait(timeout=paddock.seconds(5)) == status
        check_gone(word)


def test_space_is_limited(person):
    result = paddock.run_record(["/bin/sh", "-c", "head -c 20M /dev/zero >f"], disk="4M",
                                **person.options())
    assert result.record["stopped_by"] == "disk", result.explain()


def test_memory_of_a_process_is_limited(person):
    code = "a = bytearray(400 << 20)"
    for memory, status in (("64M", 1), ("2G", 0)):
        result = paddock.run(["/usr/bin/python3", "-c", code], memory=memory, **person.options())
        assert result.status == status, result.explain()


def test_binds(person):
    data = person.top / "data"
    (data / "file").write_text("mine")
    bind = f"{data}:/data"
    assert person.ok("cat /data/file", binds=[bind]) == "mine"
    assert "Read-only" in person.run("touch /data/x", binds=[bind]).err
    assert person.ok("touch /data/new; stat -c %u /data/new", binds=[bind + ":rw"]) == "1000\n"
    assert (data / "new").stat().st_uid == (os.getuid() if person.uid is None else person.uid)


def test_bind_gives_no_more_than_the_caller_has(person):
    secret = person.top / "data/secret"
    secret.write_text("root's")
    if os.geteuid() != 0:
        pytest.skip("needs root to make a file of root")
    secret.chmod(0o600)
    result = person.run("cat /data/secret", binds=[f"{person.top}/data:/data:rw"])
    assert result.status == 1 and result.out == "", result.explain()
    assert person.run("true", binds=["/root:/x"]).status in (0, 2, 125)
    assert person.run("ls /x", binds=["/root:/x"]).out == ""
    secret.unlink()


def test_directory_as_root(person):
    image = person.top / "image"
    (image / "bin").mkdir(parents=True)
    shutil.copy(paddock.PADDOCK, image / "bin/program")
    (image / "bin/program").chmod(0o755)
    if person.uid is not None:
        for path in (image, image / "bin", image / "bin/program"):
            os.chown(path, person.uid, person.uid)
    result = paddock.run(["/bin/program", "--version"], root=image, **person.options())
    assert result.status == 0 and result.out.startswith("paddock "), result.explain()
    assert sorted(os.listdir(image)) == ["bin"]


def test_named_root(person):
    person.ok("echo kept >/workspace/f; mkdir -p /tmp/d", name="box")
    assert person.ok("cat /workspace/f", name="box") == "kept\n"
    listing = person.call("root", "ls")
    assert listing.stdout.split()[0] == "box", listing.stderr
    store = person.home / ".local/share/paddock"
    assert stat.S_IMODE((store / "roots").stat().st_mode) == 0o700
    removed = person.call("root", "rm", "box")
    assert (removed.returncode, removed.stderr) == (0, "")
    assert person.call("root", "ls").stdout == ""


@pytest.mark.parametrize("spoil", ["rmdir /run/shm", "rmdir /run/shm; ln -s /proc /run/shm",
                                   "mv /run /gone; ln -s / /run", "mv /etc /gone; ln -s /proc /etc"])
def test_mount_points_of_a_spoiled_root_show_nothing_of_the_host(person, spoil):
    person.ok(spoil, name="spoiled")
    try:
        assert person.ok("ls -A /dev/shm; echo x > /dev/shm/f; cat /dev/shm/f; test -d /etc/alternatives",
                         name="spoiled") == "x\n"
    finally:
        person.call("root", "rm", "spoiled")


def test_named_root_in_use(person):
    word = new_word()
    options = {k: v for k, v in person.options().items() if k != "cwd"}
    with paddock.background(["sleep", word], name="busy", **options):
        paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
        check_one_line(person.run("echo ran", name="busy"), 125, "'busy'", "in use")
        removed = person.call("root", "rm", "busy")
        assert removed.returncode == 125 and "in use" in removed.stderr
    check_gone(word)
    paddock.wait_for(lambda: person.call("root", "rm", "busy").returncode == 0, 5, "it is let go and removed")


def test_dev_profile_says_what_it_cannot(person):
    """There is one uid: a sudo that fails must not look like one that works."""
    result = person.run("id -u; sudo id -u", profile="dev")
    assert result.status != 0, result.explain()
    assert "\n0\n" not in result.out


def test_keeper(person):
    with paddock.Keeper(binary=person.binary, uid=person.uid, env=person.env) as keeper:
        options = {**person.options(), "env": keeper.env}
        for n in range(3):
            assert paddock.run(["/bin/sh", "-c", f"exit {n}"], **options).status == n
        assert stat.S_IMODE(os.stat(keeper.socket).st_mode) == 0o600
        if person.uid is not None:
            stranger = paddock.run(["/bin/true"], **{**options, "uid": person.uid + 1})
            assert stranger.status == 125, stranger.explain()


def test_nothing_is_left_in_the_run_directory(person):
    person.ok("true")
    word = new_word()
    options = {k: v for k, v in person.options().items() if k != "cwd"}
    with paddock.background(["sleep", word], **options) as process:
        paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
        process.kill()
        process.wait()
    check_gone(word)
    paddock.wait_for(lambda: not [p for p in host.files_below(person.top / "run") if Path(p).is_socket()], 3,
                     "no socket is left")


def test_without_a_home(person):
    """cron has none: the jail needs no store."""
    options = person.options()
    options["env"] = {"HOME": "", "XDG_RUNTIME_DIR": ""}
    result = paddock.run(["/bin/echo", "ran"], **options)
    assert result.out == "ran\n", result.explain()


def test_a_way_out_by_rules(person):
    """The name leads to a server on the machine's loopback, because the caller says so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve():
            with server.accept()[0] as c:
                c.recv(4096)
                c.sendall(b"HTTP/1.0 200 OK\r\n\r\nreached")

        threading.Thread(target=serve, daemon=True).start()
        to = f"web.example=127.0.0.1:{server.getsockname()[1]}"
        r = person.run("for name in other web; do python3 -c 'import sys, urllib.request as r; "
                       "print(r.urlopen(sys.argv[1], timeout=20).read().decode())' http://$name.example; done",
                       allow="web.example", egress_host=to)
        assert r.out == "reached\n", r.explain()
        assert "Name or service not known" in r.err, r.explain()
        assert "network: refused other.example" in r.err, r.explain()
