"""Named roots: `paddock run --name` keeps what is written, and `paddock root` lists and removes."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from paddock_testing import host
from paddock_testing import run as paddock

from .helpers import call, check_gone, check_one_line, new_word, pause

DISK = "24M"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root; rootless is test_rootless")


@pytest.fixture
def store(tmp_path):
    """A store of the test's own, empty at first; nothing of it is mounted when the test ends."""
    place = tmp_path / "store"
    yield Store(place)
    # The kernel gives a loop device back a moment after its last mount is gone.
    paddock.wait_for(lambda: not [b for b in host.loop_devices() if b.startswith(str(place))], 5,
                     "no loop device of the store is left")
    shutil.rmtree(place, ignore_errors=True)


class Store:
    def __init__(self, place):
        self.place = place
        self.env = {"PADDOCK_STATE_DIR": str(place)}

    def run(self, line, name="box", disk=DISK, **options):
        return paddock.run(["/bin/sh", "-c", line], env=self.env, name=name, disk=disk, **options)

    def ok(self, line, **options):
        result = self.run(line, **options)
        assert result.status == 0, result.explain()
        return result.out

    def background(self, line, name="box", disk=DISK, **options):
        return paddock.background(["/bin/sh", "-c", line], env=self.env, name=name, disk=disk,
                                  **options)

    def root(self, *arguments):
        return call("root", *arguments, env=self.env)

    def blanks(self):
        return sorted((self.place / "roots").glob(".blank-*"))

    def leftovers(self):
        """What is in the store but blank images."""
        return sorted(p.name for p in (self.place / "roots").iterdir() if p not in self.blanks())

    def names(self):
        result = self.root("ls")
        assert result.returncode == 0, result.stderr
        return [line.split()[0] for line in result.stdout.splitlines()]


@pytest.fixture
def image_dir(disk_path):
    """This system's programs as a foreign root: links to a /usr that is bound."""
    image = disk_path / "image"
    (image / "etc").mkdir(parents=True)
    (image / "usr").mkdir()
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if os.path.islink(f"/{name}"):
            os.symlink(f"usr/{name}", image / name)
    (image / "etc/motto").write_text("from the image")
    return image


def test_what_is_written_is_there_in_the_next_run(store):
    store.ok("echo kept >/workspace/a; mkdir ~/d; ln -s a ~/d/l; echo tmp >/tmp/t; chmod 700 ~/d")
    assert store.ok("cat /workspace/a /tmp/t; readlink ~/d/l; stat -c %a:%U ~/d") == (
        "kept\ntmp\na\n700:user\n")


def test_owners_survive_although_every_jail_has_other_host_ids(store):
    store.ok("touch /root-file; touch /srv-1234; id -u", user="root")
    store.ok("touch /workspace/mine", user="user")
    seen = store.ok("stat -c %u:%g /root-file /workspace/mine; touch /workspace/more")
    assert seen == "0:0\n1000:1000\n"


def test_two_names_are_two_roots(store):
    store.ok("echo 1 >/workspace/f", name="one")
    assert store.run("cat /workspace/f", name="two").status == 1
    assert store.ok("cat /workspace/f", name="one") == "1\n"
    assert sorted(store.names()) == ["one", "two"]


def test_without_a_name_nothing_is_kept(store):
    paddock.run_ok(["/bin/sh", "-c", "echo x >/workspace/f"], env=store.env)
    assert store.names() == []
    assert paddock.run(["/bin/cat", "/workspace/f"], env=store.env).status == 1


def test_run_after_run_without_a_pause(store):
    for n in range(8):
        assert store.ok(f"echo {n} >>/workspace/log; wc -l </workspace/log") == f"{n + 1}\n"


def test_run_after_a_command_that_failed_to_start(store):
    for _ in range(5):
        for command, status in ((["no-such-command"], 127), (["/etc/passwd"], 126)):
            result = paddock.run(command, env=store.env, name="box", disk=DISK)
            assert result.status == status, result.explain()
    store.ok("true")


def test_run_after_a_sandbox_that_could_not_be_made(store, disk_path):
    """The root of a sandbox that failed is free when the failure is told."""
    bad = disk_path / "bad"
    bad.mkdir()
    os.symlink("/tmp", bad / "proc")
    for _ in range(5):
        assert store.run("true", root=bad).status == 125
        result = store.run("true", root=bad)
        assert result.status == 125 and "in use" not in result.err, result.explain()


