"""filesystem.Filesystem at the E2B door, in the bytes that go over the wire."""

import contextlib
import threading
import time

import pytest

from e2b_rpc import Broken, Rpc, envelope
from helpers import together
from paddock_testing import contract, host
from paddock_testing import run as paddock
from paddock_testing.e2b_http import E2b
from paddock_testing.server import Server

SERVICE = "filesystem.Filesystem"
MAX_WATCHERS = 64


class Fs(Rpc):
    """The calls, and a shell of the server's own API beside them."""

    def __init__(self, client, e2b, made, user=None):
        super().__init__(client, made["sandboxID"], made["envdAccessToken"], user)
        self.e2b = e2b
        self.made = made
        # Answers have the real path, which is elsewhere where a sandbox has no root of its own.
        self.home = e2b.run(self.sandbox, "echo ~").strip() if contract.provider() == "local" else "/home/user"

    def as_user(self, user):
        return Fs(self.client, self.e2b, self.made, user)

    def sh(self, command, **more):
        return self.e2b.run(self.sandbox, f"cd ~; {command}", **more)

    def ok(self, method, **body):
        return self.call(method, body, service=SERVICE)

    def no(self, method, status, code, says="", **body):
        return self.fails(method, body, status, code, says, service=SERVICE)

    def stat(self, path):
        return self.ok("Stat", path=path)["entry"]

    def names(self, path, depth=None):
        body = {"path": path} if depth is None else {"path": path, "depth": depth}
        return [e["path"][len(self.home) + 1:] for e in self.ok("ListDir", **body)["entries"]]

    def watch(self, path, headers=None, **more):
        stream = self.stream("WatchDir", {"path": path, **more}, headers, service=SERVICE)
        return stream

    def watcher(self, path, **more):
        return self.ok("CreateWatcher", path=path, **more)["watcherId"]

    def events(self, watcher):
        return self.ok("GetWatcherEvents", watcherId=watcher)["events"]

    def short(self, watcher):
        return [(e["type"].removeprefix("EVENT_TYPE_"), e["name"]) for e in self.events(watcher)]


def next_events(stream, count):
    found = []
    while len(found) < count:
        message = stream.message()
        assert message is not None, (found, stream.last)
        if "filesystem" in message:
            event = message["filesystem"]
            found.append((event["type"].removeprefix("EVENT_TYPE_"), event["name"]))
    return found


@pytest.fixture(scope="module")
def e2b(server):
    return E2b(server)


@pytest.fixture
def make_fs(api, e2b):
    made = []

    def make():
        made.append(e2b.create(timeout=600))
        return Fs(api, e2b, made[-1])

    yield make
    for sandbox in made:
        e2b.delete(f"/sandboxes/{sandbox['sandboxID']}")


@pytest.fixture
def fs(make_fs):
    return make_fs()


# ---- entries ----


def test_stat_tells_everything(fs):
    fs.sh("umask 022; printf abc > f; chmod 640 f; mkdir -m 1777 d; touch -d @1700000000.5 f")
    entry = fs.stat("f")
    assert entry == {
        "name": "f", "type": "FILE_TYPE_FILE", "path": f"{fs.home}/f", "size": "3", "mode": 0o640,
        "permissions": "-rw-r-----", "owner": "user", "group": "user",
        "modifiedTime": "2023-11-14T22:13:20.500000000Z"}
    entry = fs.stat("~/d/")
    assert entry["type"] == "FILE_TYPE_DIRECTORY" and entry["path"] == f"{fs.home}/d"
    assert entry["mode"] == 0o777 and entry["permissions"] == "dtrwxrwxrwx"
    assert int(entry["size"]) > 0
    root = fs.stat("/etc/passwd")
    assert root["owner"] == root["group"] == "root" and root["path"] == "/etc/passwd"
    for home in ("", "~", ".", "/home/user/"):
        assert fs.stat(home)["type"] == "FILE_TYPE_DIRECTORY"
    assert fs.stat("")["path"] == fs.home
    assert fs.as_user("root").stat("~")["path"] == "/root"
    fs.no("Stat", 404, "not_found", f"'{fs.home}/no/such'", path="no/such")
    fs.no("Stat", 400, "invalid_argument", "4095", path="/" + "a" * 4095)
    fs.no("Stat", 400, "invalid_argument", "4095", path="a" * 4095)
    fs.no("Stat", 400, "invalid_argument", "", path="f/below")


