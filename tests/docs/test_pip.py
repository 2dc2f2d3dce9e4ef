"""`pip install ./sdk/python` in a built checkout: the package that it makes works in both modes, in a fresh
Python that knows nothing else."""

import json
import subprocess

import pytest

from paddock_testing import run as paddock

PROGRAM = """
import json, paddock
with paddock.SandboxClient() as client:
    done = client.execute(["sh", "-c", "echo $((6 * 7)); id -u"])
    print(json.dumps([paddock.__file__, done.stdout, done.exit_code]))
"""


@pytest.fixture(scope="module")
def fresh(checkout, tmp_path_factory):
    """An empty Python after the command. pip asks the registry for setuptools, its only need."""
    place = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", place], check=True,
                   timeout=paddock.seconds(120))
    pip = [place / "bin/pip", "--disable-pip-version-check", "--retries", "1", "--timeout", "30"]
    run = lambda *words: subprocess.run([*pip, *words], cwd=checkout, stdin=subprocess.DEVNULL,
                                        capture_output=True, text=True, check=False,
                                        timeout=paddock.seconds(300))
    done = run("install", "./sdk/python")
    if done.returncode and run("download", "--no-deps", "--dest", place / "probe", "setuptools").returncode:
        pytest.skip("the registry of Python packages cannot be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.mark.parametrize("mode", ["local", "remote"])
def test_the_installed_package_runs_commands(fresh, server, mode):
    """In mode local without a server: neither its address nor its key is known."""
    env = {name: value for name, value in paddock.clean_environment().items()
           if not name.startswith(("PADDOCK", "SANDBOX", "PYTHON"))}
    env["SANDBOX_MODE"] = mode
    if mode == "remote":
        env |= {"PADDOCK_URL": server.url, "PADDOCK_API_KEY": server.key}
    done = subprocess.run([fresh / "bin/python", "-I", "-c", PROGRAM], cwd="/", env=env, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False,
                          timeout=paddock.seconds(120))
    assert done.returncode == 0, done.stderr
    file, stdout, status = json.loads(done.stdout)
    assert file.startswith(str(fresh)) and (stdout, status) == ("42\n1000\n", 0), done.stdout
