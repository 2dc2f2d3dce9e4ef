"""/files at the E2B door, in the bytes that go over the wire."""

import base64
import gzip
import hashlib
import http.client
import json
import os
import socket
import threading
import time
import zlib
from urllib.parse import quote, urlencode

import pytest

from e2b_rpc import token_of
from helpers import Box, together
from paddock_testing import contract
from paddock_testing.run import seconds, wait_for
from paddock_testing.server import Response

MIB = 1 << 20
# Which only root may read; where nobody can be root, what only init may.
SECRET = "/var/roots/secret" if contract.provider() == "jail" else "/proc/1/environ"
BOUNDARY = "----formdata-undici-012345678901"
OCTETS = {"Content-Type": "application/octet-stream"}


def form(*parts, boundary=BOUNDARY):
    """Parts are (disposition, contents) or (filename, contents) with a name that starts with /."""
    out = []
    for disposition, contents in parts:
        if not disposition.startswith("form-data"):
            disposition = f'form-data; name="file"; filename="{disposition}"'
        out += [(f"--{boundary}\r\nContent-Disposition: {disposition}\r\n"
                 "Content-Type: application/octet-stream\r\n\r\n").encode(), contents, b"\r\n"]
    return b"".join(out) + f"--{boundary}--\r\n".encode()


def form_type(boundary=BOUNDARY):
    return {"Content-Type": f"multipart/form-data; boundary={boundary}"}


