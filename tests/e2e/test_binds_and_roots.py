"""What of the host a sandbox shows: --bind and --root."""

import os
import shutil
import socket
import stat
import subprocess

import pytest

from paddock_testing import host
from paddock_testing import run as paddock

from .helpers import ROOT_ONLY, call, check_one_line

OWNER = 12345
as_root_only = pytest.mark.skipif(os.geteuid() != 0, reason=ROOT_ONLY)


def sh(line, **options):
    return paddock.run(["/bin/sh", "-c", line], **options)


def sh_ok(line, **options):
    result = sh(line, **options)
    assert result.status == 0, result.explain()
    return result.out


@pytest.fixture
def shared(disk_path):
    """A directory of the host, with a file, that belongs to an ordinary user."""
    place = disk_path / "shared"
    place.mkdir()
    (place / "file").write_text("from the host")
    if os.geteuid() == 0:
        for path in (place, place / "file"):
            os.chown(path, OWNER, OWNER)
    return place


@pytest.fixture
def image(disk_path):
    """A root with nothing in it but one static program: Paddock's own."""
    place = disk_path / "image"
    (place / "bin").mkdir(parents=True)
    shutil.copy(paddock.PADDOCK, place / "bin/program")
    (place / "bin/program").chmod(0o755)
    place.chmod(0o755)
    return place


@pytest.fixture
def system(disk_path):
    """This system's programs as a root of their own: links to a /usr that is bound."""
    place = disk_path / "system"
    (place / "etc").mkdir(parents=True)
    (place / "usr").mkdir()
    place.chmod(0o755)
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if os.path.islink(f"/{name}"):
            os.symlink(f"usr/{name}", place / name)
    (place / "etc/motto").write_text("from the image")
    return {"root": place, "binds": ["/usr:/usr"]}


# --bind


def test_bind_is_read_only_unless_asked(shared):
    for mode in ("", ":ro"):
        line = "cat /data/file; touch /data/new; echo x >/data/file; rm -f /data/file"
        result = sh(line, binds=[f"{shared}:/data{mode}"])
        assert result.out == "from the host" and result.err.count("Read-only") == 3, result.err
    assert [p.name for p in shared.iterdir()] == ["file"]
    assert (shared / "file").read_text() == "from the host"


def test_bind_for_writing(shared):
    sh_ok("echo inside >/data/new; mkdir /data/d; mv /data/file /data/d/moved",
          binds=[f"{shared}:/data:rw"])
    assert (shared / "new").read_text() == "inside\n"
    assert (shared / "d/moved").read_text() == "from the host"


@as_root_only
def test_owner_of_the_source_is_the_user_inside(shared):
    (shared / "roots").write_text("of the host's root")
    os.chown(shared / "roots", 0, 0)
    out = sh_ok("stat -c '%n %u:%g' /data /data/file /data/roots; touch /data/new; mkdir /data/dir",
                binds=[f"{shared}:/data:rw"])
    assert out == "/data 1000:1000\n/data/file 1000:1000\n/data/roots 65534:65534\n"
    for name in ("new", "dir"):
        made = (shared / name).stat()
        assert (made.st_uid, made.st_gid) == (OWNER, OWNER), name


@as_root_only
def test_source_of_root_is_the_users_inside(disk_path):
    """`--bind "$PWD:/workspace:rw"` by root: the user can work there, and root owns the result."""
    place = disk_path / "project"
    place.mkdir()
    sh_ok("echo x >/workspace/result", binds=[f"{place}:/workspace:rw"])
    assert (place / "result").stat().st_uid == 0


@as_root_only
def test_no_user_inside_can_make_a_setuid_program_for_the_host(disk_path):
    """A setuid file in a bind would be the source's owner's outside: made by the user, it is only
    what that owner could have made; made by sandbox root, it must not be the host's root's."""
    place = disk_path / "project"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    sh("cp /bin/true /data/t; chmod 4755 /data/t", user="root", profile="dev",
       binds=[f"{place}:/data:rw"])
    made = place / "t"
    assert not made.exists() or made.stat().st_uid != 0 or not made.stat().st_mode & stat.S_ISUID