def test_links_are_told_by_where_they_lead(fs):
    fs.sh("mkdir d; printf abc > d/f; chmod 600 d/f; ln -s d/f l; ln -s l l2; ln -s d ld; "
          "ln -s nowhere x; ln -s loop loop; ln -s /proc/1/root magic; mkfifo p")
    link = fs.stat("l2")
    assert link["type"] == "FILE_TYPE_FILE" and link["mode"] == 0o600
    assert link["symlinkTarget"] == f"{fs.home}/d/f"
    assert link["permissions"] == "Lrwxrwxrwx" and link["size"] == "1"
    assert fs.stat("ld")["type"] == "FILE_TYPE_DIRECTORY"
    assert fs.stat("ld")["symlinkTarget"] == f"{fs.home}/d"
    for name, target in (("x", "nowhere"), ("loop", "loop"), ("magic", "/proc/1/root")):
        link = fs.stat(name)
        assert "type" not in link and link["mode"] == 0, link
        assert link["symlinkTarget"] == target
    assert "type" not in fs.stat("p") and fs.stat("p")["permissions"].startswith("p")
    # A link that is a directory is listed, and not entered when it is found on the way.
    assert fs.names("ld") == ["ld/f"]
    assert fs.names(".", 9) == ["d", "d/f", "l", "l2", "ld", "loop", "magic", "p", "x"]


def test_metadata_are_attributes(fs):
    fs.sh("touch f; ln -s f l; python3 -c \"import os\n"
          "os.setxattr('f', 'user.e2b.kind', b'report')\nos.setxattr('f', 'user.other', b'x')\n"
          "os.setxattr('f', 'user.e2b.bad', b'\\xff')\nos.setxattr('f', 'user.e2b.nul', b'a\\0b')\"")
    expected = {"kind": "report", "bad": "\ufffd"}
    assert fs.stat("f")["metadata"] == expected
    assert fs.stat("l")["metadata"] == expected
    assert fs.ok("ListDir", path=".")["entries"][0]["metadata"] == expected
    fs.sh("touch g")
    assert "metadata" not in fs.stat("g")


def test_names_that_are_no_text(fs):
    fs.sh("mkdir d; cd d; touch \"$(printf 'a\\nb')\" \"$(printf '\\377\\376')\" '\"' "
          "\"$(printf '\\342\\200\\256')\"")
    answer = fs.unary("ListDir", {"path": "d"}, service=SERVICE)
    answer.body.decode("utf-8")
    names = [e["name"] for e in answer.json()["entries"]]
    assert names == ['"', "a\nb", "\u202e", "\ufffd\ufffd"]


# ---- directories ----


def test_list_is_in_order(fs):
    fs.sh("mkdir -p t/b/c t/a; touch t/b/c/z t/b/y t/B t/a.txt t/b-1")
    assert fs.names("t") == ["t/B", "t/a", "t/a.txt", "t/b", "t/b-1"]
    assert fs.names("t", 0) == fs.names("t", 1) == fs.names("t")
    assert fs.names("t", 2) == ["t/B", "t/a", "t/a.txt", "t/b", "t/b/c", "t/b/y", "t/b-1"]
    assert fs.names("t", 4294967295) == [
        "t/B", "t/a", "t/a.txt", "t/b", "t/b/c", "t/b/c/z", "t/b/y", "t/b-1"]
    assert fs.names("t/a") == []
    fs.no("ListDir", 404, "not_found", f"'{fs.home}/no'", path="no")
    fs.no("ListDir", 400, "invalid_argument", "not a directory", path="t/B")
    fs.no("ListDir", 400, "invalid_argument", "depth", path="t", depth=-1)


def test_large_directories_are_bounded(fs):
    fs.sh("mkdir big; cd big; python3 -c \"for i in range(20000): open('%05d' % i, 'w')\"")
    entries = fs.ok("ListDir", path="big")["entries"]
    assert [e["name"] for e in entries] == [f"{i:05d}" for i in range(20000)]
    fs.sh("cd big; python3 -c \"for i in range(20000, 50001): open('%05d' % i, 'w')\"",
          timeout_s=200)
    fs.no("ListDir", 429, "resource_exhausted", "more entries", path="big")
    fs.ok("Remove", path="big")
    fs.no("Stat", 404, "not_found", "", path="big")


def test_deep_trees(fs):
    fs.sh("python3 -c \"import os\nfor i in range(3000):\n os.mkdir('d'); os.chdir('d')\"")
    entries = fs.ok("ListDir", path="d", depth=5000)["entries"]
    assert len(entries) == 2999 and entries[-1]["path"][len(fs.home):].count("/d") == 3000
    fs.ok("Remove", path="d")
    assert fs.names(".") == []