class Envd:
    """envd of one sandbox: /files, as the SDKs ask for it."""

    def __init__(self, server, api, sandbox):
        self.api = api
        self.server = server
        self.sandbox = sandbox
        self.token = token_of(server, sandbox)
        self.box = Box(api, sandbox)

    @property
    def headers(self):
        return {"E2b-Sandbox-Id": self.sandbox, "E2b-Sandbox-Port": "49983",
                "X-Access-Token": self.token}

    def url(self, tail="", **query):
        return "/files" + tail + ("?" + urlencode(query, quote_via=quote) if query else "")

    def ask(self, method, url, data=None, headers=None, pieces=None):
        """`pieces` (an iterable) makes a chunked body."""
        connection = http.client.HTTPConnection(self.api.host, self.api.port, timeout=seconds(60))
        try:
            connection.request(method, url, body=data if pieces is None else iter(pieces),
                               headers={**self.headers, **(headers or {})},
                               encode_chunked=pieces is not None)
            answer = connection.getresponse()
            return Response(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    def get(self, path=None, headers=None, **query):
        if path is not None:
            query["path"] = path
        return self.ask("GET", self.url(**query), headers=headers)

    def put(self, path, data, headers=None, pieces=None, **query):
        """An octet-stream."""
        if path is not None:
            query["path"] = path
        return self.ask("POST", self.url(**query), data, {**OCTETS, **(headers or {})}, pieces)

    def post(self, body, headers=None, pieces=None, boundary=BOUNDARY, **query):
        """A form."""
        return self.ask("POST", self.url(**query), body, {**form_type(boundary), **(headers or {})},
                        pieces)

    def read(self, path):
        answer = self.get(path)
        assert answer.status == 200, answer
        return answer.body

    def raw(self):
        return socket.create_connection((self.api.host, self.api.port), timeout=seconds(30))

    def head(self, method, url, **more):
        lines = [f"{method} {url} HTTP/1.1", f"Host: {self.api.host}:{self.api.port}"]
        lines += [f"{k.replace('_', '-')}: {v}" for k, v in {**self.headers, **more}.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.fixture
def envd(server, api, sandbox):
    return Envd(server, api, sandbox)


@pytest.fixture(scope="module")
def one(server, api):
    """One sandbox for tests that only look at answers, or use paths of their own."""
    made = api.post("/v1/sandboxes", json={}).json()["id"]
    envd = Envd(server, api, made)
    if contract.provider() == "jail":
        good(envd.put(SECRET, b"secret", username="root"), SECRET)
        envd.box.out(f"chmod 600 {SECRET}", user="root")
    yield envd
    api.delete(f"/v1/sandboxes/{made}")


def good(answer, *paths, metadata=None):
    """These files were written, in this order."""
    assert answer.status == 200, answer
    assert answer.headers["Content-Type"] == "application/json", answer
    more = {"metadata": metadata} if metadata else {}
    assert answer.json() == [
        {"path": p, "name": os.path.basename(p), "type": "file", **more} for p in paths], answer


def bad(answer, status, says=""):
    assert answer.status == status, answer
    body = answer.json()
    assert set(body) == {"code", "message"} and body["code"] == status, answer
    assert says in body["message"], answer
    return body["message"]


def chunks(data, size):
    return [data[i:i + size] for i in range(0, len(data), size)]


# ---- reading ----


def test_a_file_comes_back_as_it_went_in(one):
    data = os.urandom(3 * MIB + 17)
    good(one.put("/home/user/a.bin", data), "/home/user/a.bin")
    got = one.get("/home/user/a.bin")
    assert got.status == 200 and got.body == data
    assert got.headers["Content-Length"] == str(len(data))
    assert got.headers["Content-Type"] == "application/octet-stream"
    assert one.box.out("sha256sum /home/user/a.bin").split()[0] == hashlib.sha256(data).hexdigest()


def test_an_empty_file_has_a_length(one):
    good(one.put("/tmp/empty", b""), "/tmp/empty")
    got = one.get("/tmp/empty")
    assert got.status == 200 and got.body == b"" and got.headers["Content-Length"] == "0"
    good(one.post(form(("/tmp/empty2", b""))), "/tmp/empty2")
    assert one.read("/tmp/empty2") == b""


def test_ranges(one):
    one.put("/tmp/range", b"0123456789")
    for asked, body, said in (("bytes=2-4", b"234", "bytes 2-4/10"),
                              ("bytes=7-", b"789", "bytes 7-9/10"),
                              ("bytes=-3", b"789", "bytes 7-9/10")):
        got = one.get("/tmp/range", headers={"Range": asked})
        assert (got.status, got.body, got.headers["Content-Range"]) == (206, body, said)
    got = one.get("/tmp/range", headers={"Range": "bytes=10-"})
    bad(got, 416, "range")
    assert got.headers["Content-Range"] == "bytes */10"


def test_files_of_proc_have_their_contents(one):
    got = one.get("/proc/self/status")
    assert got.status == 200 and got.body.startswith(b"Name:"), got
    assert int(got.headers["Content-Length"]) == len(got.body)


def test_what_cannot_be_read(one):
    assert "/tmp/nothing" in bad(one.get("/tmp/nothing"), 404, "does not exist")
    bad(one.get("/tmp"), 400, "directory")
    bad(one.get(""), 400, "directory")  # the home
    bad(one.get(), 400, "directory")
    bad(one.get(SECRET), 403)
    if contract.provider() == "jail":
        assert one.get(SECRET, username="root").body == b"secret"
    one.box.out("mkfifo /tmp/fifo")
    bad(one.get("/tmp/fifo"), 400, "FIFO")
    bad(one.get("x" * 5000), 400)
    bad(one.get("/tmp/a%00b".replace("%00", "\0")), 400)


@pytest.mark.parametrize("name", ["nobody", "www-data", "0", "user ", "../root", "x" * 63])
def test_users_that_are_not_there(one, name):
    bad(one.get("/etc/hostname", username=name), 401,
        f"error looking up user '{name[:60]}': user: unknown user")
    bad(one.put("/tmp/never", b"x", username=name), 401, "unknown user")
    bad(one.post(form(("/tmp/never", b"x")), username=name), 401, "unknown user")
    bad(one.get("/tmp/never"), 404)


def test_a_header_makes_nobody_another(one):
    """A link is signed for one user: Basic must not change that."""
    root = {"Authorization": "Basic " + base64.b64encode(b"root:").decode()}
    bad(one.get(SECRET, headers=root), 403)
    good(one.put("/tmp/basic", b"x", headers=root), "/tmp/basic")
    assert one.box.out("stat -c %U /tmp/basic").strip() == "user"


def test_paths(one):
    good(one.put("rel.txt", b"1"), "/home/user/rel.txt")
    good(one.put("~/tilde.txt", b"2"), "/home/user/tilde.txt")
    good(one.put("//tmp/./two//slashes", b"3"), "/tmp/two/slashes")
    good(one.put("~/r.txt", b"4", username="root"), "/root/r.txt")
    good(one.put("./dot.txt", b"5"), "/home/user/dot.txt")
    assert one.read("rel.txt") == b"1" and one.read("~/tilde.txt") == b"2"
    for odd in ("with space", "ünïcode-Ω-文", 'quo"te', "per%22cent", "new\nline", "a?b#c&d=e"):
        good(one.put(f"/tmp/odd/{odd}", odd.encode()), f"/tmp/odd/{odd}")
        assert one.read(f"/tmp/odd/{odd}") == odd.encode()


# ---- writing ----


def test_owner_mode_and_parents(one):
    good(one.put("/home/user/p1/p2/f", b"x"), "/home/user/p1/p2/f")
    stat = "stat -c '%U %G %a' "
    assert one.box.out(stat + "/home/user/p1/p2/f").strip() == "user user 644"
    assert one.box.out(stat + "/home/user/p1 /home/user/p1/p2").splitlines() == \
        ["user user 755"] * 2
    good(one.put("/srv/r1/f", b"x", username="root"), "/srv/r1/f")
    assert one.box.out(stat + "/srv/r1 /srv/r1/f").splitlines() == \
        ["root root 755", "root root 644"]


def test_what_is_written_is_the_writers(one):
    one.box.out("mkdir -m 777 /tmp/open")
    good(one.put("/tmp/open/whose", b"1"), "/tmp/open/whose")
    one.box.out("chmod 666 /tmp/open/whose")
    good(one.put("/tmp/open/whose", b"22", username="root"), "/tmp/open/whose")
    assert one.box.out("stat -c '%U %a %s' /tmp/open/whose").strip() == "root 666 2"


def test_replacing_is_one_step(one):
    one.put("/tmp/hard", b"old")
    one.box.out("ln /tmp/hard /tmp/hard2")
    good(one.put("/tmp/hard", b"new"), "/tmp/hard")
    assert one.read("/tmp/hard") == b"new" and one.read("/tmp/hard2") == b"old"
    one.box.out("ln -s hard /tmp/link")
    good(one.put("/tmp/link", b"through"), "/tmp/link")
    assert one.read("/tmp/hard") == b"through"


def test_where_nothing_can_be_written(one):
    bad(one.put("/tmp", b"x"), 400, "directory")
    bad(one.put("/etc/new", b"x"), 403)
    bad(one.put("/etc/passwd/x", b"x"), 400)
    bad(one.put("/" + "x" * 300, b"x"), 400)
    bad(one.post(form(("/etc/new", b"x"))), 403)
    bad(one.post(form(("/tmp", b"x"))), 400, "directory")
    # The answer comes although the client sends first and looks later.
    bad(one.put("/etc/new", b"x" * (8 * MIB)), 403)
    bad(one.post(form(("/etc/new", b"x" * (8 * MIB)))), 403)


def test_bodies_that_are_chunked(one):
    data = os.urandom(200_000)
    good(one.put("/tmp/c1", None, pieces=chunks(data, 7000)), "/tmp/c1")
    assert one.read("/tmp/c1") == data
    good(one.post(None, pieces=chunks(form(("/tmp/c2", data)), 7001)), "/tmp/c2")
    assert one.read("/tmp/c2") == data
    good(one.put("/tmp/c3", None, pieces=[]), "/tmp/c3")
    assert one.read("/tmp/c3") == b""


def test_an_octet_stream_needs_a_path(one):
    bad(one.put(None, b"x"), 400, "path")


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/mixed; boundary=x",
                                  "multipart/form-data", "multipart/form-data; boundary=",
                                  "multipart/form-data; boundary=" + "x" * 71,
                                  'multipart/form-data; boundary="a', "octet-stream",
                                  "multipart/form-data; boundary=a; boundary=b"])
