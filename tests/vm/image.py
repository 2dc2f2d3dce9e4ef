"""The root disk of the test machine, made from the files of packages installed on this host.

Nothing is downloaded and nothing is mounted: the file lists of dpkg say what to copy into a staging
directory, and mke2fs -d makes the disk from it. The result is kept under a name that holds a hash
of everything it was made from.
"""

import glob
import hashlib
import os
import shutil
import stat
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LEFT_OUT = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/info/", "/usr/share/locale/",
            "/usr/share/lintian/", "/usr/share/bug/", "/usr/share/menu/", "/usr/share/perl/",
            "/usr/share/git-core/contrib/", "/usr/share/gitweb/", "/usr/include/",
            "/usr/lib/systemd/", "/lib/systemd/", "/usr/lib/udev/", "/lib/udev/", "/boot/")
# Packages that dependencies name but that the machine has no use for.
UNWANTED = {"debconf", "dpkg", "perl", "perl-modules-5.36", "libperl5.36", "liberror-perl",
            "libcurl3-gnutls", "adduser", "media-types", "mailcap", "tzdata", "init-system-helpers",
            "install-info", "dbus", "systemd", "udev", "cdebconf", "debconf-2.0"}
DEPTH_MAX = 12
DISKS_KEPT = 3  # another run may be about to start from an older one
MIB = 1 << 20


class Missing(Exception):
    """The host lacks something; the text says what to install."""


