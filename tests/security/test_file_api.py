"""Wall: the file routes. What is in a sandbox may be hostile (links, names, devices, archives,
programs that change everything while it is looked at); no byte of the host comes out, none goes in,
and the server goes on. Every attack has its control: the same call on a thing that is allowed."""

import http.client
import io
import os
import secrets
import tarfile
import threading
import time

import pytest

from paddock_testing import run as paddock
from paddock_testing.files import Files, bytes_of, error, make_tar, tar_member
from paddock_testing.server import Server

MIB = 1 << 20


@pytest.fixture(scope="module")
def server():
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as s:
        yield s
        assert not [c for c in s.log() if ord(c) < 32 and c != "\n"], "a raw control byte in the log"


@pytest.fixture
def files(server):
    api = server.client()
    made = api.post("/v1/sandboxes", json={})
    assert made.status == 201, made
    sandbox = made.json()["id"]
    yield Files(api, sandbox)
    api.delete(f"/v1/sandboxes/{sandbox}")
    api.close()


@pytest.fixture
def host_secret(tmp_path):
    """A file of the host that everybody on the host may read and write."""
    os.chmod(tmp_path, 0o777)
    path = tmp_path / "secret"
    path.write_text(secrets.token_hex(16))
    path.chmod(0o666)
    content = path.read_text()
    yield path
    assert path.read_text() == content, "a file of the host was changed"
    assert sorted(os.listdir(tmp_path)) == ["secret"], "a file of the host was made"


def refused(response, *statuses):
    assert response.status in (statuses or (400, 403, 404)), (response.status, response.body[:300])
    assert response.json()["error"]["message"]


# ---- E109: links ----


def test_links_lead_to_the_sandboxs_own_files(files, host_secret):
    files.run(f"ln -s {host_secret} l; ln -s {host_secret.parent} d; ln -s /etc/passwd p; ln -s / r")
    refused(files.get("l"), 404)
    refused(files.list("d"), 404)
    refused(files.tar("d"), 404)
    refused(files.get(f"r{host_secret}"), 404)
    error(files.put("l", b"attack"), 404, "not_found")
    error(files.put("d/new", b"attack"), 404, "not_found")
    assert files.stat("l").json()["type"] == "symlink"
    # The control: a link to a file that is there.
    assert files.get("p").body == files.run("cat /etc/passwd").encode()
    files.put("real", b"1")
    files.run("ln -s real to-real")
    assert files.put("to-real", b"2").status == 200
    assert files.text("real") == "2"


def test_the_shadow_file_is_the_sandboxs(files):
    files.run("ln -s /etc/shadow s")
    for path in ("s", "/etc/shadow"):
        for user in ("user", "root"):
            got = files.get(path, user=user)
            assert got.status in (200, 403, 404)
            with open("/etc/shadow", "rb") as own:
                host = [l for l in own if b"$" in l] if os.geteuid() == 0 else []
            assert not any(line in got.body for line in host)


# ---- E110: races ----


SWAP = r"""
import ctypes, os
libc = ctypes.CDLL(None)
os.makedirs("/workspace/race/a", exist_ok=True)
open("/workspace/race/a/f", "w").write("inside")
os.path.islink("/workspace/race/b") or os.symlink(%r, "/workspace/race/b")
while True:
    libc.renameat2(-100, b"/workspace/race/a", -100, b"/workspace/race/b", 2)
"""


def test_swapping_a_directory_for_a_link_leaks_nothing(files, host_secret):
    (host_secret.parent / "f").write_text("OUTSIDE")
    try:
        files.put("swap.py", (SWAP % str(host_secret.parent)).encode())
        started = files.api.post(f"/v1/sandboxes/{files.sandbox}/processes",
                                 json={"command": "exec python3 swap.py"})
        assert started.status == 201, started.body
        paddock.wait_for(lambda: files.get("race/a/f").status == 200, 20, "it swaps")
        start, inside, outside, written = time.monotonic(), 0, 0, 0
        while (took := time.monotonic() - start) < 5 or (
                took < paddock.seconds(10) and not (inside and outside and written)):
            got = files.get("race/a/f")
            assert b"OUTSIDE" not in got.body
            inside += got.status == 200
            outside += got.status != 200
            written += files.put("race/a/w", b"x").status in (200, 201)
        assert inside and outside, f"no race: {inside} inside, {outside} outside"
        assert written
    finally:
        (host_secret.parent / "f").unlink()


# ---- E111: paths ----