def test_other_content_types(one, kind):
    bad(one.ask("POST", one.url(path="/tmp/kind"), b"x", {"Content-Type": kind}), 400)
    bad(one.get("/tmp/kind"), 404)


def test_no_content_type(one):
    with one.raw() as s:
        s.sendall(one.head("POST", "/files?path=/tmp/kind", Content_Length=1) + b"x")
        answer = http.client.HTTPResponse(s)
        answer.begin()
        assert answer.status == 400 and b"content type" in answer.read()


# ---- forms ----


def test_the_path_parameter_wins(one):
    good(one.post(form(("/tmp/of-the-part", b"1")), path="/tmp/of-the-query"), "/tmp/of-the-query")
    bad(one.get("/tmp/of-the-part"), 404)
    good(one.post(form(('form-data; name="file"', b"2")), path="/tmp/field"), "/tmp/field")
    assert one.read("/tmp/field") == b"2"


def test_a_file_without_a_name(one):
    bad(one.post(form(('form-data; name="file"', b"2"))), 400, "filename")
    bad(one.post(form(('form-data; name="file"; filename=""', b"2"))), 400, "filename")


def test_several_files(one):
    files = [(f"/tmp/several/{n}", os.urandom(n * 1000)) for n in range(20)]
    good(one.post(form(*files)), *[path for path, _ in files])
    for path, data in files:
        assert one.read(path) == data


def test_other_parts_are_ignored(one):
    body = form(('form-data; name="note"', b"hello"), ("/tmp/ign1", b"1"),
                ('form-data; name="other"; filename="/tmp/ign2"', b"2"),
                ("form-data", b"no name"))
    good(one.post(body), "/tmp/ign1")
    bad(one.get("/tmp/ign2"), 404)
    assert one.post(form()).json() == []
    assert one.post(form(('form-data; name="note"', b"hello"))).json() == []


def test_two_parts_for_one_path(one):
    bad(one.post(form(("/tmp/twice", b"1"), ("/tmp//./twice", b"2"))), 400, "same path")
    assert one.read("/tmp/twice") == b"1"
    bad(one.post(form(("/a", b"1"), ("/b", b"2")), path="/tmp/twice2"), 400, "same path")


