"""Images without a container engine: what is imported runs, and nothing that an archive holds gets out."""

import contextlib
import gzip
import io
import json
import os
import random
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
from pathlib import Path

import pytest

from paddock_testing import host, images
from paddock_testing import run as paddock
from paddock_testing.images import directory, entry, layer, link, saved

pytestmark = [
    pytest.mark.skipif(not images.has_static_busybox(), reason="there is no static busybox"),
    pytest.mark.skipif(not (Path(paddock.PADDOCK).parent / "paddock-remote").exists(),
                       reason="there is no paddock-remote beside paddock"),
]
ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="needs root")


class Store:
    """A store of images of the test's own, used by its owner or by an ordinary user."""

    def __init__(self, place, uid=None):
        self.place, self.uid = place, uid
        self.state = place / "state"
        self.env = {"PADDOCK_STATE_DIR": str(self.state), "PADDOCK_RUN_DIR": str(place / "run")}
        self.who = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}

    def command(self, *words):
        return {"args": [paddock.PADDOCK, *map(str, words)], "stdin": subprocess.DEVNULL,
                "env": paddock.clean_environment(self.env), **self.who}

    def call(self, *words):
        return subprocess.run(**self.command(*words), capture_output=True, text=True, check=False,
                              timeout=paddock.seconds(60))

    def ok(self, *words):
        done = self.call(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def put(self, *layers, **more):
        """Imports an image of busybox and these layers."""
        return self.ok("image", "import", saved(self.place / "image.tar", [images.base(), *layers], **more))

    def sh(self, line, *options):
        return self.ok("run", "--image", "demo:1", *options, "--", "/bin/sh", "-c", line)

    def refused(self, *layers, **more):
        """Imports an image that is refused; nothing of it but good layers stays. Why."""
        done = self.call("image", "import", saved(self.place / "bad.tar", layers, **more))
        assert done.returncode in (2, 125) and done.stderr.splitlines()[-1].startswith("paddock: "), done
        self.check_whole()
        assert "demo" not in self.ok("image", "ls")
        return done.stderr

    def layers(self):
        return sorted(one.name for one in (self.state / "images" / "layers").iterdir())

    def check_whole(self):
        """There is no layer but under its digest."""
        assert all(len(name) == 64 for name in self.layers()), self.layers()


@pytest.fixture
def place():
    """On a disk, where marks of an overlay can be kept and owners be shown."""
    place = Path(tempfile.mkdtemp(prefix="paddock-images-", dir="/var/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def store(place):
    return Store(place)


@pytest.fixture
def theirs(place):
    """The store of somebody who is not root."""
    if not ROOT:
        return Store(place)
    os.chown(place, 1000, 1000)
    return Store(place, 1000)


def test_an_image_is_imported_listed_shown_and_removed(store):
    assert store.put(Cmd=["/bin/sh", "-c", "echo own"], WorkingDir="/etc").startswith("sha256:")
    assert store.ok("image", "ls").startswith("docker.io/library/demo:1 ")
    shown = json.loads(store.ok("image", "inspect", "demo:1"))
    assert shown["cmd"][2] == "echo own" and shown["workdir"] == "/etc" and len(shown["layers"]) == 1
    assert store.ok("run", "--image", "demo:1") == "own\n"
    assert store.ok("run", "--image", shown["id"][:12], "--", "/bin/pwd") == "/etc\n"
    store.ok("image", "rm", "demo:1")
    assert store.ok("image", "ls") == "" and store.layers() == []


def test_layers_hide_replace_and_remove_what_is_below(store):
    low = layer(directory("d"), entry("d/a", b"a"), entry("d/b", b"b"), directory("o"), entry("o/x", b"x"),
                directory("r"), entry("r/y", b"y"), entry("gone", b"1"), entry("file", b"old"))
    high = layer(entry("d/.wh.a"), entry("o/.wh..wh..opq"), directory("o"), entry("o/new", b"n"),
                 entry(".wh.gone"), entry("file", b"new"), entry(".wh.r"), directory("r"), entry("r/z", b"z"))
    store.put(low, high)
    assert store.sh("ls /d /o /r; cat /file; ls /gone 2>&1; true").split() == (
        ["/d:", "b", "/o:", "new", "/r:", "z", "newls:", "/gone:", "No", "such", "file", "or", "directory"])


def test_layers_are_shared_and_go_with_the_last_image(store):
    store.put(layer(entry("one", b"1")))
    done = store.call("image", "import", saved(store.place / "b.tar", [images.base(), layer(entry("two"))], name="other:2"))
    assert done.returncode == 0 and "is there" in done.stderr and len(store.layers()) == 3
    store.ok("image", "rm", "demo:1")
    assert len(store.layers()) == 2
    # A layer of an import that failed later on is nobody's, and goes with the next removal.
    store.refused(layer(entry("orphan")), layer(entry("../x")))
    assert len(store.layers()) == 3
    store.put()
    store.ok("image", "rm", "demo:1")
    assert len(store.layers()) == 2
    assert store.ok("run", "--image", "other:2", "--", "/bin/ls", "/two") == "/two\n"


@needs_root
def test_owners_modes_and_users_are_the_image_s(store):
    store.put(layer(entry("mine", b"x", uid=1234, gid=5, mode=0o640), entry("su", b"", mode=0o4755)), User="bob")
    assert store.sh("stat -c %u:%g:%a /mine /su; id -u; id -g") == "1234:5:640\n0:0:4755\n1234\n1235\n"
    assert store.sh("id -u", "--user", "root") == "0\n"


@pytest.mark.parametrize("user, why", [("60000", "own init"), ("nobody-here", "/etc/passwd"), ("70000", "user")])
@needs_root
def test_users_that_cannot_be_are_refused(store, user, why):
    store.put(User=user)
    done = store.call("run", "--image", "demo:1", "--", "/bin/true")
    assert done.returncode == 2 and why in done.stderr, done.stderr
    assert store.sh("id -u", "--user", "1000") == "1000\n"


def test_without_root_all_is_the_user_s(theirs):
    theirs.put(layer(entry("file", b"hello", uid=77, mode=0o600), directory("d")),
               layer(entry(".wh.file"), entry("d/.wh..wh..opq"), entry("new", b"n")), User="bob")
    assert theirs.sh("id -u; cat /new; ls /file 2>/dev/null || echo gone") == "1000\nngone\n"


@pytest.mark.parametrize("kind", ["", "gzip", pytest.param("zstd", marks=pytest.mark.skipif(
    not shutil.which("zstd"), reason="there is no zstd"))])
def test_oci_layouts(store, kind):
    path = images.layout(store.place / "oci.tar", [images.base(), layer(entry("f", b"1"))], kind=kind, name="x.example/a:1")
    store.ok("image", "import", path)
    assert store.ok("run", "--image", "x.example/a:1", "--", "/bin/cat", "/f") == "1"
    store.ok("image", "import", "--name", "short", path)
    assert store.ok("run", "--image", "short", "--", "/bin/cat", "/f") == "1"


def test_as_many_layers_as_an_image_may_have(store):
    def many(count):
        return [images.base(), *(layer(entry(f"f{at}", b"%d" % at), entry("all", b"%d" % at)) for at in range(1, count))]
    store.ok("image", "import", saved(store.place / "image.tar", many(127)))
    assert store.sh("cat /all /f1 /f64 /f126") == "126164126"
    store.ok("image", "rm", "demo:1")
    assert store.layers() == []
    assert "127" in store.refused(*many(128))


def unpacked(store, name="oci"):
    images.layout(store.place / "oci.tar", [images.base(), layer(entry("f", b"1"))], kind="", name="x.example/a:1")
    folder = store.place / name
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder), "-f", str(store.place / "oci.tar")], check=True, timeout=60)
    return folder


