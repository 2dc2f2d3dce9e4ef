"""Files of a sandbox through the API."""

import hashlib
import io
import os
import select
import socket
import tarfile
import threading

import pytest

from paddock_testing.files import Files, bytes_of, error, header, make_tar, tar_member
from paddock_testing.run import seconds, wait_for

MIB = 1 << 20


@pytest.fixture
def files(api, sandbox):
    return Files(api, sandbox)


# ---- write and read ----


def test_a_file_comes_back_as_it_went_in(files):
    data = os.urandom(3 * MIB + 17)
    made = files.put("a.bin", data)
    assert made.status == 201, made.body
    entry = made.json()
    assert entry["path"] == "/workspace/a.bin" and entry["name"] == "a.bin"
    assert entry["type"] == "file" and entry["size"] == len(data) and entry["mode"] == "0644"
    assert entry["target"] is None and entry["modified_at"].endswith("Z")
    got = files.get("/workspace/a.bin")
    assert got.status == 200 and got.body == data
    assert header(got, "Content-Length") == str(len(data))
    assert header(got, "Content-Type") == "application/octet-stream"
    assert header(got, "Accept-Ranges") == "bytes"
    assert files.run("sha256sum a.bin").split()[0] == hashlib.sha256(data).hexdigest()


def test_writing_again_replaces_and_keeps_the_mode(files):
    assert files.put("s.sh", b"one", mode="0700").status == 201
    files.run("ln s.sh other")
    again = files.put("s.sh", b"another")
    assert again.status == 200 and again.json()["mode"] == "0700"
    assert files.text("other") == "one", "the old file was overwritten, not replaced"
    assert files.put("s.sh", b"x", mode="0600").json()["mode"] == "0600"


def test_an_empty_file(files):
    assert files.put("empty", b"").json()["size"] == 0
    got = files.get("empty")
    assert got.status == 200 and got.body == b"" and header(got, "Content-Length") == "0"


def test_missing_directories_are_made_when_asked(files):
    error(files.put("d1/d2/x", b"1"), 404, "not_found", "d1/d2/x")
    assert files.put("d1/d2/x", b"1", mkdirs=True).status == 201
    assert files.text("d1/d2/x") == "1"


def test_chunked_upload(files):
    with files.raw() as raw:
        raw.head("PUT", files.url(path="c"), "Transfer-Encoding: chunked")
        for piece in (b"one ", b"two ", b"x" * 100000):
            raw.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        raw.send(b"0\r\n\r\n")
        answer = raw.answer()
        assert answer.status == 201, answer.read()
        answer.read()
        # The connection is good for another one.
        raw.head("GET", files.url(path="c"), "Range: bytes=0-6")
        answer = raw.answer()
        assert answer.status == 206 and answer.read() == b"one two"


def test_expect_100_continue(files):
    with files.raw() as raw:
        raw.head("PUT", files.url(path="e"), "Content-Length: 5", "Expect: 100-continue")
        assert raw.socket.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.send(b"hello")
        assert raw.answer().status == 201
    assert files.text("e") == "hello"