@pytest.mark.parametrize("written,path", [
    ("/tmp/n/a%22b", '/tmp/n/a"b'), ("/tmp/n/a%0D%0Ab", "/tmp/n/a\r\nb"),
    ("/tmp/n/a%0db", "/tmp/n/a\rb"), ("/tmp/n/ünï 文", "/tmp/n/ünï 文"),
    ("/tmp/n/a%41b", "/tmp/n/a%41b"), ("/tmp/n/a%2", "/tmp/n/a%2"),
    ("/tmp/n/back\\slash", "/tmp/n/back\\slash"), ('/tmp/n/q\\"q', '/tmp/n/q"q'),
    ("/tmp/n/semi; name=x", "/tmp/n/semi; name=x"), ("n/relative", "/home/user/n/relative"),
    ("~/n/tilde", "/home/user/n/tilde")])
def test_names_of_parts(one, written, path):
    good(one.post(form((written, path.encode()))), path)
    assert one.read(path) == path.encode()


def test_names_by_the_other_standard(one):
    body = form(("form-data; name=file; filename*=utf-8''%2Ftmp%2Fn%2F%e6%96%87.txt", b"1"),
                ("form-data; NAME=file; FileName=/tmp/n/plain", b"2"))
    good(one.post(body), "/tmp/n/文.txt", "/tmp/n/plain")


def test_contents_that_look_like_a_boundary(one):
    near = [b"\r\n--" + BOUNDARY.encode()[:-1], b"\r\n-", b"\r\n", b"\r", b"--" + BOUNDARY.encode(),
            b"\r\r\n\r\n--", b"\n--" + BOUNDARY.encode() + b"--", b"\0" * 100]
    data = b"".join(near) * 3 + b"\r"
    good(one.post(form(("/tmp/near", data), ("/tmp/near2", b"\r\n"))), "/tmp/near", "/tmp/near2")
    assert one.read("/tmp/near") == data and one.read("/tmp/near2") == b"\r\n"


def test_boundaries_cut_at_every_position(one):
    data = b"ab\r\n--B\r\n-"
    body = form(("/tmp/cut", data), ("/tmp/cut2", b""), boundary="Bx")
    for cut in range(1, len(body)):
        answer = one.post(None, pieces=[body[:cut], body[cut:]], boundary="Bx")
        assert answer.status == 200, (cut, answer)
        assert len(answer.json()) == 2
    good(one.post(None, pieces=chunks(body, 1), boundary="Bx"), "/tmp/cut", "/tmp/cut2")
    assert one.read("/tmp/cut") == data and one.read("/tmp/cut2") == b""


def test_preamble_and_epilogue(one):
    body = b"this is\r\nfor old programs\r\n" + form(("/tmp/pre", b"1")) + b"and so is\r\n--this"
    good(one.post(body), "/tmp/pre")
    quoted = {"Content-Type": f'multipart/form-data; charset=utf-8; boundary="{BOUNDARY}"'}
    good(one.post(form(("/tmp/pre", b"2")), headers=quoted), "/tmp/pre")


# ---- hostile forms ----


def test_a_form_that_is_cut_off(one):
    one.put("/tmp/old", b"old")
    whole = form(("/tmp/first", b"1"), ("/tmp/old", b"new contents"))
    for cut in (len(whole) - 5, len(whole) - 40, len(whole) - 60):
        bad(one.post(whole[:cut]), 400, "cut off")
    assert one.read("/tmp/first") == b"1", "what was complete stays"
    assert one.read("/tmp/old") == b"old"
    bad(one.post(b""), 400, "cut off")
    bad(one.post(b"nothing of a form"), 400, "cut off")


def test_a_nested_form_is_contents(one):
    inner = form(("/tmp/inner", b"x"), boundary="other")
    good(one.post(form(("/tmp/outer", inner))), "/tmp/outer")
    assert one.read("/tmp/outer") == inner
    bad(one.get("/tmp/inner"), 404)
    bad(one.post(form(("/tmp/outer2", form(("/tmp/i", b"x"), boundary=BOUNDARY + "x")))), 400)


def test_a_hundred_thousand_parts(one):
    """They cost what they are long."""
    body = form(*[('form-data; name="x"', b"")] * 100_000, ("/tmp/many", b"here"))
    good(one.post(body), "/tmp/many")


def test_headers_without_end(one, server):
    for start in (b"X-Long: ", b'Content-Disposition: form-data; name="file"; filename="'):
        body = b"--" + BOUNDARY.encode() + b"\r\n" + start + b"a" * MIB
        bad(one.post(body), 413, "headers")
    body = b"--" + BOUNDARY.encode() + b"\r\n" + b"a: b\r\n" * 100_000
    bad(one.post(body), 413, "headers")