def test_make_dir(fs):
    entry = fs.ok("MakeDir", path="a/b/c")["entry"]
    assert entry["path"] == f"{fs.home}/a/b/c" and entry["permissions"] == "drwxr-xr-x"
    for path in ("a", "a/b", "a/b/c"):
        found = fs.stat(path)
        assert (found["mode"], found["owner"], found["group"]) == (0o755, "user", "user")
    fs.no("MakeDir", 409, "already_exists", f"'{fs.home}/a/b'", path="a/b")
    fs.no("MakeDir", 409, "already_exists", "", path="")
    fs.sh("touch f; ln -s a l; ln -s f lf")
    fs.no("MakeDir", 409, "already_exists", "", path="l")
    fs.no("MakeDir", 400, "invalid_argument", f"'{fs.home}/f'", path="f")
    fs.no("MakeDir", 400, "invalid_argument", "", path="lf")
    fs.no("MakeDir", 400, "invalid_argument", "", path="f/below")
    assert fs.ok("MakeDir", path="/var/mine")["entry"]["owner"] == "user"  # see test_e2b_reach.py
    owned = fs.as_user("root").ok("MakeDir", path="/var/mine/deep")["entry"]
    assert owned["owner"] == "root"
    assert fs.as_user("root").ok("MakeDir", path="here")["entry"]["path"] == "/root/here"


def test_move(fs):
    fs.sh("mkdir d; echo one > f; echo two > g; ln -s nowhere l")
    entry = fs.ok("Move", source="f", destination="new/deep/f2")["entry"]
    assert entry["path"] == f"{fs.home}/new/deep/f2" and entry["type"] == "FILE_TYPE_FILE"
    fs.ok("Move", source="g", destination="new/deep/f2")
    assert fs.sh("cat new/deep/f2") == "two\n"
    assert fs.stat("new")["owner"] == "user"
    assert fs.ok("Move", source="l", destination="l2")["entry"]["symlinkTarget"] == "nowhere"
    assert fs.ok("Move", source="new", destination="d/new")["entry"]["type"] == \
        "FILE_TYPE_DIRECTORY"
    assert fs.names("d", 9) == ["d/new", "d/new/deep", "d/new/deep/f2"]
    fs.no("Move", 404, "not_found", f"'{fs.home}/none'", source="none", destination="made/x")
    fs.no("Stat", 404, "not_found", "", path="made")
    fs.no("Move", 400, "invalid_argument", "itself", source="d", destination="d/new/d")


def test_remove(fs):
    fs.sh("mkdir -p d/e keep; touch d/e/f keep/k; ln -s ../keep d/l; ln -s loop loop")
    assert fs.ok("Remove", path="d") == {}
    assert fs.ok("Remove", path="loop") == {}
    assert fs.names(".", 2) == ["keep", "keep/k"]
    assert fs.ok("Remove", path="d") == {} == fs.ok("Remove", path="never/was")
    fs.no("Remove", 400, "invalid_argument", "", path="/")
    fs.no("Remove", 400, "invalid_argument", "", path="keep/k/x")


def test_who_asks(fs):
    fs.as_user("bob").no("Stat", 401, "unauthenticated", "'bob'", path="/")
    assert fs.as_user("user:password").stat("")["path"] == fs.home
    closed = fs.as_user("root")
    closed.ok("MakeDir", path="/root/secret")
    assert [e["name"] for e in closed.ok("ListDir", path="~")["entries"]].count("secret") == 1
    without = Fs(fs.client, fs.e2b, {**fs.made, "envdAccessToken": None})
    assert without.unary("Stat", {"path": "/"}, service=SERVICE).status == 401


def test_bodies_that_are_wrong(fs):
    for body in (b"[]", b"{", b'{"path":1}', b'{"path":"","path":""}', b'{"path":"a\\u0000"}'):
        answer = fs.unary("Stat", body, service=SERVICE)
        assert answer.status == 400 and answer.json()["code"] == "invalid_argument", (body, answer)
    # What a newer client may say is no error.
    assert fs.ok("Stat", path="/", newer={"a": 1})["entry"]["name"] == "/"
    with fs.stream("WatchDir", b"\1\0\0\0\2{}", raw=True, service=SERVICE) as stream:
        assert stream.message() is None and stream.error["code"] == "invalid_argument"
    with fs.stream("WatchDir", envelope({}) * 2, raw=True, service=SERVICE) as stream:
        assert stream.message() is None and stream.error["code"] == "invalid_argument"


