"""A language without a driver of ours, by a Jupyter kernel in the sandbox; by night: the kernel and the bridge's libraries are copied into it.

The driver alone: tests/contexts/test_bridge.py."""

import io
import json
import os
import subprocess
import tarfile

import pytest

from paddock_testing import drivers
from paddock_testing.run import NIGHTLY, wait_for
from test_contexts import Contexts

# ipykernel as a language of another name, so that no driver of ours takes it.
KERNEL = {"argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "Other", "language": "other"}


def without_tools(entry):
    """pip and setuptools are the environment's own."""
    return None if "/site-packages/pip" in entry.name or "/site-packages/setuptools" in entry.name else entry


def packed(site):
    """What goes into the sandbox's home: the libraries as pip would put them there, and the kernel's description."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(site, filter=without_tools, arcname=f".local/lib/{os.path.basename(os.path.dirname(site))}/site-packages")
        text = json.dumps(KERNEL).encode()
        entry = tarfile.TarInfo(".local/share/jupyter/kernels/other/kernel.json")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    return out.getvalue()


@pytest.fixture
def contexts(api, sandbox):
    install = subprocess.run([os.path.join(drivers.ROOT, "tests/contexts/install")], check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert install.returncode == 0, install.stdout
    folder = os.path.join(drivers.ROOT, "build-contexts/kernels/lib")
    data = packed(os.path.join(folder, os.listdir(folder)[0], "site-packages"))
    found = Contexts(api, sandbox)
    done = api.put(f"{found.box.base}/files/archive?path=/home/user", data=data, headers={"Content-Type": "application/x-tar"})
    assert done.status < 300, done
    return found


def text(found):
    assert found["error"] is None, found
    return found["results"][-1]["text"]


if NIGHTLY:     # 40 MiB are copied into a sandbox

    def test_a_kernel_of_the_sandbox(contexts):
        assert contexts.create(language="other", env={"OF_THE_CONTEXT": "there"})["language"] == "other"
        made = contexts.api.get(contexts.base).json()["contexts"][-1]["id"]
        first = contexts.run("import os, sys\nx = 5\nprint('out')\nprint('err', file=sys.stderr)\nos.environ['OF_THE_CONTEXT']", made)
        assert text(first) == "there" and first["stdout"] == "out\n" and first["stderr"] == "err\n"
        assert text(contexts.run("x", made)) == "5"
        assert contexts.run("1/0", made)["error"]["name"] == "ZeroDivisionError"
        shown = contexts.run("from IPython.display import HTML, display\ndisplay(HTML('<b>'))", made)
        assert shown["results"][0]["html"] == "<b>"

        late = contexts.run("while True: pass", made, timeout_s=1)
        assert late["state"] == "kept" and late["reason"] == "timeout" and late["error"]["name"] == "KeyboardInterrupt"
        assert text(contexts.run("x", made)) == "5"

        # Its end is the kernel's end.
        assert contexts.api.delete(f"{contexts.base}/{made}").status == 204
        wait_for(lambda: not contexts.box.is_there("ipykernel"), 30, "the kernel is gone")