@pytest.mark.parametrize("head", [
    b'Content-Disposition: form-data; name="file"; filename="/tmp/h\0x"',
    b'Content-Disposition: form-data; name="file"; filename="/tmp/h"\0',
    b"Content-Disposition: form-data; name=file; filename*=utf-8''/tmp/h%00x",
    b'Content-Disposition: form-data; name="file"; filename="/tmp/\xff"',
    b'Content-Disposition: form-data; name="file"; filename="/tmp/h',
    b'Content-Disposition: form-data; name="file"; filename="/tmp/h" x',
    b'Content-Disposition: form-data; name="file"; filename="/tmp/h"; filename="/tmp/h2"',
    b'Content-Disposition: attachment; name="file"; filename="/tmp/h"',
    b'Content-Disposition: form-data; name="file";\r\n filename="/tmp/h"',
    b'Content-Disposition: form-data; name="file"; filename="/tmp/h"\nX: y',
    b'Content-Disposition: form-data; name="file"; filename="/tmp/h"\rX: y',
    b'Content-Disposition : form-data; name="file"; filename="/tmp/h"',
    b'Content-Disposition: form-data; name="file"; filename="/tmp/h"\r\n'
    b'Content-Disposition: form-data; name="file"; filename="/tmp/h"',
    b'Content-Disposition: form-data; name="file"; filename="/tmp/h"\r\n'
    b"Content-Transfer-Encoding: base64",
    b": x", b"no colon", b"\0"])
def test_headers_of_parts_that_are_wrong(one, head):
    body = b"--" + BOUNDARY.encode() + b"\r\n" + head + b"\r\n\r\nx\r\n--" + BOUNDARY.encode() + b"--"
    bad(one.post(body), 400, "malformed")
    bad(one.get("/tmp/h"), 404)


def test_a_later_failure_leaves_what_was_written(one):
    answer = one.post(form(("/tmp/l1", b"1"), ("/etc/l2", b"2"), ("/tmp/l3", b"3")))
    assert "/etc/l2" in bad(answer, 403)
    assert one.read("/tmp/l1") == b"1"
    bad(one.get("/tmp/l3"), 404)


# ---- packed bodies ----


def test_gzip(one):
    data = os.urandom(MIB) + b"x" * MIB
    packed = {"Content-Encoding": "gzip"}
    good(one.put("/tmp/g1", gzip.compress(data), headers=packed), "/tmp/g1")
    assert one.read("/tmp/g1") == data
    good(one.put("/tmp/g2", None, headers=packed, pieces=chunks(gzip.compress(data), 999)),
         "/tmp/g2")
    assert one.read("/tmp/g2") == data
    good(one.post(gzip.compress(form(("/tmp/g3", data), ("/tmp/g4", b""))), headers=packed),
         "/tmp/g3", "/tmp/g4")
    assert one.read("/tmp/g3") == data and one.read("/tmp/g4") == b""
    good(one.put("/tmp/g5", gzip.compress(b""), headers=packed), "/tmp/g5")
    assert one.read("/tmp/g5") == b""
    two = gzip.compress(b"one ") + gzip.compress(b"two")
    good(one.put("/tmp/g6", two, headers=packed), "/tmp/g6")
    assert one.read("/tmp/g6") == b"one two"
    small = gzip.compress(b"each byte alone")
    good(one.put("/tmp/g7", None, headers=packed, pieces=chunks(small, 1)), "/tmp/g7")
    assert one.read("/tmp/g7") == b"each byte alone"
    good(one.put("/tmp/g8", b"as it is", headers={"Content-Encoding": "identity"}), "/tmp/g8")


def packed(data):
    """Without the time: the bytes are part of a test's name, which two workers must agree on."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize("body", [
    b"", b"no gzip at all", packed(b"x" * 1000)[:-1], packed(b"x" * 1000)[:-9],
    packed(b"x") + b"trailing", packed(b"x") + b"\0", packed(b"x") + b"\x1f",
    zlib.compress(b"zlib's own"), packed(b"x" * 100)[:-8] + b"\0" * 8])
def test_gzip_that_is_wrong(one, body):
    one.put("/tmp/gold", b"old")
    bad(one.put("/tmp/gold", body, headers={"Content-Encoding": "gzip"}), 400, "gzip")
    assert one.read("/tmp/gold") == b"old"


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "zstd", "gzip, br"])
def test_other_encodings(one, coding):
    bad(one.put("/tmp/coding", b"x", headers={"Content-Encoding": coding}), 400, "Content-Encoding")


def zeros(count):
    """`count` MiB of zeros, packed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(MIB)) for _ in range(count)) + packer.flush()


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS:")) << 10