# ---- a stream of changes ----


def test_watch_tells_as_fsnotify(fs):
    fs.sh("mkdir -p w/sub")
    with fs.watch("w") as stream:
        assert stream.message() == {"start": {}}
        fs.sh("echo x > w/a; chmod 600 w/a; mv w/a w/b; rm w/b; touch w/sub/unseen; echo y > w/end")
        assert next_events(stream, 8) == [
            ("CREATE", "a"), ("WRITE", "a"), ("CHMOD", "a"), ("RENAME", "a"), ("CREATE", "b"),
            ("REMOVE", "b"), ("CREATE", "end"), ("WRITE", "end")]


def test_watch_follows_new_directories(fs):
    fs.sh("mkdir w")
    with fs.watch("w", recursive=True) as stream:
        assert stream.message() == {"start": {}}
        fs.sh("mkdir -p w/x/y; echo 1 > w/x/y/early")
        seen = set()
        while ("WRITE", "x/y/early") not in seen:
            seen.update(next_events(stream, 1))
        assert {("CREATE", "x"), ("CREATE", "x/y"), ("CREATE", "x/y/early")} <= seen
        fs.sh("echo 2 > w/x/y/late; mv w/x w/z")
        while ("CREATE", "z") not in seen:
            seen.update(next_events(stream, 1))
        assert {("CREATE", "x/y/late"), ("WRITE", "x/y/late"), ("RENAME", "x")} <= seen
        fs.sh("rm w/z/y/late")
        while ("REMOVE", "z/y/late") not in seen:
            seen.update(next_events(stream, 1))


def upload(fs, path, data):
    answer = fs.e2b.envd("POST", f"/files?path={path}", fs.sandbox, fs.token, data=data,
                         headers={"Content-Type": "application/octet-stream"})
    assert answer.status == 200, answer


def test_watch_hears_of_uploads(fs):
    """The first and the second to a name, and nothing of how they are done."""
    fs.sh("mkdir w")
    watcher = fs.watcher("w", includeEntry=True)
    upload(fs, "w/f", b"one")
    assert fs.short(watcher) == [("CREATE", "f"), ("CHMOD", "f"), ("WRITE", "f")]
    upload(fs, "w/f", b"second")
    events = fs.events(watcher)
    assert {(e["type"], e["name"]) for e in events} == {("EVENT_TYPE_CHMOD", "f"),
                                                        ("EVENT_TYPE_WRITE", "f")}
    assert events[-1]["entry"]["size"] == "6"
    assert events[-1]["entry"]["path"] == f"{fs.home}/w/f"


def test_watch_has_keepalives_and_an_end(fs):
    fs.sh("mkdir w")
    began = time.monotonic()
    with fs.watch("w", {"Keepalive-Ping-Interval": "1"}) as stream:
        assert stream.message() == {"start": {}}
        assert stream.message() == stream.message() == {"keepalive": {}}
        assert 1.5 < time.monotonic() - began < paddock.seconds(10)
        fs.sh("rm -r w")
        while (message := stream.message()) is not None:
            assert message.get("filesystem", {"name": "."})["name"] == ".", message
        assert stream.last == {}
    fs.sh("mkdir w")
    with fs.watch("w", {"Connect-Timeout-Ms": str(int(paddock.seconds(700)))}) as stream:
        assert stream.message() == {"start": {}}
        assert stream.message() is None
        assert stream.error["code"] == "deadline_exceeded"


def test_watch_refuses(fs):
    fs.sh("touch f")
    for path, code in (("none", "not_found"), ("f", "invalid_argument")):
        with fs.watch(path) as stream:
            assert stream.message() is None
            assert stream.error["code"] == code and f"{fs.home}/{path}" in stream.error["message"]
        fs.no("CreateWatcher", 404 if code == "not_found" else 400, code, path, path=path)


def test_watch_ends_with_its_client(fs):
    fs.sh("mkdir w")

    def workers():
        return int(fs.sh("grep -lx paddock-worker /proc/[0-9]*/comm 2>/dev/null | wc -l"))

    with fs.watch("w") as stream:
        assert stream.message() == {"start": {}}
        assert workers() == 1
    paddock.wait_for(lambda: workers() == 0, 10, "the worker ends")