def test_run_after_a_timeout_and_after_a_signal(store):
    limit = pause(0.2)
    for _ in range(3):
        while True:
            assert store.run("echo t >>/workspace/t; sleep 60", timeout=f"{limit}s").status == 124
            if store.ok("cat /workspace/t 2>/dev/null || true"):
                break
            limit *= 2  # the machine is so slow that the command had not begun
            assert limit < 60
        store.ok("rm /workspace/t")
    word = new_word()
    with store.background(f"exec sleep {word}") as process:
        paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
        process.terminate()
        assert process.wait(timeout=paddock.seconds(5)) == 143
    store.ok("true")


def test_space_is_limited(store):
    result = store.run("head -c 60M /dev/zero >/workspace/f")
    assert result.status == 1 and "No space left" in result.err, result.explain()
    assert "--disk" in result.err
    size = int(store.ok("wc -c </workspace/f"))
    assert 8 << 20 < size <= 24 << 20
    store.ok("rm /workspace/f; head -c 4M /dev/zero >/workspace/g")


def test_space_is_limited_for_root_as_well(store):
    result = store.run("head -c 60M /dev/zero >/var/f", user="root", profile="dev")
    assert result.status == 1 and "No space left" in result.err, result.explain()


def test_files_are_limited(store):
    line = "cd /workspace; i=0; while [ $i -lt 400 ]; do i=$((i+1)); : >$i || exit 1; done"
    result = store.run(line, files=200)
    assert result.status in (1, 2) and "No space left" in result.err, result.explain()
    assert 100 < int(store.ok("ls /workspace | wc -l")) <= 300


def test_hidden_and_large_disk_takes_little_space_at_first(store):
    """An image of 1 GiB must not cost 1 GiB."""
    store.ok("true", disk=None)
    used = sum(p.stat().st_blocks * 512 for p in store.place.rglob("*"))
    assert used < 64 << 20


def test_second_run_at_the_same_time_is_refused(store):
    word = new_word()
    with store.background(f"exec sleep {word}"):
        paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
        check_one_line(store.run("echo ran"), 125, "'box'", "in use")
        store.ok("true", name="other")
    check_gone(word)
    store.ok("true")


def test_of_many_at_once_only_one_runs(store):
    store.ok("true")
    argv = paddock.jail_argv(["/bin/sh", "-c", "echo in; read line"], name="box", disk=DISK)
    processes = [subprocess.Popen(argv, env=paddock.clean_environment(store.env),
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) for _ in range(4)]
    try:
        paddock.wait_for(lambda: sum(p.poll() is not None for p in processes) >= 3, 20, "three are refused")
    finally:
        ends = [(p.communicate(b"\n", timeout=paddock.seconds(20)), p.returncode) for p in processes]
    assert sorted(status for _, status in ends) == [0, 125, 125, 125], ends
    for (_, err), status in ends:
        assert status == 0 or b"in use" in err or b"still mounted" in err


def test_root_survives_kill_of_the_run(store):
    word = new_word()
    with store.background(f"echo before >/workspace/f; sync; exec sleep {word}") as process:
        paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=paddock.seconds(5))
    check_gone(word)
    result = paddock.wait_for(lambda: (r := store.run("cat /workspace/f")).status != 125 and r, 5,
                              "the root is free again")
    assert result.out == "before\n", result.explain()