class Peak:
    """The most memory that the daemon was seen with."""

    def __init__(self, server):
        self.pid = server.daemon()
        self.before = self.peak = resident(self.pid)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)

    def look(self):
        while not self.ended.wait(0.01):
            self.peak = max(self.peak, resident(self.pid))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    @property
    def grown(self):
        return self.peak - self.before


def test_a_bomb_ends_without_memory(one, server):
    """384 MiB of zeros are 384 KB: more than what is unpacked in any case."""
    bomb = zeros(64) * 6
    with Peak(server) as memory:
        answer = one.put("/tmp/bomb", bomb, headers={"Content-Encoding": "gzip"})
    assert answer.status in (413, 507), answer
    bad(answer, answer.status)
    assert memory.grown < 32 * MIB, memory.grown
    bad(one.get("/tmp/bomb"), 404)
    assert one.box.out("ls -A /tmp | grep -c paddock- || true").strip() == "0"


def test_large_uploads_take_no_memory(one, server):
    size = 200 * MIB
    piece = os.urandom(MIB)
    want = hashlib.sha256(piece * 200).hexdigest()
    head = form(("/tmp/large", b"PUT"))
    start, end = head[:head.index(b"PUT")], head[head.index(b"PUT") + 3:]
    with Peak(server) as memory:
        good(one.put("/tmp/large", (piece for _ in range(200)),
                     headers={"Content-Length": str(size)}), "/tmp/large")
        assert one.box.out("sha256sum /tmp/large").split()[0] == want
        good(one.put("/tmp/large", None, pieces=(piece for _ in range(200))), "/tmp/large")
        assert one.box.out("sha256sum /tmp/large").split()[0] == want
        body = (p for p in [start, *[piece] * 200, end])
        good(one.post(None, pieces=body), "/tmp/large")
        assert one.box.out("sha256sum /tmp/large").split()[0] == want
        connection = http.client.HTTPConnection(one.api.host, one.api.port, timeout=seconds(60))
        connection.request("GET", one.url(path="/tmp/large"), headers=one.headers)
        answer, seen = connection.getresponse(), hashlib.sha256()
        while data := answer.read(MIB):
            seen.update(data)
        connection.close()
        assert seen.hexdigest() == want
    assert memory.grown < 32 * MIB, memory.grown
    one.box.out("rm /tmp/large")


# ---- metadata ----


def attributes(envd, path):
    text = envd.box.out(
        "python3 -c 'import os,sys,json; p=sys.argv[1]; print(json.dumps("
        f"{{n: os.getxattr(p, n).decode() for n in os.listxattr(p)}}))' {path}")
    return json.loads(text)


def test_metadata_becomes_attributes(one):
    answer = one.put("/tmp/meta", b"1", headers={"X-Metadata-Author": "mish", "x-metadata-k-2": "v v"})
    good(answer, "/tmp/meta", metadata={"author": "mish", "k-2": "v v"})
    assert attributes(one, "/tmp/meta") == {"user.e2b.author": "mish", "user.e2b.k-2": "v v"}
    # All former ones go.
    good(one.post(form(("/tmp/meta", b"2")), headers={"X-Metadata-New": "x"}), "/tmp/meta",
         metadata={"new": "x"})
    assert attributes(one, "/tmp/meta") == {"user.e2b.new": "x"}
    good(one.put("/tmp/meta", b"3"), "/tmp/meta")
    assert attributes(one, "/tmp/meta") == {}
    body = form(("/tmp/meta1", b"1"), ("/tmp/meta2", b"2"))
    good(one.post(body, headers={"X-Metadata-A": "b"}), "/tmp/meta1", "/tmp/meta2",
         metadata={"a": "b"})
    assert attributes(one, "/tmp/meta2") == {"user.e2b.a": "b"}
    good(one.put("/tmp/meta", b"4", headers={"X-Metadata-" + "k" * 246: "v"}), "/tmp/meta",
         metadata={"k" * 246: "v"})


@pytest.mark.parametrize("headers,says", [
    ({"X-Metadata-" + "k" * 247: "v"}, "246"), ({"X-Metadata-": "v"}, "key"),
    ({"X-Metadata-A": "v" * 4096}, "4096"), ({"X-Metadata-A": "tab\there"}, "printable"),
    ({"X-Metadata-A": "\xfcml"}, "printable"),
    ({f"X-Metadata-{n}": "v" * 500 for n in range(10)}, "4096")])
def test_metadata_that_is_refused(one, headers, says):
    bad(one.put("/tmp/refused", b"x", headers=headers), 400, says)
    bad(one.post(form(("/tmp/refused", b"x")), headers=headers), 400, says)
    bad(one.get("/tmp/refused"), 404)


# ---- who vanishes, who comes at the same time ----