def test_a_directory_is_imported(store):
    folder = unpacked(store)
    (folder / "blobs" / "sha256" / "notes.txt").write_text("not a blob")  # is left out
    (folder / "secret").symlink_to("/etc/shadow")
    store.ok("image", "import", folder)
    assert store.ok("run", "--image", "x.example/a:1", "--", "/bin/cat", "/f") == "1"
    # Nothing of what it was packed into is left.
    assert {p.name for p in (store.state / "images").iterdir()} <= {"layers", "records", "blobs", "names", "names.lock", "lock"}


@pytest.mark.parametrize("how,says", [("empty", "oci-layout"), ("link", "index.json"), ("fifo", "not a file"),
                                      ("changed", "digest"), ("without", "blobs/sha256")])
def test_a_directory_that_is_no_image(store, how, says):
    folder = unpacked(store)
    blob = max((folder / "blobs" / "sha256").iterdir(), key=lambda p: p.stat().st_size)
    if how == "empty":
        (folder / "oci-layout").unlink()
    elif how == "link":  # nothing is read by a way that leads out
        (folder / "index.json").rename(store.place / "index.json")
        (folder / "index.json").symlink_to(store.place / "index.json")
    elif how == "fifo":
        blob.unlink()
        os.mkfifo(blob)
    elif how == "changed":
        blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    else:
        shutil.rmtree(folder / "blobs")
    done = store.call("image", "import", folder)
    assert done.returncode != 0 and says in done.stderr, done.stderr
    assert "x.example" not in store.ok("image", "ls")