def test_watch_breaks_off_with_the_sandbox(make_fs, e2b):
    fs = make_fs()
    with fs.watch("~") as stream:
        assert stream.message() == {"start": {}}
        assert e2b.delete(f"/sandboxes/{fs.sandbox}").status == 204
        with pytest.raises(Broken):
            while stream.message() is not None:
                pass


# ---- watchers ----


def test_a_watcher_hears_of_what_is_over(fs):
    fs.sh("mkdir w")
    watcher = fs.watcher("w")
    assert fs.events(watcher) == []
    for i in range(10):
        fs.sh(f"echo {i} > w/{i}")
        assert fs.short(watcher) == [("CREATE", str(i)), ("WRITE", str(i))]
    assert fs.events(watcher) == []
    assert fs.ok("RemoveWatcher", watcherId=watcher) == {}
    for method in ("RemoveWatcher", "GetWatcherEvents"):
        fs.no(method, 404, "not_found", watcher, watcherId=watcher)
        fs.no(method, 404, "not_found", "", watcherId="")
        fs.no(method, 404, "not_found", "")


def test_entries_of_events(fs):
    fs.sh("mkdir w")
    watcher = fs.watcher("w", includeEntry=True)
    fs.sh("printf abc > w/f; chmod 600 w/f")
    for event in fs.events(watcher):
        assert event["entry"]["path"] == f"{fs.home}/w/f" and event["entry"]["name"] == "f"
    fs.sh("mv w/f w/g; rm w/g")
    for event in fs.events(watcher):
        assert event["type"] == "EVENT_TYPE_CREATE" or "entry" not in event, event


def test_watchers_of_others_are_not_found(make_fs):
    mine, other = make_fs(), make_fs()
    watcher = mine.watcher("~")
    for method in ("GetWatcherEvents", "RemoveWatcher"):
        other.no(method, 404, "not_found", "", watcherId=watcher)
    assert mine.events(watcher) == []


def test_watchers_are_counted(fs):
    fs.sh("mkdir w")
    made = [fs.watcher("w") for _ in range(MAX_WATCHERS)]
    for _ in range(100 - MAX_WATCHERS):
        fs.no("CreateWatcher", 429, "resource_exhausted", str(MAX_WATCHERS), path="w")
    fs.sh("echo > w/f")
    for watcher in made:
        assert ("CREATE", "f") in fs.short(watcher)
    fs.ok("RemoveWatcher", watcherId=made.pop())
    made.append(fs.watcher("w"))
    fs.no("CreateWatcher", 429, "resource_exhausted", "", path="w")
    # A failed one leaves nothing behind.
    fs.ok("RemoveWatcher", watcherId=made.pop())
    for _ in range(5):
        fs.no("CreateWatcher", 404, "not_found", "", path="none")
    fs.watcher("w")


def test_many_ask_one_watcher(fs):
    """Each event is told once, to one of them."""
    fs.sh("mkdir w")
    watcher = fs.watcher("w")
    seen, lock = [], threading.Lock()

    def ask(_):
        for _ in range(10):
            found = fs.short(watcher)
            with lock:
                seen.extend(found)

    writer = threading.Thread(target=fs.sh, args=("for i in $(seq 200); do mkdir w/$i; done",))
    writer.start()
    together(4, ask)
    writer.join()
    seen.extend(fs.short(watcher))
    assert sorted(seen) == sorted(("CREATE", str(i)) for i in range(1, 201))


# With rests: the kernel keeps 16384 events, and on a busy machine whoever reads them needs his turn.
FLOOD = ("python3 -c \"import os, time\nfor i in range({count}):\n"
         " open('w/%d' % i, 'w').close(); os.remove('w/%d' % i)\n"
         " if i % 500 == 499: time.sleep(0.02)\"")


def test_a_flood_waits_in_the_sandbox(fs, server):
    fs.sh("mkdir w")
    watcher = fs.watcher("w")
    # Once before it is measured: what the first events need stays with the server.
    fs.sh(FLOOD.format(count=500), timeout_s=200)
    told = []
    paddock.wait_for(lambda: told.extend(fs.short(watcher)) or len(told) >= 1000, 60, "all is told")
    before = host.rss(server.daemon())
    fs.sh(FLOOD.format(count=50000), timeout_s=200)
    assert host.rss(server.daemon()) - before < 4 << 20, "the server keeps what nobody asked for"
    told = []
    paddock.wait_for(lambda: told.extend(fs.short(watcher)) or len(told) >= 100000, 60, "all is told")
    assert len(told) == 100000 and fs.short(watcher) == []
    assert told[0] == ("CREATE", "0") and told[-1] == ("REMOVE", "49999")