def test_bind_of_a_file(shared):
    out = sh_ok("cat /etc/my.conf; ls /opt/a/b", binds=[
        f"{shared / 'file'}:/etc/my.conf", f"{shared / 'file'}:/opt/a/b/deep"])
    assert out == "from the hostdeep\n"
    assert "Read-only" in sh("echo x >/etc/my.conf", binds=[f"{shared / 'file'}:/etc/my.conf"]).err
    sh_ok("echo new >/workspace/f", binds=[f"{shared / 'file'}:/workspace/f:rw"])
    assert (shared / "file").read_text() == "new\n"


def test_bind_over_a_file_that_is_there(shared):
    assert sh_ok("cat /etc/hostname", binds=[f"{shared / 'file'}:/etc/hostname"]) == "from the host"


def test_bind_of_a_socket(shared):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(shared / "s"))
        os.chmod(shared / "s", 0o777)
        server.listen(4)
        code = "import socket; socket.socket(socket.AF_UNIX).connect('/opt/s'); print('connected')"
        result = paddock.run(["/usr/bin/python3", "-c", code], binds=[f"{shared / 's'}:/opt/s"])
        assert result.out == "connected\n", result.explain()


def test_bind_of_what_is_no_file(shared):
    os.mkfifo(shared / "fifo")
    check_one_line(sh("true", binds=[f"{shared / 'fifo'}:/x"]), 2, "--bind", "fifo")
    check_one_line(sh("true", binds=["/dev/null:/x"]), 2, "--bind", "/dev/null")


def test_bind_of_a_relative_path_and_through_a_link(shared, disk_path):
    os.symlink("shared", disk_path / "link")
    result = call("run", "--bind", "link:/data", "--bind", "shared/file:/one", "--", "cat",
                  "/data/file", "/one", cwd=disk_path)
    assert result.stdout == "from the host" * 2, result.stderr


def test_binds_may_be_nested(shared, disk_path):
    other = disk_path / "other"
    (other / "sub").mkdir(parents=True)
    (other / "sub/f").write_text("other")
    binds = [f"{other}:/data", f"{shared}:/data/sub"]
    assert sh_ok("ls /data/sub", binds=binds) == "file\n"


def test_later_bind_onto_the_same_place_covers_the_earlier(shared, disk_path):
    other = disk_path / "other"
    other.mkdir()
    (other / "f").touch()
    assert sh_ok("ls /data", binds=[f"{shared}:/data", f"{other}:/data"]) == "f\n"


def test_bind_onto_home_and_workspace(shared):
    assert sh_ok("pwd; cat file; cat ~/file",
                 binds=[f"{shared}:/workspace", f"{shared}:/home/user"]) == (
        "/workspace\n" + "from the host" * 2)


def test_bind_with_setuid_programs_and_devices_gives_neither(shared):
    line = "grep ' /data ' /proc/self/mounts | cut -d' ' -f4"
    options = sh_ok(line, binds=[f"{shared}:/data:rw"]).strip().split(",")
    assert {"nosuid", "nodev"} <= set(options)


def test_bind_that_cannot_be_mounted_is_named(shared):
    """/usr is read-only: no directory can be made there."""
    result = sh("true", binds=[f"{shared}:/usr/no-such-dir/x"])
    assert result.status in (2, 125), result.explain()
    check_one_line(result, result.status, "/usr/no-such-dir/x", "Read-only")


def test_bind_of_a_directory_onto_a_file_is_named(shared):
    result = sh("true", binds=[f"{shared}:/etc/passwd"])
    assert result.status in (2, 125), result.explain()
    check_one_line(result, result.status, "/etc/passwd", "Not a directory")