@needs_root
@pytest.mark.skipif(not shutil.which("umoci"), reason="there is no umoci")
def test_the_tree_is_the_one_that_umoci_unpacks(store):
    """The oracle: owners, modes, links, contents and times of the whole tree."""
    layers = [images.base(), layer(directory("d", 0o750, uid=3, gid=4), entry("d/f", b"1" * 5000, mode=0o4711, uid=9),
              entry("d/h", kind=tarfile.LNKTYPE, link="d/f"), link("d/l", "../etc"), entry("p", kind=tarfile.FIFOTYPE),
              directory("e"), entry("e/x"), entry("e/y")),
              layer(entry("e/.wh.x"), directory("d", 0o750, uid=3, gid=4), entry("d/.wh.l"), directory("e", 0o711), entry("e/z", b"z", gid=7))]
    path = images.layout(store.place / "oci.tar", layers, name="latest")
    with tarfile.open(path) as tar:
        tar.extractall(store.place / "oci")
    subprocess.run(["umoci", "unpack", "--image", f"{store.place}/oci:latest", store.place / "bundle"], check=True,
                   capture_output=True)
    store.ok("image", "import", "--name", "demo:1", path)
    # All but what a jail brings itself.
    look = "find . -path ./proc -prune -o -path ./dev -prune -o -exec stat -c '%n %u:%g %a %F %s %Y %N' {} + | sort"
    theirs = subprocess.run(["/bin/busybox", "sh", "-c", look.replace("find", "busybox find", 1).replace(" stat", " busybox stat")],
                            cwd=store.place / "bundle" / "rootfs", check=True, capture_output=True, text=True).stdout
    ours = store.ok("run", "--image", "demo:1", "--user", "root", "--profile", "dev", "--", "/bin/sh", "-c",
                    "cd /; " + look.replace("| sort", ""))

    def lines(text):
        return sorted(line for line in text.splitlines() if line.split()[0] in wanted)
    wanted = {"./d", "./d/f", "./d/h", "./p", "./e", "./e/y", "./e/z", "./bin/busybox", "./bin/sh", "./etc", "./etc/passwd"}
    # Sizes of directories are the file system's, and modes of links mean nothing.
    assert [one for one in lines(ours) if "directory" not in one] == [one for one in lines(theirs) if "directory" not in one]
    assert [one.split()[:3] for one in lines(ours)] == [one.split()[:3] for one in lines(theirs)]
    assert "./d/l" not in ours and "./e/x" not in ours


# --- attacks: archives ------------------------------------------------------------------------