def test_a_flood_that_is_too_large_is_told(fs):
    fs.sh("mkdir w")
    watcher = fs.watcher("w", includeEntry=True)
    name = "n" * 200
    fs.sh("touch w/a; python3 -c \"import os\nos.chdir('w')\nb = 'n' * 200\n"
          "for i in range(60000):\n os.rename('a', b); os.rename(b, 'a')\"", timeout_s=300)
    told = 0
    for _ in range(40):
        answer = fs.unary("GetWatcherEvents", {"watcherId": watcher}, service=SERVICE)
        assert len(answer.body) < 24 << 20
        if answer.status != 200:
            break
        events = answer.json()["events"]
        assert events, "the end came, and nobody said that events were lost"
        assert all(e["name"] in ("a", name) for e in events)
        told += len(events)
    assert answer.status == 429 and answer.json()["code"] == "resource_exhausted", answer
    assert 1000 < told < 240000
    fs.sh("rm w/*; mkdir w/after")
    assert ("CREATE", "after") in fs.short(watcher)


def test_a_stream_that_nobody_reads(fs):
    fs.sh("mkdir w")
    with fs.watch("w") as stream:
        assert stream.message() == {"start": {}}
        fs.sh(FLOOD.format(count=50000), timeout_s=200)
        told = 0
        with contextlib.suppress(AssertionError):
            while told < 100000:
                told += len(next_events(stream, 1))
        # Everything, or a word that it is not.
        assert told == 100000 or stream.error["code"] == "resource_exhausted", (told, stream.last)
    assert fs.stat("/")["name"] == "/"


def test_a_worker_that_is_stopped_or_killed(fs):
    """By a program of the sandbox's, which it may."""
    fs.sh("mkdir w")
    watcher = fs.watcher("w")
    pid = fs.sh("grep -lx paddock-worker /proc/[0-9]*/comm 2>/dev/null || true").split("/")[2]
    fs.sh(f"kill -KILL {pid}", user="root")
    answer = fs.unary("GetWatcherEvents", {"watcherId": watcher}, service=SERVICE)
    assert answer.status in (404, 503), answer
    fs.no("GetWatcherEvents", 404, "not_found", "", watcherId=watcher)
    assert fs.events(fs.watcher("w")) == []


def test_watchers_end_with_their_sandbox(make_fs, e2b, server):
    fs = make_fs()

    def pipes():
        return [t for t in host.descriptors(server.daemon()).values() if t.startswith("pipe:")]

    before = set(pipes())
    watchers = [fs.watcher("~") for _ in range(20)]
    theirs = set(pipes()) - before
    assert sum(t in theirs for t in pipes()) >= 40
    assert e2b.delete(f"/sandboxes/{fs.sandbox}").status == 204
    assert fs.unary("GetWatcherEvents", {"watcherId": watchers[0]}, service=SERVICE).status == 502
    paddock.wait_for(lambda: sum(t in theirs for t in pipes()) < 10, 20, "the server forgets them")


def test_a_paused_sandbox_holds_up_nobody(fs, e2b):
    watcher = fs.watcher("~")
    paused = e2b.post(f"/sandboxes/{fs.sandbox}/pause", {})
    if paused.status != 204:
        pytest.skip("nothing can be frozen here")
    began = time.monotonic()
    for method, body in (("GetWatcherEvents", {"watcherId": watcher}), ("Stat", {"path": "/"}),
                         ("RemoveWatcher", {"watcherId": watcher})):
        assert fs.unary(method, body, service=SERVICE).status == 502
    assert time.monotonic() - began < paddock.seconds(5)
    assert e2b.post(f"/sandboxes/{fs.sandbox}/connect", {"timeout": 600}).status in (200, 201)
    fs.sh("touch after")
    assert ("CREATE", "after") in fs.short(watcher)


def test_a_new_server_does_not_know_them():
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as server:
        e2b = E2b(server)
        fs = Fs(server.client(), e2b, e2b.create(timeout=600))
        watcher = fs.watcher("~")
        server.stop()
        server.start()
        fs.no("GetWatcherEvents", 404, "not_found", watcher, watcherId=watcher)
        # Its worker has noticed, too.
        paddock.wait_for(
            lambda: fs.sh("grep -lx paddock-worker /proc/[0-9]*/comm | wc -l") == "0\n", 20,
            "the worker ends")
        assert fs.events(fs.watcher("~")) == []