@pytest.mark.parametrize("path", ["../../../../../../etc/passwd", "/../etc/passwd",
                                  "a/../../etc/passwd", "/workspace/../etc/passwd",
                                  "//etc//passwd", "/./etc/./passwd"])
def test_dots_stay_inside(files, path):
    files.run("mkdir -p a")
    got = files.get(path)
    assert got.status == 200 and got.body == files.run("cat /etc/passwd").encode()


@pytest.mark.parametrize("path", ["", "a" * 5000, "a/" * 2047, "\0", "a\0b", "a" * 9000],
                         ids=["empty", "long", "many", "nul", "nul-inside", "longer"])
def test_paths_that_are_refused(files, path):
    refused(files.get(path), 400, 404, 414)
    refused(files.put(path, b"x"), 400, 404, 414)


@pytest.mark.parametrize("path", [".", "..", "/", "a/..", "a/.", "x/"])
def test_a_write_needs_a_name(files, path):
    files.run("mkdir -p a")
    refused(files.put(path, b"x"), 400)
    refused(files.get(path), 400, 404)


# ---- E112: magic links ----


@pytest.mark.parametrize("path", [
    "/proc/self/root/etc/passwd", "/proc/1/root/etc/passwd", "/proc/self/cwd/x", "/proc/self/exe",
    "/proc/1/exe", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2", "/proc/self/fd/3",
    "/dev/fd/0", "/dev/stdin", "/dev/stdout", "r/etc/passwd", "fd0", "/proc/thread-self/root/etc"])
def test_magic_links_are_no_way(files, path):
    files.run("ln -s /proc/self/root r; ln -s /proc/self/fd/0 fd0")
    refused(files.get(path), 400, 403, 404)
    refused(files.put(path, b"x"), 400, 403, 404)
    refused(files.list(path), 400, 403, 404)
    refused(files.post("chmod", path=path, mode="0777"), 400, 403, 404)


def test_the_control_of_magic_links(files):
    files.run("mkdir -p e; echo hi > e/f; ln -s /workspace/e r")
    assert files.text("r/f") == "hi\n"


# ---- E113, E114: things that are no files ----


def test_what_is_no_file_is_refused_at_once(files):
    files.run("mkfifo p; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'")
    for path in ("p", "s", "/dev/zero", "/dev/null", "/dev/tty", "/proc", "/dev/urandom"):
        for call in (files.get, lambda x: files.put(x, b"data")):
            began = time.monotonic()
            refused(call(path), 400, 403, 404)
            assert time.monotonic() - began < paddock.seconds(2), path
    began = time.monotonic()
    tar = files.tar(".")
    assert tar.status == 200 and time.monotonic() - began < paddock.seconds(5)
    files.put("f", b"control")
    assert files.text("f") == "control"


def test_endless_and_dangerous_files_of_proc(files):
    for path in ("/proc/self/mem", "/proc/kmsg", "/proc/kcore", "/proc/self/pagemap",
                 "/proc/sysrq-trigger", "/proc/1/environ", "/proc/1/mem"):
        got = files.get(path)
        assert got.status != 200 or len(got.body) <= MIB, path
    assert files.get("/proc/self/status").status == 200


def test_a_file_that_grows_is_read_up_to_its_size(files):
    files.api.post(f"/v1/sandboxes/{files.sandbox}/processes",
                   json={"command": "timeout 600 sh -c 'while :; do head -c 100000 /dev/zero;"
                                    " sleep 0.05; done' > grows"})
    last = 0
    for _ in range(5):
        paddock.wait_for(lambda: files.stat("grows").json().get("size", 0) > last, 10, "it grows")
        with files.raw() as raw:
            raw.head("GET", files.url(path="grows"))
            answer = raw.answer()
            assert answer.status == 200
            size = int(answer.getheader("Content-Length"))
            assert len(answer.read()) == size > last
            last = size


# ---- E115: loops and masses ----


def test_loops_and_chains_of_links(files):
    files.run("ln -s b a; ln -s a b; echo end > l0; for i in $(seq 60); do ln -s l$((i-1)) l$i; done")
    for path in ("a", "b", "l60"):
        error(files.get(path), 400, "invalid", "links")
        error(files.put(path, b"x"), 400, "invalid", "links")
    assert files.text("l30") == "end\n"


