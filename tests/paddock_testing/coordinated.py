"""What a runtime of agents does with the coordinator of the Python package, from a request's data to its end: a program
as it was written for older coordinators, run in a process of its own with SANDBOX_MODE naming the provider."""

import os
import subprocess
import sys

from . import run as paddock

CSV = "region,amount\nnorth,40\nsouth,2\n"
PROGRAM = """
import os, sys
import paddock
from paddock import get_sandbox_coordinator, reset_coordinator

mode, image = os.environ["SANDBOX_MODE"], sys.argv[1]
if image:
    name = type(get_sandbox_coordinator()).__name__
    reset_coordinator()
    coordinator = getattr(paddock, name)(options=paddock.SandboxOptions(image=image))
else:
    coordinator = get_sandbox_coordinator()

coordinator.set_request_context("request-7")
assert coordinator.ensure_session() is True, coordinator.last_error
assert coordinator.ensure_session_with_data("data/sales.csv") is True, coordinator.last_error
sandbox = paddock.Sandbox(coordinator.session_id)
told = sandbox.get_info()
print(type(coordinator).__name__, told.provider, told.isolation)

first = coordinator.execute_code('''
import csv
rows = list(csv.DictReader(open('sales.csv')))
print(len(rows), open('data/sales.csv').readline(), end='')
''', "load")
assert first["success"] is True and not first["error"], first
second = coordinator.execute_code("print(sum(int(r['amount']) for r in rows))", "sum")
assert second["success"] is True and second["output"].strip() == "42", second
print(first["output"] + second["output"], end="")
print(coordinator.execute_code("rows[2]")["error"].splitlines()[-1])

coordinator.cleanup_session("request-7")
assert not sandbox.is_running()
try:
    get_sandbox_coordinator("moon")
except ValueError as error:
    assert mode in str(error), error
    print(str(error).partition(" '")[0])
"""


def check_request(server, mode, directory, name, *, image="", isolation="basic"):
    """Runs the program with this server; `name` is the class that it must get."""
    (directory / "data").mkdir()
    (directory / "data" / "sales.csv").write_text(CSV)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PADDOCK", "SANDBOX_", "STIGMER_", "USE_CLOUDRUN"))}
    env |= {"PADDOCK_URL": server.url, "PADDOCK_API_KEY": server.key, "SANDBOX_MODE": mode,
            "PYTHONPATH": str(paddock.TOP / "sdk/python/src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, image], env=env, cwd=directory, capture_output=True, text=True,
                          timeout=paddock.seconds(120))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        f"{name} {mode} {isolation}", "2 region,amount", "42", "IndexError: list index out of range",
        "Unknown sandbox mode"], done