def test_root_survives_kill_of_everything(store):
    """Keeper, init and program at once, as when a machine stops: the root is whole afterwards."""
    word = new_word()
    with store.background(f"echo before >/workspace/f; sync; exec sleep {word}") as process:
        pid = paddock.wait_for(lambda: host.with_word(word), 5, "it runs")[0]
        init = host.jail_init(pid)
        keeper = host.parent(init)
        for victim in (process.pid, keeper, init, *host.descendants(keeper)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        process.wait(timeout=paddock.seconds(5))
    check_gone(word)
    result = paddock.wait_for(lambda: (r := store.run("cat /workspace/f")).status != 125 and r, 5,
                              "the root is free again")
    assert result.out == "before\n", result.explain()


def test_nothing_stays_mounted_between_runs(store):
    """What is in the store is all that the next run needs, as after a reboot."""
    store.ok("echo kept >/workspace/f")
    paddock.wait_for(lambda: not [b for b in host.loop_devices()
                                  if b.startswith(str(store.place))], 5, "the loop device is free")
    assert str(store.place) not in Path("/proc/self/mountinfo").read_text()
    moved = store.place.with_name("moved")
    shutil.copytree(store.place, moved)
    shutil.rmtree(store.place)
    moved.rename(store.place)
    assert store.ok("cat /workspace/f") == "kept\n"


def test_ls(store):
    assert store.names() == []
    store.ok("true", name="a.b-c_1")
    listing = store.root("ls").stdout
    assert re.fullmatch(r"a\.b-c_1 +(image|directory)\n", listing), listing


def test_rm(store):
    store.ok("mkdir -p /workspace/a/b; touch /workspace/a/b/c")
    store.ok("true", name="other")
    result = store.root("rm", "box")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert store.names() == ["other"]
    assert store.leftovers() == ["other"]
    assert store.ok("ls /workspace") == ""


def test_rm_of_several(store):
    for name in ("a", "b", "c"):
        store.ok("true", name=name)
    assert store.root("rm", "a", "c").returncode == 0
    assert store.names() == ["b"]


def test_rm_of_a_root_that_is_not_there(store):
    check_one_line(store.root("rm", "nope"), 125, "'nope'")
    store.ok("true", name="b")
    result = store.root("rm", "nope", "b")
    assert result.returncode == 125 and store.names() == [], "the others are removed all the same"


def test_rm_of_a_root_in_use_is_refused(store):
    word = new_word()
    with store.background(f"echo x >/workspace/f; exec sleep {word}") as process:
        paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
        check_one_line(store.root("rm", "box"), 125, "'box'", "in use")
        process.terminate()
        process.wait(timeout=paddock.seconds(5))
    assert store.ok("cat /workspace/f") == "x\n"


def test_another_disk_size_is_refused(store):
    store.ok("echo x >/workspace/f")
    result = store.run("echo ran", disk="32M")
    if result.status == 0:
        pytest.skip("this store has quotas, which can be changed")
    check_one_line(result, 125, "--disk", str(24 << 20))
    assert store.ok("cat /workspace/f") == "x\n"
    assert store.ok("cat /workspace/f", disk=None) == "x\n", "without --disk it is as it was made"


def test_directory_as_lower_layer(store, image_dir):
    options = {"root": image_dir, "binds": ["/usr:/usr"]}
    store.ok("cat /etc/motto; echo changed >/etc/motto; touch /etc/new", user="root", **options)
    assert store.ok("cat /etc/motto; ls /etc", **options) == "changed\nmotto\nnew\n"
    assert (image_dir / "etc/motto").read_text() == "from the image"
    assert sorted(os.listdir(image_dir / "etc")) == ["motto"]


def test_root_made_above_a_directory_is_not_usable_without_it(store, image_dir):
    """The layer alone is no root, and the message says what is missing."""
    store.ok("true", root=image_dir, binds=["/usr:/usr"])
    check_one_line(store.run("true"), 125, "'box'", "with --root")


def test_root_made_alone_is_not_a_layer(store, image_dir):
    store.ok("echo x >/workspace/f")
    check_one_line(store.run("cat /etc/motto", root=image_dir, binds=["/usr:/usr"]), 125, "'box'",
                   "without --root")
    assert store.ok("cat /workspace/f; ls -A / | grep -x -e upper -e work; true") == "x\n"


def test_store_is_out_of_reach_of_others(store):
    store.ok("true")
    for path in (store.place / "roots", store.place / "roots/box"):
        assert path.stat().st_mode & 0o077 == 0


def test_image_cannot_be_reached_from_inside(store):
    assert store.ok(f"ls {store.place} 2>&1; ls /dev | grep -c loop; true").endswith("\n0\n")


# Mount points that a sandbox has spoiled


# What sandbox root does to the root of the next jail.
SPOILED = {
    "shm-is-gone": "rmdir /run/shm",
    "shm-is-a-file": "rmdir /run/shm; echo x > /run/shm",
    "shm-leads-to-proc": "rmdir /run/shm; ln -s /proc /run/shm",
    "shm-leads-to-the-builders-files": "rmdir /run/shm; ln -s /ids /run/shm",
    "shm-leads-nowhere": "rmdir /run/shm; ln -s /nowhere /run/shm",
    "run-leads-to-proc": "mv /run /gone; ln -s /proc /run",
    "run-is-gone": "mv /run /gone",
    "etc-leads-to-the-top": "mv /etc /gone; ln -s / /etc",
    "etc-leads-to-proc": "mv /etc /gone; ln -s /proc /etc",
    "etc-is-gone": "mv /etc /gone",
    "etc-is-a-loop": "mv /etc /gone; ln -s /etc /etc",
    "shim-leads-to-proc": "mkdir -p /opt/paddock; mv /opt/paddock /gone; ln -s /proc /opt/paddock",
    "opt-leads-to-the-builders-files": "mv /opt /gone; ln -s /ids /opt",
}
# Everything of a mount that a jail relies on, in one line each.
SOUND = ("ls -A /dev/shm; stat -c '%F %a' /dev/shm; echo kept > /dev/shm/f; cat /dev/shm/f; "
         "test -e /etc/alternatives && echo alternatives; test -f /etc/ld.so.cache && echo cache; "
         "test -e /proc/self/status && echo proc; test -e /ids || echo nothing of the builder")
SOUND_SAYS = "directory 1777\nkept\nalternatives\ncache\nproc\nnothing of the builder\n"


@pytest.mark.parametrize("profile", ["strict", "dev"])
@pytest.mark.parametrize("line", SPOILED.values(), ids=SPOILED)
def test_a_spoiled_root_starts_and_shows_nothing(store, line, profile):
    store.ok(f"{line}; echo mine > /mine", user="root", profile=profile)
    for _ in range(2):
        assert store.ok(SOUND, profile=profile) == SOUND_SAYS
        store.ok("rm /dev/shm/f", profile=profile)
    assert store.ok("cat /mine", profile=profile) == "mine\n"
    if profile == "dev":
        assert store.ok("sudo id -u", profile=profile) == "0\n"


def test_links_that_are_followed_lead_to_the_builders_files(store):
    """The control: with that wall left out /dev/shm is a directory of the builder, in which the
    boot ids of other jails lie."""
    if not os.path.exists(paddock.PADDOCK_WEAK):
        pytest.skip(f"no test build with weak walls at {paddock.PADDOCK_WEAK}")
    weak = paddock.PADDOCK_WEAK
    store.ok(SPOILED["shm-leads-to-the-builders-files"], user="root", binary=weak)
    assert store.ok("ls -A /dev/shm", binary=weak) == "", "not with the wall"
    store.ok(SPOILED["shm-leads-to-the-builders-files"], user="root", binary=weak)
    store.env["PADDOCK_WALL_OFF"] = "links"
    assert store.ok("ls -A /dev/shm", binary=weak) != ""


def test_a_spoiled_layer_starts(store, image_dir):
    options = {"root": image_dir, "binds": ["/usr:/usr"]}
    store.ok("rm -rf /tmp; ln -s /proc /tmp; mv /run /gone; echo x > /run", user="root", **options)
    assert store.ok("stat -c '%F %a' /tmp /run; echo x > /tmp/f; cat /tmp/f", **options) == (
        "directory 1777\ndirectory 755\nx\n")


# Blank images, from which new roots are made


@pytest.fixture
def blank(store):
    """The blank image that the first root leaves for those after it."""
    store.ok("echo secret > /workspace/mine", name="first")
    if not (store.place / "roots/first/image").exists():
        pytest.skip("this file system has project quotas: there are no images")
    found = store.blanks()
    assert len(found) == 1
    return found[0]


def test_a_root_made_from_a_blank_image_is_new(store, blank):
    before = blank.stat()
    mine = store.ok("ls -A /workspace /home/user /tmp; ls / | sort; df -k / | tail -n 1", name="second")
    assert "mine" not in mine and "secret" not in blank.read_bytes().decode("latin-1")
    after = blank.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert store.ok("cat /workspace/mine", name="first") == "secret\n"
    # What is not written takes no room.
    assert (store.place / "roots/second/image").stat().st_blocks * 512 < 4 << 20


@pytest.mark.parametrize("spoil", ["empty", "other-size", "no-file-system", "broken", "link", "directory"])
def test_a_spoilt_blank_image_harms_nobody(store, blank, spoil):
    size = blank.stat().st_size
    if spoil in ("link", "directory"):
        blank.unlink()
    if spoil == "link":
        blank.symlink_to(store.place / "roots/first/image")
    elif spoil == "directory":
        blank.mkdir()
    else:
        with open(blank, "r+b") as f:
            if spoil == "other-size":
                f.truncate(size // 2)
            elif spoil == "broken":  # the magic number is there, and nothing else
                f.seek(0)
                f.write(b"\xff" * 1080 + b"\x53\xef" + b"\xff" * 100000)
            else:
                f.truncate(0)
                f.truncate(size if spoil == "no-file-system" else 0)
    assert store.ok("echo new; cat /workspace/mine 2>/dev/null; true", name="second") == "new\n"
    assert store.ok("echo third", name="third") == "third\n"


def test_roots_made_at_the_same_time_without_a_blank_image(store):
    with contextlib.ExitStack() as stack:
        line = "echo $$ > /workspace/f; cat /workspace/f"
        running = [stack.enter_context(store.background(line, name=f"box{i}")) for i in range(4)]
        for process in running:
            process.communicate(timeout=paddock.seconds(60))
            assert process.returncode == 0
    assert not [name for name in store.leftovers() if not name.startswith("box")]
    store.ok("true", name="last")