def test_a_directory_with_very_many_entries_comes_in_pages(files):
    count = 30000
    files.run(f"mkdir m; cd m; seq -f f%06.0f {count} | xargs touch", timeout_s=120)
    seen, cursor = [], None
    began = time.monotonic()
    for _ in range(count):
        page = files.list("m", limit=10000, **({"cursor": cursor} if cursor else {})).json()
        seen += [e["name"] for e in page["entries"]]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert seen == [f"f{i:06}" for i in range(1, count + 1)]
    assert time.monotonic() - began < paddock.seconds(60)


def test_a_very_deep_tree(files):
    files.run("python3 -c \"import os\nos.mkdir('deep'); os.chdir('deep')\nfor i in range(2000):\n"
              "    os.mkdir('d' * 200); os.chdir('d' * 200)\"", timeout_s=60)
    page = files.list("deep", depth=64, limit=10)
    assert page.status == 200 and len(page.json()["entries"]) == 10
    assert files.search(path="deep", pattern="x").status == 200
    assert files.delete("deep", recursive=True).status == 204
    error(files.stat("deep"), 404, "not_found")


# ---- E116: names ----

NAMES = [b"\xff\xfe\n\x1b[2J", b"a\rb", b"\xed\xa0\x80", b"$(reboot)", b"-rf", b"' OR 1", b"\xe2\x80\xae"]


def test_any_name_is_told_exactly_and_harmlessly(files):
    script = "import os\nos.makedirs('n')\nfor n in %r: open(b'n/' + n, 'w').close()" % NAMES
    files.put("names.py", script.encode())
    with files.watch(".", recursive=True) as watch:
        watch.wait("ready")
        files.run("python3 names.py")
        deadline = time.monotonic() + paddock.seconds(10)
        wanted = {b"/workspace/n/" + n for n in NAMES}
        while time.monotonic() < deadline:
            told = {bytes_of(d) for e, d in watch.events if e == "created"}
            if wanted <= told:
                break
            time.sleep(0.05)
        assert wanted <= told
        assert all(line.isprintable() or "\u202e" in line for line in watch.lines)
    listed = files.list("n")
    assert {bytes_of(e) for e in listed.json()["entries"]} == wanted
    assert not any(b < 32 for b in listed.body.rstrip(b"\n")), "a raw control byte"
    with tarfile.open(fileobj=io.BytesIO(files.tar("n").body)) as t:
        names = {os.fsencode(m.name).rsplit(b"/", 1)[-1] for m in t.getmembers()}
        # Names that are no UTF-8 cannot be said in a pax header; they are there all the same.
        assert {b"a\rb", b"$(reboot)", b"-rf"} <= names


# ---- E117: hard links and modes ----


def test_the_base_cannot_be_changed_through_links(files):
    before = files.run("sha256sum /usr/bin/env; stat -c %a%u /usr/bin/env /etc/passwd")
    files.run("ln /usr/bin/env h || true; ln -s /usr/bin/env s; ln -s /etc/passwd p")
    for path in ("s", "p", "/usr/bin/env"):
        for user in ("user", "root"):
            changed = files.post("chmod", user=user, path=path, mode="0777")
            written = files.put(path, b"attack", user=user)
            if user == "user":
                refused(changed, 403)
                refused(written, 403)
    after = files.run("sha256sum /usr/bin/env; stat -c %a%u /usr/bin/env /etc/passwd || true")
    assert before.splitlines()[0] == after.splitlines()[0]
    assert oct(os.stat("/usr/bin/env").st_mode & 0o777) == "0o755"
    # The control: one's own file.
    files.put("own", b"1")
    assert files.post("chmod", path="own", mode="0700").status == 200


def test_no_setuid_by_the_api(files):
    files.put("f", b"#!/bin/sh\n")
    for mode in ("4755", "2755", "6777"):
        refused(files.post("chmod", path="f", mode=mode), 400)
        refused(files.put("f", b"", mode=mode), 400)
        refused(files.post("mkdir", path="d", mode=mode), 400)


# ---- E118: archives ----