def installed_packages():
    """name -> (name with architecture, version, depends) of every package of the host."""
    form = "${db:Status-Abbrev}\t${Package}\t${binary:Package}\t${Version}\t${Architecture}\t" \
           "${Pre-Depends}, ${Depends}\t${Provides}\n"
    text = subprocess.run(["dpkg-query", "-W", "-f", form], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    found = {}
    native = subprocess.run(["dpkg", "--print-architecture"], check=True, text=True,
                            stdout=subprocess.PIPE).stdout.strip()
    for line in text.splitlines():
        state, name, full, version, arch, depends, provides = line.split("\t")
        if not state.startswith("ii") or arch not in (native, "all"):
            continue
        entry = (full, version, depends)
        found[name] = entry
        for virtual in provides.split(","):
            found.setdefault(virtual.split("(")[0].strip(), entry)
    return found


def alternatives(clause):
    """The names in one clause of a dependency: 'a (>= 1) | b:any' gives a, b."""
    for part in clause.split("|"):
        name = part.split("(")[0].split("[")[0].strip().split(":")[0]
        if name:
            yield name


def packages_listed():
    """The lines of the list."""
    with open(os.path.join(HERE, "packages"), encoding="ascii") as f:
        lines = [line.strip() for line in f]
    return [line for line in lines if line and not line.startswith("#")]


def packages_resolve(lines, wanted=()):
    """The packages of such lines and what they depend on: full name -> version. `wanted` of UNWANTED are."""
    host = installed_packages()
    todo, missing = [], []
    for line in lines:
        name = next((n for n in alternatives(line.lstrip("?")) if n in host), None)
        if name:
            todo.append((name, 0))
        elif not line.startswith("?"):
            missing.append(line)
    if missing:
        raise Missing("packages not installed: " + ", ".join(missing))
    chosen = {}
    while todo:
        name, depth = todo.pop(0)
        full, version, depends = host[name]
        if full in chosen or depth > DEPTH_MAX or full.split(":")[0] in UNWANTED - set(wanted):
            continue
        chosen[full] = version
        for clause in depends.split(","):
            todo += [(n, depth + 1) for n in alternatives(clause) if n in host][:1]
    return chosen


def real_parent(path):
    """The path with the links of its directory resolved: /bin/sh becomes /usr/bin/sh."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def file_stage(path, stage):
    """Copies one file, link or directory of the host, if it is there and may be read."""
    path = real_parent(path)
    dest = stage + path
    if os.path.lexists(dest):
        return
    try:
        info = os.lstat(path)
        os.makedirs(os.path.dirname(dest), exist_ok=True)
        if stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(path), dest)
        elif stat.S_ISDIR(info.st_mode):
            os.mkdir(dest)
            os.chmod(dest, stat.S_IMODE(info.st_mode))
        elif stat.S_ISREG(info.st_mode):
            shutil.copyfile(path, dest)
            os.chmod(dest, stat.S_IMODE(info.st_mode))
            # Python compares this time with the one in the compiled file.
            os.utime(dest, ns=(info.st_atime_ns, info.st_mtime_ns))
            if os.geteuid() == 0:
                os.chown(dest, info.st_uid, info.st_gid)
                os.chmod(dest, stat.S_IMODE(info.st_mode))
    except (FileNotFoundError, PermissionError) as problem:
        print(f"vm: left out {path}: {problem.strerror}", file=sys.stderr)


def compiled_python_stage(stage):
    """Compiled modules are made at installation and are in no package's list, but compiling the
    library anew at every start would cost seconds under emulation."""
    for base, dirs, files in os.walk(stage + "/usr"):
        dirs[:] = [d for d in dirs if d != "__pycache__"]
        host_dir = base[len(stage):]
        cache = os.path.join(host_dir, "__pycache__")
        if not any(f.endswith(".py") for f in files) or not os.path.isdir(cache):
            continue
        names = {f[:-3] for f in files if f.endswith(".py")}
        for f in os.listdir(cache):
            if f.split(".")[0] in names and f.endswith(".pyc") and "opt-" not in f:
                file_stage(os.path.join(cache, f), stage)


def alternatives_stage(stage):
    """The links of update-alternatives whose programs are in the image."""
    for link in glob.glob("/etc/alternatives/*"):
        if os.path.lexists(stage + os.path.realpath(link)) and os.path.exists(link):
            file_stage(link, stage)
    for directory in ("/usr/bin", "/usr/sbin"):
        for entry in os.scandir(directory):
            if entry.is_symlink() and os.readlink(entry.path).startswith("/etc/alternatives/") \
                    and os.path.lexists(stage + os.readlink(entry.path)):
                file_stage(entry.path, stage)


def text_write(path, text, mode=0o644):
    if os.path.lexists(path):
        os.unlink(path)
    with open(path, "w", encoding="ascii") as f:
        f.write(text)
    os.chmod(path, mode)


def etc_write(stage):
    """The files that maintainer scripts would have written."""
    etc = stage + "/etc"
    for name in ("passwd", "group"):
        with open(f"/usr/share/base-passwd/{name}.master", encoding="ascii") as f:
            text = f.read().replace("root:*:0:0:root", "root:x:0:0:root")
        text += {"passwd": "tester:x:1000:1000:Tester:/home/tester:/bin/bash\n",
                 "group": "tester:x:1000:\n"}[name]
        text_write(f"{etc}/{name}", text)
    text_write(f"{etc}/shadow", "root:*:19000:0:99999:7:::\ntester:*:19000:0:99999:7:::\n", 0o640)
    text_write(f"{etc}/subuid", "tester:100000:65536\n")
    text_write(f"{etc}/subgid", "tester:100000:65536\n")
    text_write(f"{etc}/hostname", "testvm\n")
    text_write(f"{etc}/hosts", "127.0.0.1 localhost testvm\n::1 localhost\n")
    text_write(f"{etc}/resolv.conf", "")
    text_write(f"{etc}/fstab", "")
    text_write(f"{etc}/machine-id", "5041444f434b5041444f434b50414444\n")
    text_write(f"{etc}/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n")


def layout_make(stage):
    os.makedirs(stage + "/usr")
    for name in ("bin", "sbin", "lib", "lib64", "lib32", "libx32"):
        if os.path.islink("/" + name) and os.path.isdir("/" + name):
            os.makedirs(stage + "/usr/" + name)
            os.symlink("usr/" + name, f"{stage}/{name}")
    for name in ("proc", "sys", "dev", "run", "etc", "root", "home", "var", "var/lib", "var/log",
                 "var/cache", "srv", "mnt", "opt", "paddock", "var/lib/paddock", "out"):
        os.mkdir(f"{stage}/{name}")
    for name in ("tmp", "var/tmp"):
        os.mkdir(f"{stage}/{name}")
        os.chmod(f"{stage}/{name}", 0o1777)
    os.chmod(stage + "/root", 0o700)
    os.symlink("/run", stage + "/var/run")


def as_root(argv):
    """A prefix that makes the caller's files look root's, which needs no privilege."""
    return argv if os.geteuid() == 0 else ["unshare", "-r"] + argv


def disk_make(path, size, source=None, features=(), extended=()):
    """An ext4 disk image of `size` bytes, holding a copy of the directory `source`."""
    with open(path, "wb") as f:
        f.truncate(size)
    argv = ["/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-m", "0"]
    argv += ["-E", ",".join(["root_owner=0:0", "lazy_itable_init=1", "lazy_journal_init=1",
                             *extended])]
    if features:
        argv += ["-O", ",".join(features)]
    if source:
        argv += ["-d", source]
    argv.append(path)
    subprocess.run(as_root(argv) if source else argv, check=True)


def tree_bytes(directory):
    total = 0
    for base, dirs, files in os.walk(directory):
        total += 4096 * (len(dirs) + 1)
        for f in files:
            total += (os.lstat(os.path.join(base, f)).st_size + 4095) // 4096 * 4096
    return total


def root_stage(stage, packages):
    """A root from the files of these packages."""
    layout_make(stage)
    for full in packages:
        listing = subprocess.run(["dpkg", "-L", full], check=True, text=True,
                                 stdout=subprocess.PIPE).stdout
        for path in listing.splitlines():
            if path.startswith("/") and path != "/." and not (path + "/").startswith(LEFT_OUT):
                file_stage(path, stage)
    compiled_python_stage(stage)
    alternatives_stage(stage)
    etc_write(stage)
    if not os.path.lexists(stage + "/usr/bin/sh"):
        os.symlink("dash", stage + "/usr/bin/sh")
    subprocess.run(as_root(["/sbin/ldconfig", "-r", stage]), check=False)


def modules_stage(stage, release):
    """Every module, so that the kernel can load on demand what a test (or an attack) asks for."""
    shutil.copytree(f"/lib/modules/{release}", f"{stage}/usr/lib/modules/{release}",
                    symlinks=True, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("build", "source"))


def root_image(cache, release, extra):
    """The path of the root disk; builds it if the cache has none for this state of the host."""
    packages = packages_resolve(packages_listed() + list(extra))
    state = hashlib.sha256()
    for text in sorted(f"{k}={v}" for k, v in packages.items()) + [release, str(os.geteuid())]:
        state.update(text.encode() + b"\n")
    with open(os.path.join(HERE, "image.py"), "rb") as f:
        state.update(f.read())
    path = os.path.join(cache, f"root-{state.hexdigest()[:16]}.ext4")
    if os.path.exists(path):
        return path
    stage = os.path.join(cache, "stage")
    shutil.rmtree(stage, ignore_errors=True)
    os.makedirs(stage)
    os.chmod(stage, 0o755)
    root_stage(stage, packages)
    modules_stage(stage, release)
    # Room for what tests write outside /var/lib/paddock. The file is sparse.
    size = tree_bytes(stage) * 12 // 10 + 1024 * MIB
    disk_make(path + ".new", size // MIB * MIB, stage)
    os.rename(path + ".new", path)
    shutil.rmtree(stage, ignore_errors=True)
    disks = glob.glob(os.path.join(cache, "root-*.ext4"))
    for old in sorted(disks, key=os.path.getmtime)[:-DISKS_KEPT]:
        os.unlink(old)
    return path