@pytest.mark.parametrize("kind", ["octets", "chunked", "form", "gzip"])
def test_a_client_that_vanishes_changes_nothing(one, kind):
    path = f"/tmp/vanish-{kind}"
    one.put(path, b"old")
    with one.raw() as s:
        if kind == "octets":
            s.sendall(one.head("POST", f"/files?path={path}", Content_Length=1000, **OCTETS))
            s.sendall(b"x" * 999)
        elif kind == "gzip":
            s.sendall(one.head("POST", f"/files?path={path}", Content_Length=2000,
                               Content_Encoding="gzip", **OCTETS) + gzip.compress(b"x" * 1000))
        elif kind == "chunked":
            s.sendall(one.head("POST", f"/files?path={path}", Transfer_Encoding="chunked",
                               **OCTETS) + b"3\r\nabc\r\n")
        else:
            body = form((path, b"x" * 1000))
            s.sendall(one.head("POST", "/files", Content_Length=len(body), **form_type()))
            s.sendall(body[:-30])
        wait_for(lambda: one.box.exec("pgrep paddock-worker")["exit_code"] == 0, 20, "a worker writes")
    wait_for(lambda: one.box.exec("pgrep paddock-worker")["exit_code"] == 1, 20, "workers end")
    assert one.read(path) == b"old"
    assert one.box.out("ls -A /tmp | grep -c paddock- || true").strip() == "0"


def test_uploads_to_one_path_at_once(one):
    """One of them wins, whole."""
    texts = [bytes([65 + n]) * 300_000 for n in range(8)]

    def put(n):
        if n % 2:
            return one.put("/tmp/race", texts[n])
        return one.post(form(("/tmp/race", texts[n])))

    for answer in together(8, put):
        good(answer, "/tmp/race")
    assert one.read("/tmp/race") in texts


def test_a_connection_is_good_for_another_request(one):
    with one.raw() as s:
        for n in range(3):
            body = form((f"/tmp/again{n}", b"x" * n))
            s.sendall(one.head("POST", "/files", Content_Length=len(body), **form_type()) + body)
            answer = http.client.HTTPResponse(s)
            answer.begin()
            assert answer.status == 200, answer.read()
            answer.read()
            s.sendall(one.head("POST", "/files?path=/tmp/again", Content_Length=3,
                               Content_Encoding="gzip", **OCTETS) + b"bad")
            answer = http.client.HTTPResponse(s)
            answer.begin()
            assert answer.status == 400, answer.read()
            answer.read()


def test_expect_100_continue(one):
    with one.raw() as s:
        body = form(("/tmp/expect", b"1"))
        s.sendall(one.head("POST", "/files", Content_Length=len(body), Expect="100-continue",
                           **form_type()))
        assert s.recv(100).startswith(b"HTTP/1.1 100 ")
        s.sendall(body)
        answer = http.client.HTTPResponse(s)
        answer.begin()
        assert answer.status == 200, answer.read()
    with one.raw() as s:
        s.sendall(one.head("POST", "/files?username=nobody", Content_Length=len(body),
                           Expect="100-continue", **form_type()))
        assert s.recv(100).startswith(b"HTTP/1.1 401 ")


def test_writes_are_seen_by_who_watches(one):
    """Replacing is no writing for the kernel: it is told nevertheless, under the file's name.
    IN_MODIFY; the kernel calls files #N that have no name yet."""
    one.box.out("mkdir -p /tmp/watched && touch /tmp/watched/old")
    script = ("import ctypes,os,struct,sys\n"
              "c=ctypes.CDLL(None)\n"
              "fd=c.inotify_init(); c.inotify_add_watch(fd,b'/tmp/watched',2)\n"
              "print('ready',flush=True)\n"
              "while True:\n"
              "  d=os.read(fd,65536)\n"
              "  while d:\n"
              "    n=struct.unpack('iIII',d[:16])[3]\n"
              "    name=d[16:16+n].rstrip(b'\\0').decode(); d=d[16+n:]\n"
              "    if name[0]!='#': print(name,flush=True)\n")
    one.put("/tmp/watch.py", script.encode())
    process = one.box.start("exec python3 /tmp/watch.py")["process_id"]
    one.box.wait_output(process, b"ready\n")
    good(one.put("/tmp/watched/old", b"1"), "/tmp/watched/old")
    good(one.post(form(("/tmp/watched/new", b"2"))), "/tmp/watched/new")
    one.box.wait_output(process, b"ready\nold\nnew\n")
    one.box.signal(process, "SIGKILL")


# ---- no room ----