@pytest.mark.parametrize("how", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
def test_an_upload_that_breaks_off_changes_nothing(files, how):
    files.put("keep", b"old")
    with files.raw() as raw:
        raw.head("PUT", files.url(path="keep"), how)
        raw.send(b"3e8\r\n" if "chunked" in how else b"")
        raw.send(b"x" * 1000)
        wait_for(lambda: "paddock-worker" in files.run("ps -e"), 20, "its worker writes")
    wait_for(lambda: "paddock-worker" not in files.run("ps -e"), 20, "its worker ends")
    assert files.run("ls -A").split() == ["keep"], "a temporary file was left"
    assert files.text("keep") == "old"


def test_readers_see_the_old_file_or_the_new_one(files):
    old, new = b"a" * MIB, b"b" * MIB
    files.put("f", old)
    stop, seen = threading.Event(), []

    def read():
        while not stop.is_set():
            seen.append(hashlib.sha256(files.get("f").body).digest())

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(6):
        files.put("f", new if i % 2 else old)
    stop.set()
    reader.join()
    allowed = {hashlib.sha256(x).digest() for x in (old, new)}
    assert seen and set(seen) <= allowed


def test_a_refused_upload_is_answered_while_the_client_sends(files):
    with files.raw() as raw:
        raw.head("PUT", files.url(path="/no/such/dir/x"), f"Content-Length: {1 << 40}")
        raw.socket.settimeout(seconds(20))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(10000):
                raw.send(b"x" * MIB)
    # The answer itself, for a client that stops to listen.
    with files.raw() as raw:
        raw.head("PUT", files.url(path="/no/such/dir/x"), f"Content-Length: {1 << 40}")
        raw.send(b"x" * MIB)
        answer = raw.answer()
        assert answer.status == 404 and b"not_found" in answer.read()


def test_a_full_sandbox_is_told_and_the_old_file_stays(api, make_sandbox):
    files = Files(api, make_sandbox(limits={"disk_bytes": 16 * MIB}))
    files.put("f", b"old")
    error(files.put("f", b"x" * (64 * MIB)), 507, "no_space", "space")
    assert files.text("f") == "old"
    assert files.put("g", b"small").status == 201


def test_what_the_sandbox_says_comes_before_a_client_that_breaks_off(files):
    """The upload was refused long ago; that the client then stops sending is not the reason."""
    with files.raw() as raw:
        raw.head("PUT", files.url(path="/no/such/dir/x"), "Content-Length: 1000")
        raw.send(b"x" * 10)
        assert select.select([raw.socket], [], [], seconds(20))[0], "the refusal does not wait for the rest"
        raw.socket.shutdown(socket.SHUT_WR)
        answer = raw.answer()
        assert answer.status == 404 and b"not_found" in answer.read()


def test_modes_are_three_octal_digits(files):
    for bad in ("999", "07777", "4755", "", "rwx", "0o644", "+x"):
        assert error(files.put("m", b"", mode=bad), 400, "invalid")["details"]["field"] == "mode"


# ---- ranges and HEAD ----


@pytest.mark.parametrize("value,status,body,content_range", [
    ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
    ("bytes=4-", 206, b"456789", "bytes 4-9/10"),
    ("bytes=-3", 206, b"789", "bytes 7-9/10"),
    ("bytes=-100", 206, b"0123456789", "bytes 0-9/10"),
    ("bytes=8-100", 206, b"89", "bytes 8-9/10"),
    ("bytes=9-99999999999999999999999", 206, b"9", "bytes 9-9/10"),
    ("bytes=0-99999999999999999999", 206, b"0123456789", "bytes 0-9/10"),
    ("bytes=-99999999999999999999", 206, b"0123456789", "bytes 0-9/10"),
    ("bytes=000000000000000000000002-0000000000000000000003", 206, b"23", "bytes 2-3/10"),
    ("Bytes=0-0", 206, b"0", "bytes 0-0/10"),
    ("bytes=10-", 416, None, "bytes */10"),
    ("bytes=99999999999999999999-", 416, None, "bytes */10"),
    ("bytes=-0", 416, None, "bytes */10"),
    # What is not one range of bytes may be ignored.
    ("bytes=5-2", 200, b"0123456789", None),
    ("bytes=0-1,3-4", 200, b"0123456789", None),
    ("bytes=", 200, b"0123456789", None),
    ("bytes=-", 200, b"0123456789", None),
    ("bytes=a-b", 200, b"0123456789", None),
    ("bytes=1 -2", 200, b"0123456789", None),
    ("lines=0-1", 200, b"0123456789", None),
])
def test_ranges(files, value, status, body, content_range):
    files.put("r", b"0123456789")
    got = files.get("r", headers={"Range": value})
    assert got.status == status
    assert header(got, "Content-Range") == content_range
    if body is not None:
        assert got.body == body


def test_a_range_needs_a_validator_that_nobody_has(files):
    files.put("r", b"0123456789")
    got = files.get("r", headers={"Range": "bytes=0-3", "If-Range": '"x"'})
    assert got.status == 200 and got.body == b"0123456789"


def test_a_range_far_into_a_large_sparse_file(files):
    files.run("truncate -s 1T big; printf end | dd of=big bs=1 seek=1000000000000 conv=notrunc"
              " status=none")
    got = files.get("big", headers={"Range": "bytes=1000000000000-1000000000002"})
    assert got.status == 206 and got.body == b"end"


def test_head_has_the_headers_and_no_body(files):
    files.put("h", b"x" * 100000)
    with files.raw() as raw:
        raw.head("HEAD", files.url(path="h"))
        answer = raw.answer("HEAD")
        assert answer.status == 200 and answer.getheader("Content-Length") == "100000"
        answer.read()
        raw.head("HEAD", files.url(path="h"), "Range: bytes=10-19")
        answer = raw.answer("HEAD")
        assert answer.status == 206 and answer.getheader("Content-Length") == "10"
        assert answer.getheader("Content-Range") == "bytes 10-19/100000"
        answer.read()
        # Were a body sent, this would read it.
        raw.head("GET", files.url(path="h"), "Range: bytes=0-1")
        assert raw.answer().read() == b"xx"


def test_a_file_of_proc_has_contents(files):
    got = files.get("/proc/self/status")
    assert got.status == 200 and b"paddock-worker" in got.body


# ---- errors ----


def test_errors_name_what_is_wrong(files):
    error(files.get("nothing"), 404, "not_found", "nothing")
    error(files.get("/etc"), 400, "invalid", "directory")
    error(files.put("/usr/bin/x", b""), 403, "denied", "/usr/bin/x")
    assert error(files.api.get(files.base), 400, "invalid")["details"]["field"] == "path"
    assert error(files.get(""), 400, "invalid")["details"]["field"] == "path"
    assert error(files.get("x", user="nobody"), 400, "invalid")["details"]["field"] == "user"
    error(files.get("x", colour="red"), 400, "invalid", "colour")
    error(files.api.get(files.base + "?path=%ff"), 400, "invalid")
    error(files.api.get(files.base + "?path=a%00b"), 400, "invalid")
    error(files.api.get(files.base + "?path=a&path=b"), 400, "invalid")
    error(files.get("x" * 4096), 400, "invalid")
    error(files.get("/" + "x" * 300), 400, "invalid", "too long")


def test_a_path_that_is_too_long_together(files):
    error(files.get(("y" * 200 + "/") * 20 + "z" * 70), 400, "invalid", "too long")


def test_another_tenants_sandbox_is_not_there(files):
    other = Files(files.api, "a" * 20)
    error(other.get("x"), 404, "not_found")
    error(other.put("x", b""), 404, "not_found")


def test_root_may_what_the_user_may_not(files):
    made = files.put("/root/secret", b"1", user="root")
    if made.status == 403:
        pytest.skip("this profile has no root")
    assert made.status == 201
    error(files.get("/root/secret"), 403, "denied")
    assert files.get("/root/secret", user="root").body == b"1"


# ---- looking ----


def test_list_is_paged_sorted_and_complete(files):
    files.run("mkdir -p t/b; touch t/{a,c,d} t/b/{1,2}; ln -s a t/link; mkfifo t/pipe")
    whole = files.list("t", depth=5).json()
    names = [e["path"].removeprefix("/workspace/t/") for e in whole["entries"]]
    assert names == ["a", "b", "b/1", "b/2", "c", "d", "link", "pipe"]
    assert whole["next_cursor"] is None
    kinds = {e["name"]: e["type"] for e in whole["entries"]}
    assert kinds["b"] == "dir" and kinds["link"] == "symlink" and kinds["pipe"] == "fifo"
    assert next(e["target"] for e in whole["entries"] if e["name"] == "link") == "a"
    assert len(files.list("t").json()["entries"]) == 6, "depth 1 has no b/1"
    pages, cursor = [], None
    for _ in range(20):
        page = files.list("t", depth=5, limit=3, **({"cursor": cursor} if cursor else {})).json()
        assert len(page["entries"]) <= 3
        pages += [e["path"] for e in page["entries"]]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert pages == [e["path"] for e in whole["entries"]]


def test_list_refuses(files):
    error(files.list("nothing"), 404, "not_found")
    files.put("f", b"")
    error(files.list("f"), 400, "invalid", "directory")
    for query in ({"depth": 0}, {"depth": 65}, {"limit": 0}, {"limit": 10001}, {"cursor": "zz"},
                  {"cursor": "00"}, {"cursor": "abc"}, {"limit": "x"}):
        field = next(iter(query))
        assert error(files.list(**query), 400, "invalid")["details"]["field"] == field


def test_stat_is_of_the_link_itself(files):
    files.put("f", b"12345")
    files.run("ln -s f l; touch -d @0 f")
    link = files.stat("l").json()
    assert link["type"] == "symlink" and link["target"] == "f"
    assert files.stat("f").json()["modified_at"] == "1970-01-01T00:00:00.000Z"
    assert files.stat("/").json()["type"] == "dir"
    assert files.stat("/dev/null").json()["type"] == "device"


# ---- names and modes ----


def test_mkdir(files):
    made = files.post("mkdir", path="d")
    assert made.status == 201 and made.json()["type"] == "dir" and made.json()["mode"] == "0755"
    error(files.post("mkdir", path="d"), 409, "conflict")
    assert files.post("mkdir", path="d", parents=True).status == 201
    error(files.post("mkdir", path="x/y"), 404, "not_found")
    assert files.post("mkdir", path="x/y", parents=True, mode="0700").json()["mode"] == "0700"
    assert error(files.post("mkdir", path="z", mode="4755"), 400, "invalid")["details"]["field"] == "mode"
    assert error(files.post("mkdir", path="z", more=1), 400, "invalid")["details"]["field"] == "more"
    assert error(files.post("mkdir"), 400, "invalid")["details"]["field"] == "path"


def test_move(files):
    files.put("a", b"a")
    files.put("b", b"b")
    error(files.post("move", **{"from": "a", "to": "b"}), 409, "conflict", "overwrit")
    assert files.post("move", **{"from": "a", "to": "b", "overwrite": True}).status == 200
    assert files.text("b") == "a"
    error(files.get("a"), 404, "not_found")
    error(files.post("move", **{"from": "a", "to": "c"}), 404, "not_found")
    files.run("mkdir d")
    error(files.post("move", **{"from": "d", "to": "d/e"}), 400, "invalid", "itself")


def test_copy(files):
    files.run("mkdir -p s/t; echo 1 > s/f; echo 2 > s/t/g; chmod 750 s/t; ln -s f s/l")
    error(files.post("copy", **{"from": "s", "to": "c"}), 400, "invalid", "recursive")
    assert files.post("copy", **{"from": "s", "to": "c", "recursive": True}).status == 200
    assert files.run("diff -r s c && readlink c/l && stat -c %a c/t") == "f\n750\n"
    assert files.post("copy", **{"from": "s/f", "to": "one"}).json()["size"] == 2


def test_chmod(files):
    files.put("f", b"")
    assert files.post("chmod", path="f", mode="0751").json()["mode"] == "0751"
    assert files.run("stat -c %a f").strip() == "751"
    error(files.post("chmod", path="f", mode="4755"), 400, "invalid")
    error(files.post("chmod", path="/etc/passwd", mode="0777"), 403, "denied")


def test_delete(files):
    files.put("f", b"")
    assert files.delete("f").status == 204
    error(files.delete("f"), 404, "not_found")
    files.run("mkdir -p d/e; touch d/e/f; ln -s /etc d/l")
    error(files.delete("d"), 409, "conflict", "recursive")
    assert files.delete("d", recursive=True).status == 204
    assert files.stat("/etc/passwd").status == 200
    error(files.stat("d"), 404, "not_found")


# ---- search and replace ----


def test_search(files):
    files.run("mkdir -p s/sub; printf 'one\\nTwo two\\n' > s/a.txt; printf 'def f():\\n' > s/b.py;"
              " printf 'two' > s/sub/c.txt; printf 'two\\0' > s/binary")
    found = files.search(path="s", pattern="two").json()
    assert [(m["path"], m["line"], m["column"], m["text"]) for m in found["matches"]] == [
        ("/workspace/s/a.txt", 2, 5, "Two two"), ("/workspace/s/sub/c.txt", 1, 1, "two")]
    assert found["truncated"] is False
    assert files.search(path="s", pattern="TWO").json()["matches"] == []
    assert len(files.search(path="s", pattern="TWO", case_sensitive=False).json()["matches"]) == 2
    cut = files.search(path="s", pattern="two", limit=1).json()
    assert len(cut["matches"]) == 1 and cut["truncated"] is True
    assert files.search(path="s", pattern="two", limit=2).json()["truncated"] is False
    assert len(files.search(path="s", pattern="def [a-z]+", mode="regex",
                            glob="*.py").json()["matches"]) == 1
    name = files.search(path="s", pattern="*.txt", mode="name").json()["matches"]
    assert {m["path"] for m in name} == {"/workspace/s/a.txt", "/workspace/s/sub/c.txt"}
    assert all(m["line"] is None and m["column"] is None and m["text"] is None for m in name)
    query = files.api.get(files.url("/search", path="s", pattern="two", glob="*.txt"))
    assert query.json() == files.search(path="s", pattern="two", glob="*.txt").json()


def test_search_refuses(files):
    assert error(files.search(path="."), 400, "invalid")["details"]["field"] == "pattern"
    error(files.search(path=".", pattern="(", mode="regex"), 400, "invalid")
    error(files.search(path=".", pattern="x", mode="magic"), 400, "invalid")
    error(files.search(path="none", pattern="x"), 404, "not_found")
    for query in ({}, {"pattern": ""}, {"pattern": "x", "mode": "y"}, {"pattern": "x", "limit": 0},
                  {"pattern": "x", "glob": ""}, {"pattern": "x", "case_sensitive": "maybe"}):
        error(files.api.get(files.url("/search", **query)), 400, "invalid")


def test_replace(files):
    files.run("mkdir r; printf 'colour colour\\n' > r/a.c; printf colour > r/b.txt")
    dry = files.post("replace", path="r", pattern="colour", replacement="color", dry_run=True)
    assert {(f["path"], f["replacements"]) for f in dry.json()["files"]} == {
        ("/workspace/r/a.c", 2), ("/workspace/r/b.txt", 1)}
    assert files.text("r/b.txt") == "colour"
    done = files.post("replace", path="r", pattern="colour", replacement="color", glob="*.c").json()
    assert done == {"files": [{"path": "/workspace/r/a.c", "replacements": 2}]}
    assert files.text("r/a.c") == "color color\n" and files.text("r/b.txt") == "colour"
    files.post("replace", path="r/b.txt", pattern="(c)(o)", replacement="\\2\\1", mode="regex")
    assert files.text("r/b.txt") == "oclour"
    files.post("replace", path="r/b.txt", pattern="oc", replacement="")
    assert files.text("r/b.txt") == "lour"
    error(files.post("replace", path="r", pattern="x", replacement="y", mode="name"), 400, "invalid")
    big = files.post("replace", path="r", pattern="x", replacement="y" * 65536)
    assert big.status == 200 and big.json() == {"files": []}


# ---- watch ----


def test_watch_tells_what_changes(files):
    files.run("mkdir -p w/sub")
    with files.watch("w", recursive=True) as watch:
        assert watch.status == 200
        assert watch.response.getheader("Content-Type").startswith("text/event-stream")
        assert watch.wait("ready")["path"] == "/workspace/w"
        files.run("echo 1 > w/new; mv w/new w/sub/moved; mkdir w/d; rm w/sub/moved")
        assert watch.wait("created", "/workspace/w/new")["type"] == "file"
        assert watch.wait("moved", "/workspace/w/sub/moved")["from"] == "/workspace/w/new"
        assert watch.wait("created", "/workspace/w/d")["type"] == "dir"
        watch.wait("removed", "/workspace/w/sub/moved")
        assert [name for name, _ in watch.events][0] == "ready"
        files.put("w/d/late", b"1")
        watch.wait("created", "/workspace/w/d/late")


def test_watch_ends_with_its_client(files):
    files.run("mkdir w")
    with files.watch("w") as watch:
        watch.wait("ready")
        assert "paddock-worker" in files.run("ps -e -o comm")
    wait_for(lambda: "paddock-worker" not in files.run("ps -e -o comm"), 10,
             "the worker ends, because nobody listens")


def test_watch_ends_with_what_is_watched(files):
    files.run("mkdir w")
    with files.watch("w") as watch:
        watch.wait("ready")
        files.run("rmdir w")
        watch.wait("removed", "/workspace/w")
        watch.thread.join(seconds(10))
        assert watch.ended, "the stream has no proper end"


def test_watch_ends_with_the_sandbox(api, make_sandbox):
    files = Files(api, make_sandbox())
    with files.watch(".") as watch:
        watch.wait("ready")
        assert api.delete(f"/v1/sandboxes/{files.sandbox}").status == 204
        assert watch.wait("error")["code"] == "session_lost"
        watch.thread.join(seconds(10))
        assert not watch.thread.is_alive()


def test_watch_has_a_heartbeat(silence):
    watch = silence["watch"]
    wait_for(lambda: ": heartbeat" in watch.lines, 30, "a heartbeat")


def test_watch_refuses(files):
    error(files.api.get(files.url("/watch", path="nothing")), 404, "not_found")
    with files.raw() as raw:
        raw.head("HEAD", files.url("/watch", path="."))
        assert raw.answer("HEAD").status == 200  # and ends


# ---- archives ----


def test_a_tree_goes_out_and_in(files):
    files.run("mkdir -p a/sub; echo 1 > a/f; head -c 3000000 /dev/urandom > a/sub/big; chmod 750 a/f;"
              " ln -s f a/l; mkdir a/empty; touch a/$'n\\nl' a/'\xe4'")
    tar = files.tar("a")
    assert tar.status == 200 and header(tar, "Content-Type") == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(tar.body)) as t:
        names = {m.name.removeprefix("./").rstrip("/") for m in t.getmembers()} - {"", "."}
        assert names == {"f", "l", "sub", "sub/big", "empty", "n\nl", "\xe4"}
    back = files.untar(tar.body, "b")
    assert back.status == 200, back.body
    assert back.json()["entries"] >= 7
    assert files.run("diff -r a b && readlink b/l && stat -c %a b/f") == "f\n750\n"