@as_root_only
@pytest.mark.parametrize("link", ["/etc", "../../../../../../etc", "/proc/1/root/etc",
                                  "/proc/self/cwd", "/workspace/../../etc"])
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_link_in_the_root_does_not_lead_out_of_it(system, shared, link, kind):
    """The target is looked up inside: a link may lead elsewhere in the root, never to the host."""
    name = f"paddock-{os.getpid()}"
    os.symlink(link, system["root"] / "data")
    source = shared if kind == "directory" else shared / "file"
    binds = [*system["binds"], f"{source}:/data/{name}"]
    before = set(os.listdir("/etc")) | set(os.listdir("/")) | set(os.listdir("."))
    result = sh("cat /etc/motto", root=system["root"], binds=binds)
    assert result.status in (0, 125, 2), result.explain()
    after = set(os.listdir("/etc")) | set(os.listdir("/")) | set(os.listdir("."))
    assert name not in after - before
    assert sorted(os.listdir(system["root"] / "etc")) == ["motto"]


@as_root_only
def test_link_in_the_root_leads_to_its_target_inside(system, shared):
    os.symlink("/etc", system["root"] / "data")
    result = sh("ls /etc/x; readlink /data", root=system["root"],
                binds=[*system["binds"], f"{shared}:/data/x"])
    if result.status == 0:
        assert result.out == "file\n/etc\n"
    else:
        check_one_line(result, result.status, "--bind", "/data/x")


@as_root_only
def test_last_component_that_is_a_link_is_not_followed_out(system, shared):
    os.symlink("/etc/hostname", system["root"] / "etc/link")
    before = open("/etc/hostname", encoding="ascii").read() if os.path.exists(
        "/etc/hostname") else None
    sh("echo changed >/etc/link", root=system["root"], user="root",
       binds=[*system["binds"], f"{shared / 'file'}:/etc/link"])
    after = open("/etc/hostname", encoding="ascii").read() if os.path.exists(
        "/etc/hostname") else None
    assert before == after


# --root


def test_root_is_the_given_directory(image):
    result = paddock.run(["/bin/program", "--version"], root=image)
    assert result.status == 0 and result.out.startswith("paddock "), result.explain()


def test_relative_root(image):
    result = call("run", "--root", "image", "--", "/bin/program", "--version", cwd=image.parent)
    assert result.returncode == 0, result.stderr


def test_writes_do_not_reach_the_directory(system):
    before = sorted(os.listdir(system["root"]))
    line = "echo x >/etc/motto; echo y >/etc/new; rm -r /sbin; mkdir /d; cat /etc/motto; ls /etc"
    assert sh_ok(line, user="root", **system) == "x\nmotto\nnew\n"
    assert sorted(os.listdir(system["root"])) == before
    assert (system["root"] / "etc/motto").read_text() == "from the image"
    assert sh_ok("cat /etc/motto; ls /etc", **system) == "from the imagemotto\n"


def test_foreign_root_has_what_a_sandbox_needs(system):
    line = ("cd && touch a /workspace/b /tmp/c /dev/shm/d && echo >/dev/null && ls /proc/self/exe "
            ">/dev/null && pwd && stat -c %a /tmp && test -c /dev/urandom")
    assert sh_ok(line, **system) == "/home/user\n1777\n"


@as_root_only
def test_owners_in_the_image_are_the_same_inside(system):
    (system["root"] / "etc/u").touch()
    os.chown(system["root"] / "etc/u", 1000, 1000)
    (system["root"] / "etc/s").touch(mode=0o600)
    assert sh_ok("stat -c %u /etc/motto /etc/u /etc", **system) == "0\n1000\n0\n"
    assert sh("cat /etc/s", **system).status == 1


def test_space_above_an_image_is_limited(system):
    result = sh("head -c 30M /dev/zero >/workspace/f", disk="4M", **system)
    assert result.status == 1 and "No space left" in result.err, result.explain()


def test_empty_directory_is_a_root_without_programs(disk_path):
    empty = disk_path / "empty"
    empty.mkdir()
    check_one_line(paddock.run(["ls"], root=empty), 127, "'ls'")
    check_one_line(paddock.run(["/bin/sh"], root=empty), 127, "/bin/sh")
    assert os.listdir(empty) == []