ESCAPES = {
    "dot-dot": [("../../escape", b"x")],
    "dot-dot-inside": [("a/../../../escape", b"x")],
    "link-then-file": [tar_member("d", tarfile.SYMTYPE, "/tmp"), ("d/escape", b"x")],
    "link-up-then-file": [tar_member("d", tarfile.SYMTYPE, "../.."), ("d/escape", b"x")],
    "hard-link-out": [tar_member("h", tarfile.LNKTYPE, "/etc/passwd"), ("h", b"x")],
    "hard-link-up": [tar_member("h", tarfile.LNKTYPE, "../../etc/passwd")],
    "link-to-link": [tar_member("a", tarfile.SYMTYPE, ".."), tar_member("b", tarfile.SYMTYPE, "a/.."),
                     ("b/escape", b"x")],
    "device": [tar_member("dev", tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "block-device": [tar_member("dev", tarfile.BLKTYPE, devmajor=8, devminor=0)],
}


@pytest.mark.parametrize("name", ESCAPES)
def test_an_archive_stays_below_its_directory(files, name):
    outside = ("find / -xdev -path /workspace -prune -o -print | sort | md5sum;"
               " md5sum /etc/passwd; ls -A /tmp /workspace")
    files.run("mkdir in")
    before = files.run(outside)
    answer = files.untar(make_tar(("before", b"1"), *ESCAPES[name]), "in/to")
    assert answer.status in (200, 400, 403, 404), answer.body
    assert files.run(outside) == before
    assert files.run("find in -name escape -not -path 'in/to/*'") == ""
    assert files.run("find in -type c -o -type b") == ""
    assert files.text("in/to/before") == "1", "the control: what was good is there"


def test_absolute_names_are_below_too(files):
    answer = files.untar(make_tar(("/tmp/absolute", b"x")), "in")
    assert answer.status in (200, 400)
    error(files.get("/tmp/absolute"), 404, "not_found")
    if answer.status == 200:
        assert files.text("in/tmp/absolute") == "x"


def test_set_user_id_does_not_come_in(files):
    answer = files.untar(make_tar(tar_member("s", mode=0o6755, uid=0, gid=0)), "in")
    assert answer.status in (200, 400)
    assert files.run("find in -perm /6000") == ""
    assert files.run("find in -uid 0") == ""


def test_a_pax_path_does_not_lead_out(files):
    info = tar_member("harmless", pax_headers={"path": "../../../tmp/pax-escape"})
    files.untar(make_tar(info), "in")
    error(files.stat("/tmp/pax-escape"), 404, "not_found")


@pytest.mark.parametrize("size", ["77777777777", "99999999999", "-0000000001", "zzzzzzzzzzz"])
def test_a_size_that_cannot_be(files, size):
    header = bytearray(make_tar(("big", b"x"))[:512])
    header[124:136] = size.encode().ljust(12, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    refused(files.untar(bytes(header) + b"x" * 512, "in"), 400, 507, 413)
    huge = bytearray(header)
    huge[124:136] = b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7
    huge[148:156] = b" " * 8
    huge[148:156] = b"%06o\0 " % sum(huge)
    refused(files.untar(bytes(huge) + b"x" * 512, "in"), 400, 507, 413)


def test_very_many_entries(files):
    one = make_tar(tar_member("d", tarfile.DIRTYPE, mode=0o755))[:512]
    answer = files.untar(one * 20000 + b"\0" * 1024, "in")
    assert answer.status == 200 and answer.json()["entries"] == 20000


def test_a_gnu_sparse_member_is_refused_or_right(files):
    header = bytearray(make_tar(("s", b""), format=tarfile.GNU_FORMAT)[:512])
    header[156:157] = b"S"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    assert files.untar(bytes(header) + b"\0" * 1024, "in").status in (200, 400, 501)


# ---- E120: programs of the sandbox ----


def test_no_program_of_the_sandbox_is_run_for_it(files):
    files.run("mkdir bin; for p in tar gzip cat ls sh cp mv find grep; do printf '#!/bin/bash\\ntouch"
              " /workspace/RAN\\n' > bin/$p; done; chmod +x bin/*")
    files.api.put(f"/v1/sandboxes/{files.sandbox}/env",
                  json={"env": {"PATH": "/workspace/bin:/usr/bin:/bin"}})
    assert files.tar(".").status == 200
    assert files.untar(make_tar(("x", b"1")), "u").status == 200
    assert files.search(path=".", pattern="bash").json()["matches"]
    assert files.post("copy", **{"from": "bin", "to": "bin2", "recursive": True}).status == 200
    assert files.list(".").status == 200
    error(files.stat("RAN"), 404, "not_found")


# ---- E121: storms ----


def test_a_storm_of_renames_under_a_watch(files):
    files.run("mkdir w; touch w/a")
    with files.watch("w") as watch:
        watch.wait("ready")
        # The reader sleeps: what is told piles up in the pipe, then in the kernel.
        files.run("python3 -c \"import os\nfor i in range(60000): os.rename('w/a', 'w/b');"
                  " os.rename('w/b', 'w/a')\"", timeout_s=100)
        files.put("w/after", b"")
        deadline = time.monotonic() + paddock.seconds(30)
        while time.monotonic() < deadline:
            names = {e for e, _ in list(watch.events)[-2000:]}
            if "overflow" in {e for e, _ in list(watch.events)} or any(
                    d.get("path", "").endswith("after") for _, d in list(watch.events)[-2000:]):
                break
            time.sleep(0.2)
        else:
            raise AssertionError(f"neither the end nor an overflow was told: {names}")
    assert files.stat("w/after").status == 200


def test_a_watch_that_nobody_reads_costs_nothing(files):
    files.run("mkdir w; touch w/a")
    with files.raw() as raw:
        raw.head("GET", files.url("/watch", path="w"))
        raw.answer()
        files.run("python3 -c \"import os\nfor i in range(30000): os.rename('w/a', 'w/b');"
                  " os.rename('w/b', 'w/a')\"", timeout_s=100)
        assert files.put("x", b"1").status == 201, "the server goes on"


# ---- hostile neighbours of the worker ----


def test_a_worker_that_is_killed_is_an_error_and_nothing_else(files):
    stop = threading.Event()

    def kill():
        while not stop.is_set():
            files.run("for i in $(seq 200); do pkill -9 paddock-worker; done; true")

    killer = threading.Thread(target=kill)
    killer.start()
    statuses, broken = set(), 0
    try:
        start = time.monotonic()
        while (took := time.monotonic() - start) < 4 or (
                took < paddock.seconds(10) and not broken and 502 not in statuses):
            statuses.add(files.put("victim", b"x" * 100000).status)
            try:
                got = files.get("victim")
                assert got.status != 200 or got.body == b"x" * 100000
                statuses.add(got.status)
            except (OSError, http.client.HTTPException):
                broken += 1  # in the middle: the client knows
    finally:
        stop.set()
        killer.join()
    assert statuses <= {200, 201, 404, 502, 503}, statuses
    assert broken or 502 in statuses, "no worker was ever killed"
    assert files.put("victim", b"alive").status in (200, 201)


def test_a_worker_cannot_be_traced_or_written_to(files):
    files.run("mkdir w")
    with files.watch("w") as watch:
        watch.wait("ready")
        said = files.run(
            "p=$(pgrep paddock-worker | head -1); test -n \"$p\" || exit 9;"
            " (echo x > /proc/$p/fd/1) 2>/dev/null && echo WROTE;"
            " (cat /proc/$p/mem >/dev/null) 2>/dev/null && echo READ;"
            " ls /proc/$p/fd 2>/dev/null | grep -q . && echo LISTED; true")
        assert said.strip() == ""
        # The control: one's own process can be looked at.
        assert files.run("ls /proc/self/fd | grep -c .").strip() != "0"


def test_a_stopped_worker_does_not_hold_the_server(files):
    """A worker that is stopped answers never: other requests go on, and the client may leave."""
    files.run("head -c 50000000 /dev/zero > big")
    with files.raw() as raw:
        raw.head("GET", files.url(path="big"))
        assert raw.answer().read(10)
        files.run("pkill -STOP paddock-worker; true")
        began = time.monotonic()
        assert files.put("other", b"1").status == 201
        assert files.text("other") == "1"
        assert time.monotonic() - began < paddock.seconds(5)
    assert files.put("other", b"2").status == 200


# ---- E107: where commands start ----


def start_in(files, cwd):
    return files.api.post(f"/v1/sandboxes/{files.sandbox}/exec",
                          json={"command": "pwd -P; ls -id . /", "cwd": cwd})


@pytest.mark.parametrize("cwd", [f"/proc/self/fd/{n}" for n in range(3, 12)]
                         + ["/proc/1/root", "/workspace/link", "/workspace/link2"])
def test_a_command_cannot_start_outside(files, cwd):
    files.run("ln -sf /proc/self/fd/5 link; ln -sf /proc/1/root link2")
    error(start_in(files, cwd), 400, "invalid", "working directory")


def test_a_command_starts_behind_a_magic_link_of_the_sandbox(files):
    """The control of the test above: such links are followed where they stay inside."""
    files.run("ln -sf /proc/self/root link3")
    for cwd in ("/proc/self/root", "/workspace/link3"):
        done = start_in(files, cwd)
        assert done.status == 200 and done.json()["exit_code"] == 0, done
        here, root = [line.split()[0] for line in done.json()["stdout"].splitlines()[1:3]]
        assert here == root
