"""Files by the sync SDK, and links that carry a signature."""

import io
import urllib.error
import urllib.request

import e2b
import pytest

BYTES = bytes((n * 7 + (n >> 8)) & 255 for n in range(300_000))


def test_write_and_read(sandbox):
    info = sandbox.files.write("notes/ä b.txt", "text ä €\n")
    assert (info.path, info.name) == ("/home/user/notes/ä b.txt", "ä b.txt")
    assert sandbox.files.read("notes/ä b.txt") == "text ä €\n"
    sandbox.files.write("bytes", BYTES)
    assert bytes(sandbox.files.read("bytes", format="bytes")) == BYTES
    sandbox.files.write("stream", io.BytesIO(BYTES))
    assert b"".join(sandbox.files.read("stream", format="stream")) == BYTES
    sandbox.files.write("empty", "")
    assert sandbox.files.read("empty") == ""
    sandbox.files.write("packed", "z" * 500_000, gzip=True)
    assert sandbox.files.read("packed", gzip=True) == "z" * 500_000
    sandbox.files.write("octets", BYTES, use_octet_stream=True)
    assert bytes(sandbox.files.read("octets", format="bytes")) == BYTES


def test_several_files_at_once(sandbox):
    infos = sandbox.files.write_files([
        {"path": "one", "data": "1"}, {"path": "/tmp/deep/two", "data": b"22"}])
    assert [i.path for i in infos] == ["/home/user/one", "/tmp/deep/two"]
    assert sandbox.files.read("/tmp/deep/two") == "22"


def test_directories_and_entries(sandbox):
    assert sandbox.files.make_dir("d/b") is True
    assert sandbox.files.make_dir("d/b") is False
    sandbox.files.write("d/b/x", "12345")
    sandbox.files.write("d/a", "a")
    assert [e.path for e in sandbox.files.list("d")] == ["/home/user/d/a", "/home/user/d/b"]
    assert [e.name for e in sandbox.files.list("d", depth=2)] == ["a", "b", "x"]
    info = sandbox.files.get_info("d/b/x")
    assert (info.type, info.size, info.owner, info.permissions) == (
        e2b.FileType.FILE, 5, "user", "-rw-r--r--")
    assert sandbox.files.exists("d/b/x") is True
    assert sandbox.files.rename("d/b/x", "e/y").path == "/home/user/e/y"
    assert sandbox.files.exists("d/b/x") is False
    sandbox.files.remove("d")
    assert sandbox.files.exists("d") is False


def test_errors_have_their_class(sandbox):
    for call in (sandbox.files.read, sandbox.files.list, sandbox.files.get_info):
        with pytest.raises(e2b.FileNotFoundException):
            call("nothing")
    with pytest.raises(e2b.InvalidArgumentException):
        sandbox.files.read("/tmp")
    with pytest.raises(e2b.InvalidArgumentException):
        sandbox.files.list("/etc/passwd")


def test_metadata(sandbox):
    info = sandbox.files.write("m", "x", metadata={"author": "me", "purpose": "a test"})
    assert info.metadata == {"author": "me", "purpose": "a test"}
    assert sandbox.files.get_info("m").metadata == {"author": "me", "purpose": "a test"}
    sandbox.files.write("m", "y")
    assert not sandbox.files.get_info("m").metadata


def test_watch(sandbox, until):
    sandbox.files.make_dir("w")
    handle = sandbox.files.watch_dir("w", recursive=True)
    sandbox.files.write("w/f", "1")
    # What was done before is seen by the next question, without waiting.
    events = [(e.type, e.name) for e in handle.get_new_events()]
    assert (e2b.FilesystemEventType.CREATE, "f") in events
    assert (e2b.FilesystemEventType.WRITE, "f") in events
    assert handle.get_new_events() == []
    sandbox.files.make_dir("w/sub")
    until("the directory", lambda: any(e.name == "sub" for e in handle.get_new_events()))
    sandbox.files.write("w/sub/g", "1")
    until("the file", lambda: any(e.name == "sub/g" for e in handle.get_new_events()))
    handle.stop()
    with pytest.raises(e2b.SandboxException):
        handle.get_new_events()
    with pytest.raises(e2b.FileNotFoundException):
        sandbox.files.watch_dir("nothing")


def fetch(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_signed_links(sandbox):
    sandbox.files.write("secret", "of the sandbox")
    link = sandbox.download_url("secret", use_signature_expiration=60)
    assert fetch(link) == (200, b"of the sandbox")
    late = sandbox.download_url("secret", use_signature_expiration=-60)
    status, said = fetch(late)
    assert status == 401 and b"expired" in said
    status, said = fetch(link.replace("path=secret", "path=%2Fetc%2Fshadow"))
    assert status == 401 and b"invalid signature" in said


def test_git_works_in_it(sandbox):
    sandbox.commands.run("git init -q repo && cd repo && git config user.email a@example.test && "
                         "git config user.name a && touch f && git add f && git commit -qm first")
    assert sandbox.commands.run("git -C repo log --format=%s").stdout == "first\n"