def test_an_archive_of_one_file(files):
    files.put("one.txt", b"text")
    with tarfile.open(fileobj=io.BytesIO(files.tar("one.txt").body)) as t:
        assert t.getnames() == ["one.txt"] and t.extractfile("one.txt").read() == b"text"


def test_archive_errors(files):
    error(files.tar("nothing"), 404, "not_found")
    error(files.untar(b"this is no archive" * 100), 400, "invalid")
    cut = make_tar(("x", b"y" * 5000))[:2000]
    error(files.untar(cut), 400, "invalid")
    with files.raw() as raw:
        raw.head("HEAD", files.url("/archive", path="."))
        assert raw.answer("HEAD").status == 200


def test_a_chunked_archive(files):
    data = make_tar(("x", b"y" * 100000), tar_member("d", tarfile.DIRTYPE, mode=0o755))
    with files.raw() as raw:
        raw.head("PUT", files.url("/archive", path="in"), "Transfer-Encoding: chunked")
        for at in range(0, len(data), 7000):
            piece = data[at:at + 7000]
            raw.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        raw.send(b"0\r\n\r\n")
        assert raw.answer().status == 200
    assert files.run("stat -c %s in/x").strip() == "100000"


def test_a_download_that_cannot_be_finished_is_broken_off(files):
    """The worker is killed in the middle: the client must not take what it has for all there is."""
    import http.client
    files.run("head -c 40000000 /dev/zero > big")
    for target in (files.url(path="big"), files.url("/archive", path="big")):
        with files.raw() as raw:
            raw.head("GET", target)
            answer = raw.answer()
            assert answer.status == 200 and answer.read(1000)
            files.run("pkill -9 paddock-worker || kill -9 $(pgrep paddock-worker)")
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                rest = answer.read()
                if len(rest) < 39999000:
                    raise ConnectionError("a short answer that looks whole")


def test_names_that_are_no_text_are_told_exactly(files):
    files.run("mkdir n; cd n; touch $'\\xff\\xfe' $'a\\rb' $'\\e[2J'")
    entries = files.list("n").json()["entries"]
    assert {bytes_of(e) for e in entries} == {
        b"/workspace/n/\xff\xfe", b"/workspace/n/a\rb", b"/workspace/n/\x1b[2J"}