@pytest.mark.parametrize("name", ["proc", "dev", "tmp", "run", "workspace", "home", "home/user"])
def test_link_where_the_jail_mounts_is_refused(system, name):
    """Mounting through a link would put the jail's /proc, or its ids, on something else."""
    path = system["root"] / name
    path.parent.mkdir(exist_ok=True)
    for target in ("/etc", "../../../etc", "/nowhere"):
        os.symlink(target, path)
        before = os.stat("/etc")
        result = sh("true", **system)
        assert result.status in (2, 125), result.explain()
        check_one_line(result, result.status, f"/{name}")
        after = os.stat("/etc")
        assert (before.st_uid, before.st_mode, before.st_mtime) == (
            after.st_uid, after.st_mode, after.st_mtime)
        path.unlink()


def test_root_that_is_a_file(disk_path):
    (disk_path / "f").touch()
    check_one_line(sh("true", root=disk_path / "f"), 2, "--root", str(disk_path / "f")[:100])


@as_root_only
def test_the_hosts_own_root(disk_path):
    """`--root /` shows all of the host's top file system, and changes nothing of it."""
    name = f"paddock-test-{os.getpid()}"
    result = sh(f"echo x >/etc/{name} && cat /etc/{name} && cat /etc/debian_version", root="/",
                user="root")
    if result.status == 125:
        pytest.skip(f"the kernel makes no layer above this root: {result.err.strip()}")
    assert result.status == 0, result.explain()
    assert not os.path.exists(f"/etc/{name}")


@pytest.mark.alone
def test_nothing_of_a_foreign_root_stays_mounted(system):
    before = host.mounts()
    sh_ok("true", **system)
    assert host.mounts() == before


def test_image_with_setuid_programs_gives_no_rights(system):
    target = system["root"] / "suid"
    shutil.copy("/usr/bin/id", target)
    target.chmod(0o4755)
    assert sh_ok("/suid -u", **system) == "1000\n"


def test_template_shows_usr_read_only():
    for user in ("user", "root") if os.geteuid() == 0 else ("user",):
        result = sh("touch /usr/x || echo x >>/usr/bin/env; ls /home /mnt /srv /boot 2>/dev/null",
                    user=user)
        assert result.err.count("\n") == 2, result.explain()
        assert result.out.split() == ["/home:", "user"], result.out
    options = sh_ok("grep ' /usr ' /proc/self/mounts | cut -d' ' -f4").strip().split(",")
    assert {"ro", "nosuid", "nodev"} <= set(options)


def test_generated_etc_names_nobody_of_the_host():
    lines = sh_ok("cat /etc/passwd").splitlines()
    assert [line.split(":")[0] for line in lines] == ["root", "user", "nobody"]
    assert sh("cat /etc/shadow /etc/sudoers /etc/fstab /etc/machine-id").out == ""


def test_two_sandboxes_do_not_share_files():
    argv = paddock.jail_argv(["/bin/sh", "-c", "echo x >/tmp/f; sleep 1"])
    first = subprocess.Popen(argv, env=paddock.clean_environment(), stdin=subprocess.DEVNULL)
    try:
        assert sh_ok("sleep 0.2; ls /tmp") == ""
    finally:
        first.wait(timeout=paddock.seconds(10))


@pytest.mark.parametrize("name", ["alternatives", "ld.so.cache", "R", "java-17-openjdk", "java-21-openjdk"])
def test_parts_of_the_hosts_etc_are_there_if_the_host_has_them(name):
    """R and Java do not start without theirs: their packages have links to there."""
    is_there = os.path.exists(f"/etc/{name}")
    assert sh(f"test -e /etc/{name}").status == (0 if is_there else 1)
    if is_there:
        assert sh(f"touch /etc/{name} || rm -r /etc/{name}", user="root").status != 0