def test_no_room_is_507(server, api, make_sandbox):
    envd = Envd(server, api, make_sandbox(limits={"disk_bytes": 32 * MIB}))
    data = os.urandom(MIB) * 64
    bad(envd.put("/home/user/big", data), 507)
    bad(envd.post(form(("/home/user/big", data))), 507)
    bad(envd.put("/home/user/big", zeros(64), headers={"Content-Encoding": "gzip"}), 507)
    good(envd.put("/home/user/small", b"x"), "/home/user/small")


# ---- compose ----


def compose(envd, **body):
    return envd.ask("POST", "/files/compose", json.dumps(body), {"Content-Type": "application/json"})


def test_compose(one):
    for n in range(3):
        one.put(f"/tmp/parts/{n}", bytes([65 + n]) * 1000 * n)
    answer = compose(one, source_paths=["/tmp/parts/2", "/tmp/parts/0", "/tmp/parts/1"],
                     destination="/tmp/composed/whole")
    assert answer.status == 200, answer
    assert answer.json() == {"path": "/tmp/composed/whole", "name": "whole", "type": "file"}
    assert one.read("/tmp/composed/whole") == b"C" * 2000 + b"B" * 1000
    assert one.box.out("ls /tmp/parts") == "", "the parts are used up"
    assert one.box.out("stat -c '%U %a' /tmp/composed/whole").strip() == "user 644"


def test_compose_refuses(one):
    one.put("/tmp/c/a", b"a")
    one.put("/tmp/c/old", b"old")
    one.box.out("ln -sf a /tmp/c/link")
    bad(compose(one, source_paths=[], destination="/tmp/c/x"), 400, "source_paths")
    bad(compose(one, source_paths=["/tmp/c/a"]), 400, "destination")
    bad(compose(one, destination="/tmp/c/x"), 400, "source_paths")
    bad(compose(one, source_paths=["/tmp/c/a", "/tmp/c/none"], destination="/tmp/c/old"), 404)
    bad(compose(one, source_paths=["/tmp/c/a", "/tmp/c"], destination="/tmp/c/old"), 400)
    bad(compose(one, source_paths=["/tmp/c/a"], destination="/tmp/c/a"), 400, "same")
    bad(compose(one, source_paths=["/tmp/c/link"], destination="/tmp/c/a"), 400)
    bad(compose(one, source_paths=["/tmp/c/a"], destination="/tmp/c/x", username="eve"), 401)
    bad(compose(one, source_paths=["/tmp/c/a"], destination="/etc/x"), 403)
    assert one.read("/tmp/c/a") == b"a" and one.read("/tmp/c/old") == b"old"


# ---- tokens and links ----


def test_who_may(one):
    none = http.client.HTTPConnection(one.api.host, one.api.port, timeout=seconds(30))
    where = {"E2b-Sandbox-Id": one.sandbox, "E2b-Sandbox-Port": "49983"}
    for headers in (where, {**where, "X-Access-Token": one.token[:-1] + "x"}):
        for method, body in (("GET", None), ("POST", b"x")):
            none.request(method, "/files?path=/tmp/token", body, {**headers, **OCTETS})
            answer = none.getresponse()
            assert answer.status == 401, answer.read()
            assert json.loads(answer.read())["code"] == 401
    none.close()
    bad(one.get("/tmp/token"), 404)


def test_links(one):
    def sign(path, what, user="", expires=None):
        text = f"{path}:{what}:{user}:{one.token}" + (f":{expires}" if expires else "")
        digest = hashlib.sha256(text.encode()).digest()
        query = {"path": path, "signature": "v1_" + base64.b64encode(digest).decode().rstrip("=")}
        if user:
            query["username"] = user
        if expires:
            query["signature_expiration"] = expires
        return "/files?" + urlencode(query)

    def visit(method, url, body=None, headers=None):
        connection = http.client.HTTPConnection(one.api.host, one.api.port, timeout=seconds(30))
        connection.request(method, url, body, headers or {})
        answer = connection.getresponse()
        answer = Response(answer.status, answer.getheaders(), answer.read())
        connection.close()
        return answer

    body = form(('form-data; name="file"', b"by a link"))
    good(visit("POST", sign("/tmp/linked", "write"), body, form_type()), "/tmp/linked")
    assert visit("GET", sign("/tmp/linked", "read")).body == b"by a link"
    soon = int(time.time()) + 60
    assert visit("GET", sign("/tmp/linked", "read", "user", soon)).body == b"by a link"
    bad(visit("GET", sign("/tmp/linked", "read", "user", 1)), 401, "expired")
    bad(visit("GET", sign("/tmp/linked", "write")), 401, "invalid signature")
    # A link of the user's does not become one of root's.
    basic = {"Authorization": "Basic " + base64.b64encode(b"root:").decode()}
    bad(visit("GET", sign(SECRET, "read"), headers=basic), 403)
    bad(visit("GET", sign(SECRET, "read") + "&username=root"), 401, "invalid signature")