OUT = "escaped-by-a-layer"
HOSTILE = {
    "parents": ([entry(f"a/../../{OUT}")], "leads out"),
    "link, then through it": ([link("l", "/tmp"), entry(f"l/{OUT}")], "link"),
    "link to a parent": ([link("l", "../.."), entry(f"l/{OUT}")], "link"),
    "hard link out": ([entry("h", kind=tarfile.LNKTYPE, link=f"../../{OUT}")], "outside"),
    "hard link through a link": ([link("l", "/etc"), entry("h", kind=tarfile.LNKTYPE, link="l/passwd")], ""),
    "white-out of nothing": ([entry(".wh.")], "names nothing"),
    "white-out of ..": ([entry(".wh...")], "names nothing"),
    "white-out that is a directory": ([directory(".wh.x")], "no file"),
    "owner beyond all": ([entry("f", uid=70000)], "ids up to" if ROOT else None),
    "a path of 10^5 levels": ([entry("a/" * 100000 + "f")], "no path has so many"),
    "a file over a directory": ([directory("d"), entry("d/x"), entry("d")], ""),
    "a sparse file": ([entry("s", b"x" * 512, pax={"GNU.sparse.major": "1"})], "sparse"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_layers_are_refused(store, name):
    members, why = HOSTILE[name]
    if why is None:
        pytest.skip("needs root")
    assert why in store.refused(images.base(), layer(*members))
    found = [one for top in ("/tmp", "/var/tmp", str(store.place)) for one in Path(top).glob(OUT)]
    assert not found
    # The control: the same tool with a name that stays inside.
    store.put(layer(entry(OUT, b"in")))
    assert store.sh(f"cat /{OUT}") == "in"


def test_odd_names_and_members_mean_what_they_say_and_no_more(store):
    """Twice the same name: the last one. A FIFO is a FIFO whatever its name. What begins with .wh. hides nothing but its name."""
    store.put(layer(directory("d"), entry("d/a", b"kept"), entry("d/b", b"b"), entry("twice", b"1"), entry("twice", b"2"),
                    entry("f", b"file")),
              layer(entry("bin/rm", kind=tarfile.FIFOTYPE, mode=0o755), entry("d/.wh.b/c", b"x"),
                    entry(".wh..wh.plnk", b"aufs"), entry("d/.wh..wh.aufs", b"aufs"), entry("f/.wh..wh..opq")))
    assert store.sh("cat /d/a /twice; stat -c %F /bin/rm; ls /d/b /.wh..wh.plnk /d/.wh..wh.aufs 2>/dev/null; true") == "kept2fifo\n/d/b\n"


def test_sizes_that_no_file_has(store):
    """Negative, and of 8 EiB, in the form that GNU's tar writes large numbers in; the control is 4 in that form."""
    good = layer(entry("f", b"1234"))
    store.put(sized(good, bytes([0x80]) + bytes(10) + bytes([4])))
    assert store.sh("cat /f") == "1234"
    store.ok("image", "rm", "demo:1")
    for field in (b"\xff" * 12, bytes([0x80, 0, 0, 0, 0x7f]) + b"\xff" * 7, b"-1\0\0\0\0\0\0\0\0\0\0"):
        assert "not a tar archive" in store.refused(images.base(), sized(good, field)), field


def sized(data, field):
    """A layer whose first member says that it is so large."""
    head = bytearray(data[:512])
    head[124:136] = field
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + data[512:]


@pytest.mark.skipif(not os.environ.get("PADDOCK_NIGHTLY"), reason="at night: half a gigabyte")
def test_a_layer_with_more_entries_than_any_has(store):
    head = layer(directory("d"))[:512]
    assert "more than 1000000 entries" in store.refused(images.base(), head * 1000001 + bytes(1024))
    store.put(head * 1000 + bytes(1024))


def test_absolute_names_stay_inside(store):
    store.put(layer(entry("/abs", b"1"), entry("//etc//x", b"2")))
    assert store.sh("cat /abs /etc/x") == "12"
    assert not Path("/abs").exists()


def test_devices_and_marks_of_overlays_are_dropped(store):
    """An archive cannot make white-outs, nor name its own overlay attributes."""
    marks = {"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.user.overlay.redirect": "/etc",
             "SCHILY.xattr.security.capability": "x"}
    hole = entry("bin/cat", kind=tarfile.CHRTYPE)
    disk = entry("disk", kind=tarfile.BLKTYPE)
    disk[0].devmajor, disk[0].devminor = 8, 0
    info, data = directory("etc")
    info.pax_headers = marks
    store.put(layer(hole, disk, (info, data)))
    assert store.sh("ls /disk 2>/dev/null; cat /etc/passwd").startswith("root:")
    tree = store.state / "images" / "layers"
    names = {name for one in tree.glob("*/tree/**/*") for name in os.listxattr(one, follow_symlinks=False)}
    assert not [name for name in names if "overlay" in name or "capability" in name]


def test_white_outs_of_a_layer_cannot_leave_it(store):
    """Links of the layer itself in the way of a white-out are not followed."""
    victim = store.place / "victim"
    victim.mkdir()
    (victim / "file").write_text("safe")
    store.put(layer(link("l", str(victim)), entry("l/.wh.file"), entry("l/.wh..wh..opq")))
    assert (victim / "file").read_text() == "safe" and list(victim.iterdir()) == [victim / "file"]


@pytest.mark.parametrize("what", ["truncated", "twice", "trailing", "no gzip", "bomb"])
def test_packed_bytes_that_are_wrong(store, what):
    good = layer(entry("f", b"x" * 100000))
    packed = {"truncated": lambda: gzip.compress(good)[:-20], "twice": lambda: gzip.compress(gzip.compress(good)),
              "trailing": lambda: gzip.compress(good) + b"more", "no gzip": lambda: b"\x1f\x8b" + good,
              "bomb": bomb}[what]()
    assert store.refused(images.base(), good, packed=[images.base(), packed])
    store.put(good)


def bomb():
    """72 MiB of zeroes, 1:1000."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9) as to:
        for _ in range(72):
            to.write(bytes(1 << 20))
    return out.getvalue()


# --- attacks: digests -------------------------------------------------------------------------

def test_digests_are_checked(store):
    base, other = images.base(), layer(entry("f", b"other"))
    # Other bytes than the configuration promises.
    assert "was changed" in store.refused(base, layer(entry("f", b"1")), packed=[base, other])

    def swap(blobs, packed):
        blobs[images.sha(packed[1])] = gzip.compress(other)

    def longer(blobs, packed):
        blobs[images.sha(packed[1])] += b"x"

    def manifest(blobs, _):
        for digest, data in blobs.items():
            if b"schemaVersion" in data:
                blobs[digest] = data + b" "

    for change in (swap, longer, manifest):
        path = images.layout(store.place / "o.tar", [base, layer(entry("f", b"1"))], change=change)
        done = store.call("image", "import", path)
        assert done.returncode in (2, 125) and "digest" in done.stderr or "changed" in done.stderr, (change, done.stderr)
        store.check_whole()
    text = images.config([base]).replace(b"sha256:", b"sha512:")
    assert "sha512" in store.refused(base, text=text)
    text = images.config([base]).replace(images.sha(base).encode(), b"../../../../etc/passwd")
    assert "no digest" in store.refused(base, text=text)
    store.put()


@pytest.mark.parametrize("junk", [b"", b"no archive", b"\x1f\x8b\x08", bytes(10240)])
def test_files_that_are_no_images(store, junk):
    path = store.place / "junk"
    path.write_bytes(junk)
    done = store.call("image", "import", path)
    assert done.returncode == 2 and done.stderr.startswith("paddock: "), done
    assert store.call("image", "import", store.place).returncode == 2
    assert store.call("image", "import", store.place / "missing").returncode == 2


# --- attacks: images --------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["proc", "dev", "tmp", "workspace"])
def test_links_in_the_place_of_what_a_jail_needs(store, name):
    store.put(layer(link(name, "/etc")))
    done = store.call("run", "--image", "demo:1", "--", "/bin/true")
    assert done.returncode == 125 and name in done.stderr, done.stderr


@needs_root
@pytest.mark.parametrize("name", ["etc/passwd", "etc/resolv.conf", "etc/ssl", "etc/ssl/certs"])
def test_links_in_the_place_of_what_is_read_or_shown(store, name):
    """They lead to a file of the host's: nobody follows them outside, with the host's network neither."""
    victim = store.place / "victim"
    victim.mkdir()
    (victim / "file").write_text("the host's")
    for target in (f"{victim}/file", "../../../../../../../.." + str(victim), "/proc/1/root" + str(victim)):
        store.put(layer(link(name, target)), User="bob")
        done = store.call("run", "--image", "demo:1", "--", "/bin/true")  # whose user is looked up
        assert "not in its /etc/passwd" in done.stderr if name == "etc/passwd" else done.returncode == 0, done
        for network in ("none", "host"):
            done = store.call("run", "--image", "demo:1", "--user", "1000", "--network", network, "--", "/bin/sh", "-c",
                              f"cat /{name} /{name}/file; echo changed > /{name}; echo changed > /{name}/file; true")
            assert done.returncode in (0, 125) and "the host's" not in done.stdout, done
        store.ok("image", "rm", "demo:1")
    assert [one.read_text() for one in victim.iterdir()] == ["the host's"]


def test_variables_and_commands_of_an_image_stay_inside(store):
    store.put(Env=["PATH=/bin", "LD_PRELOAD=/evil.so", "TWO=a\nb"], Entrypoint=["/proc/1/exe"])
    assert store.sh('echo "$TWO"; echo $LD_PRELOAD') == "a\nb\n/evil.so\n"
    assert store.call("run", "--image", "demo:1").returncode in (125, 126, 127)
    assert store.sh("echo $TWO", "--env", "TWO=mine") == "mine\n"


@pytest.mark.parametrize("user", ["root", "user"])
def test_nothing_that_a_jail_does_changes_a_layer(store, user):
    if user == "root" and not ROOT:
        pytest.skip("needs root")
    store.put(layer(directory("d", 0o777), entry("d/f", b"kept", mode=0o666)))

    def look():
        return {str(one): (os.lstat(one), one.read_bytes() if one.is_file() else None)
                for one in (store.state / "images").glob("layers/*/tree/**/*")}
    before = {name: (st.st_mode, st.st_uid, st.st_ino, st.st_mtime, data) for name, (st, data) in look().items()}
    out = store.sh("echo x > /d/f; rm -rf /bin/ls /etc; touch /d/new; cat /d/f; ls /d", "--user", user)
    assert out.split()[0] == "x" if user == "root" else out
    after = {name: (st.st_mode, st.st_uid, st.st_ino, st.st_mtime, data) for name, (st, data) in look().items()}
    assert before == after
    assert store.sh("cat /d/f") == "kept"


def test_an_image_in_use_stays(store):
    store.put()
    with subprocess.Popen(**store.command("run", "--image", "demo:1", "--", "/bin/sh", "-c", "echo up; sleep 600"),
                          stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"up\n"
        done = store.call("image", "rm", "demo:1")
        assert done.returncode == 125 and "in use" in done.stderr
        running.terminate()
        running.wait(timeout=paddock.seconds(20))
    paddock.wait_for(lambda: store.call("image", "rm", "demo:1").returncode == 0, 10, "the image is free")
    assert store.layers() == []


def test_killed_imports_leave_no_layer_that_is_not_whole(store):
    """kill -9 at any point: what has its final name is whole, and the next import succeeds."""
    big = layer(*(entry(f"f{at}", os.urandom(20000)) for at in range(100)))
    path = saved(store.place / "image.tar", [images.base(), big])
    start = time.monotonic()
    store.ok("image", "import", path)
    took = time.monotonic() - start
    store.ok("image", "rm", "demo:1")
    for at in range(paddock.rounds(6, 200)):
        with subprocess.Popen(**store.command("image", "import", path), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(took * (at % 12 + 0.5) / 6)
            running.send_signal(signal.SIGKILL)
        for name in store.layers():
            if name == images.sha(big):
                tree = store.state / "images" / "layers" / name / "tree"
                assert sorted(one.stat().st_size for one in tree.iterdir()) == [20000] * 100
    store.ok("image", "import", path)
    assert store.sh("ls /f99") == "/f99\n"

    def is_clean():
        store.call("image", "rm", "none:0")  # which deletes what the killed ones left
        return all(len(name) == 64 for name in store.layers())
    # The jails of the last ones may take a moment to end.
    paddock.wait_for(is_clean, 20, "nothing is left of the killed imports")


def test_the_death_of_any_part_of_an_import_is_its_end(store):
    """kill -9 of what reads the file, of the jails that it and the layer are in, of what makes those: the import says so,
    nothing that is not whole is left, and the next one succeeds."""
    big = layer(*(entry(f"f{at}", os.urandom(20000)) for at in range(100)))
    path = saved(store.place / "image.tar", [images.base(), big])
    store.ok("image", "import", path)
    store.ok("image", "rm", "demo:1")
    failed, parts = 0, set()
    for at in range(paddock.rounds(8, 200)):
        with subprocess.Popen(**store.command("image", "import", path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True) as running:
            until = time.monotonic() + (at % 8) * 0.02
            found = []
            while running.poll() is None and (time.monotonic() < until or not found):
                found = host.descendants(running.pid)
            victim = random.choice(found) if found else None
            if victim:
                parts.add(host.command_line(victim)[:2][-1] if host.command_line(victim) else "")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            _, said = running.communicate(timeout=paddock.seconds(60))
        failed += running.returncode != 0
        assert running.returncode == 0 or said.splitlines()[-1].startswith("paddock: "), said
        for name in store.layers():
            if name == images.sha(big):
                tree = store.state / "images" / "layers" / name / "tree"
                assert sorted(one.stat().st_size for one in tree.iterdir()) == [20000] * 100
        store.ok("image", "import", path)
        assert store.sh("ls /f99") == "/f99\n"
        store.ok("image", "rm", "demo:1")
    assert failed, parts


def test_usage(store):
    for words, why in ((["image"], "valid are"), (["image", "rm"], "valid are"), (["image", "inspect", "no:1"], "no image"),
                       (["image", "import", "--bad", "x"], "unknown option"), (["image", "rm", "UPPER"], "UPPER"),
                       (["run", "--image", "none:1", "--", "true"], "no image"),
                       (["run", "--image", "x", "--root", "/", "--", "true"], "one of them")):
        done = store.call(*words)
        assert done.returncode in (2, 125) and why in done.stderr, (words, done.stderr)


def test_a_named_root_belongs_to_its_image(store):
    """It is kept on top of it, goes with no other, and keeps it from being removed."""
    store.put(layer(entry("mark", b"one\n")))
    image_id = json.loads(store.ok("image", "inspect", "demo:1"))["id"]
    name = ["--name", "kept"]
    try:
        assert store.sh("echo mine > /workspace/file; cat /mark", *name) == "one\n"
        assert store.sh("cat /workspace/file", *name) == "mine\n"
        assert store.call("image", "rm", "demo:1").stderr.endswith(f"image {image_id[:12]} is in use by root 'kept'\n")
        store.put(layer(entry("mark", b"two\n")))
        done = store.call("run", "--image", "demo:1", *name, "--", "/bin/true")
        assert done.returncode == 125 and f"made from image {image_id[:12]}" in done.stderr, done
        # Named by its id, or not at all, it is what it was.
        assert store.ok("run", "--image", image_id, *name, "--", "/bin/cat", "/mark") == "one\n"
        assert store.ok("run", *name, "--", "/bin/cat", "/mark", "/workspace/file") == "one\nmine\n"
        store.ok("run", "--name", "plain", "--", "/bin/true")
        done = store.call("run", "--image", "demo:1", "--name", "plain", "--", "/bin/true")
        assert done.returncode == 125 and "made without an image" in done.stderr, done
    finally:
        for root in ("kept", "plain"):
            store.call("root", "rm", root)
    store.ok("image", "rm", image_id)


def test_pruning_leaves_what_somebody_needs(store):
    store.put(layer(entry("mark", b"one\n")))
    first = json.loads(store.ok("image", "inspect", "demo:1"))["id"]
    store.put(layer(entry("mark", b"two\n")))  # the name moves on
    part = store.state / "images" / "blobs" / ("0" * 64 + ".part")
    part.write_bytes(b"half")
    store.call("image", "import", saved(store.place / "bad.tar", [layer(entry("orphan")), layer(entry("../x"))], name="bad:1"))
    assert len(store.layers()) == 4
    with subprocess.Popen(**store.command("run", "--image", first, "--", "/bin/sh", "-c", "echo up; cat /dev/null; sleep 1000"),
                          stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"up\n"
        assert store.ok("image", "prune") == "" and first[:12] in store.ok("image", "ls")
        assert len(store.layers()) == 3 and not part.exists()
        child.terminate()
    paddock.wait_for(lambda: store.ok("image", "prune") == f"sha256:{first}\n", 30, "the sandbox is gone")
    assert len(store.layers()) == 2 and store.sh("cat /mark") == "two\n"
    assert store.call("image", "prune", "x").returncode == 2


@pytest.mark.parametrize("how", ["rm", "room"])
def test_removals_race_against_starts(store, how):
    """A start has the whole image or is told that there is none: never half of it, never another's. By hand, or because the
    store is to hold less."""
    rounds = 1500 if os.environ.get("PADDOCK_NIGHTLY") else 3
    archive = saved(store.place / "race.tar", [images.base(), layer(entry("mark", b"whole\n"))])
    store.ok("image", "import", archive)
    stop, wrong, ran = threading.Event(), [], []

    def start():
        while not stop.is_set():
            done = store.call("run", "--image", "demo:1", "--", "/bin/cat", "/mark")
            told = "there is no image" in done.stderr or "being removed" in done.stderr
            ran.append(done.returncode == 0)
            if done.stdout != "whole\n" if done.returncode == 0 else not told:
                wrong.append(done)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    removed = 0
    try:
        while removed < rounds and not wrong:
            done = store.call("image", *(["rm", "demo:1"] if how == "rm" else ["prune", "--max", "0"]))
            assert done.returncode == 0 or "in use by a sandbox" in done.stderr, done
            gone = done.returncode == 0 and (how == "rm" or done.stdout)
            removed += bool(gone)
            if gone:
                store.ok("image", "import", archive)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong and any(ran), (wrong[:3], len(ran))
    store.check_whole()
