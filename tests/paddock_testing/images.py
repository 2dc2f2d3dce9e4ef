"""Images made by hand, also such as no tool would make: layers, archives of docker, OCI layouts."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

BUSYBOX = Path("/bin/busybox")


def has_static_busybox():
    return BUSYBOX.exists() and subprocess.run(["ldd", BUSYBOX], capture_output=True, check=False).returncode != 0


def sha(data):
    return hashlib.sha256(data).hexdigest()


def entry(name, data=b"", *, kind=tarfile.REGTYPE, mode=0o644, uid=0, gid=0, link="", pax=None):
    """A member of a layer, with its contents."""
    info = tarfile.TarInfo(name)
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    info.type, info.mode, info.uid, info.gid, info.linkname = kind, mode, uid, gid, link
    info.pax_headers = pax or {}
    return info, data


def directory(name, mode=0o755, **more):
    return entry(name, kind=tarfile.DIRTYPE, mode=mode, **more)


def link(name, target):
    return entry(name, kind=tarfile.SYMTYPE, mode=0o777, link=target)


def layer(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def base():
    """A layer with a busybox that is some programs."""
    programs = ("sh", "cat", "ls", "id", "true", "sleep", "stat", "touch", "rm", "env", "pwd", "find")
    return layer(directory("bin"), entry("bin/busybox", BUSYBOX.read_bytes(), mode=0o755),
                 *(link("bin/" + name, "busybox") for name in programs), directory("etc"),
                 entry("etc/passwd", b"root:x:0:0::/:/bin/sh\nbob:x:1234:1235::/:/bin/sh\n"))


def config(layers, **settings):
    return json.dumps({"os": "linux", "architecture": "amd64", "config": {"Env": ["PATH=/bin"], **settings},
                       "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha(one) for one in layers]}}).encode()


def archive(path, members):
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def saved(path, layers, *, name="demo:1", text=None, packed=None, **settings):
    """As `docker save` writes it. `packed`: other bytes for the layers than themselves."""
    text = text or config(layers, **settings)
    members = {sha(text) + ".json": text}
    files = [f"{at}/layer.tar" for at in range(len(layers))]
    members |= dict(zip(files, packed or layers))
    members["manifest.json"] = json.dumps(
        [{"Config": sha(text) + ".json", "RepoTags": [name] if name else None, "Layers": files}]).encode()
    return archive(path, members)


def zstd(data):
    return subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout


def layout(path, layers, *, name="demo:1", kind="gzip", change=None, **settings):
    """A tar of an OCI layout. `change`: what becomes of the blobs, a dictionary by digest."""
    pack = {"gzip": gzip.compress, "zstd": zstd, "": bytes}[kind]
    text, packed = config(layers, **settings), [pack(one) for one in layers]
    media = "application/vnd.oci.image."
    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": media + "manifest.v1+json",
        "config": {"mediaType": media + "config.v1+json", "digest": "sha256:" + sha(text), "size": len(text)},
        "layers": [{"mediaType": media + "layer.v1.tar" + ("+" + kind if kind else ""),
                    "digest": "sha256:" + sha(one), "size": len(one)} for one in packed]}).encode()
    index = {"schemaVersion": 2, "manifests": [
        {"mediaType": media + "manifest.v1+json", "digest": "sha256:" + sha(manifest), "size": len(manifest),
         "annotations": {"org.opencontainers.image.ref.name": name}}]}
    blobs = {sha(one): one for one in (text, manifest, *packed)}
    if change:
        change(blobs, packed)
    return archive(path, {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode(),
                          **{"blobs/sha256/" + digest: data for digest, data in blobs.items()}})
