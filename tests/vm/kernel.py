"""The kernel of the test machine and its initial file system, from the packages of this host."""

import glob
import os
import re
import shutil
import struct
import subprocess

# fuse and tun are loaded because udev would have made their device nodes at start.
MODULES = ("virtio_mmio", "virtio_blk", "virtio_console", "virtio-rng", "overlay", "loop",
           "quota_v2", "fuse", "tun")
# How the compressed kernel in a bzImage starts, and the program that unpacks it.
PACKERS = ((b"\x02\x21\x4c\x18", ["lz4", "-dc"]), (b"\x28\xb5\x2f\xfd", ["zstd", "-dc"]),
           (b"\xfd7zXZ", ["xz", "-dc"]), (b"\x1f\x8b\x08", ["gzip", "-dc"]))


def kernel_find():
    """(release, path) of the newest cloud kernel of Debian on this host, or None."""
    def order(path):
        return [int(n) for n in re.findall(r"\d+", os.path.basename(path))]

    paths = sorted(glob.glob("/boot/vmlinuz-*-cloud-amd64"), key=order)
    for path in reversed(paths):
        release = os.path.basename(path)[len("vmlinuz-"):]
        if os.path.exists(f"/lib/modules/{release}/modules.dep") and os.access(path, os.R_OK):
            return release, path
    return None


def kernel_unpack(path, cache):
    """An ELF kernel, which QEMU can start directly. Unpacking on the host saves the guest from
    doing it under emulation. Without the unpacker the packed kernel does as well."""
    info = os.stat(path)
    name = f"{os.path.basename(path)}-{info.st_mtime_ns:x}-{info.st_size:x}.elf"
    result = os.path.join(cache, name)
    if os.path.exists(result):
        return result
    with open(path, "rb") as f:
        image = f.read()
    setup_sectors = image[0x1f1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    packed = image[start:start + length]
    for magic, argv in PACKERS:
        if not packed.startswith(magic) or not shutil.which(argv[0]):
            continue
        # Four bytes of length follow the packed data; the unpackers complain about them, so the
        # result and not the exit status is what counts.
        done = subprocess.run(argv, input=packed[:-4], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, check=False)
        if done.stdout.startswith(b"\x7fELF"):
            with open(result + ".new", "wb") as f:
                f.write(done.stdout)
            os.rename(result + ".new", result)
            return result
    return path


def modules_order(release, wanted=MODULES):
    """Paths of the wanted modules, each after those it needs. Built-in ones are left out."""
    base = f"/lib/modules/{release}"
    needs, by_name = {}, {}
    with open(f"{base}/modules.dep", encoding="ascii") as f:
        for line in f:
            path, _, rest = line.partition(":")
            needs[path] = rest.split()
            by_name[os.path.basename(path).split(".ko")[0].replace("-", "_")] = path
    with open(f"{base}/modules.builtin", encoding="ascii") as f:
        builtin = {os.path.basename(line.strip()).split(".ko")[0].replace("-", "_") for line in f}
    order = []

    def visit(path):
        # modules.dep lists every need, also the indirect ones, the deepest last.
        for need in reversed(needs[path]):
            if need not in order:
                visit(need)
        if path not in order:
            order.append(path)

    for name in wanted:
        plain = name.replace("-", "_")
        if plain in by_name:
            visit(by_name[plain])
        elif plain not in builtin:
            raise LookupError(f"kernel {release} has no module {name}")
    return [os.path.join(base, path) for path in order]


class Cpio:
    """Writes the `newc` format that the kernel unpacks at start."""

    def __init__(self):
        self.parts = []
        self.count = 0

    def add(self, name, mode, data=b"", device=(0, 0)):
        self.count += 1
        fields = (self.count, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % f for f in fields) + name.encode() + b"\0"
        self.parts.append(head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4))

    def bytes(self):
        self.add("TRAILER!!!", 0)
        return b"".join(self.parts)


def initial_fs(release, init, argv, env, config):
    """Process 1, its modules, and what it is to run."""
    cpio = Cpio()
    for name in ("dev", "root", "vm", "vm/ko"):
        cpio.add(name, 0o040755)
    cpio.add("dev/console", 0o020600, device=(5, 1))
    with open(init, "rb") as f:
        cpio.add("init", 0o100755, f.read())
    names = []
    for path in modules_order(release):
        names.append(os.path.basename(path))
        with open(path, "rb") as f:
            cpio.add("vm/ko/" + names[-1], 0o100644, f.read())
    for name, words, end in (("modules", names, "\n"), ("argv", argv, "\0"), ("env", env, "\0"),
                             ("config", config, "\n")):
        cpio.add("vm/" + name, 0o100644, b"".join(os.fsencode(w + end) for w in words))
    return cpio.bytes()
