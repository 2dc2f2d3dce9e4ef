"""Sandbox: one sandbox, with the nouns and verbs of E2B's package."""

from paddock import CommandExitError, Sandbox

with Sandbox.create(timeout=120, envs={"GREETING": "hello"}) as sandbox:
    sandbox.files.write("hello.py", "import os; print(os.environ['GREETING'], 'from the sandbox')")
    print(sandbox.commands.run("python3 hello.py").stdout.strip())

    # A program that stays, and its output.
    server = sandbox.commands.run("python3 -u -m http.server 8000", background=True)
    for line, _error, _pty in server:
        print(line.split(" port ")[0])
        break
    print("fetched:", "hello.py" in sandbox.commands.run("curl -s http://127.0.0.1:8000/").stdout)
    server.kill()

    # Variables hold from one piece of code to the next.
    sandbox.run_code("x = 41")
    print("run_code:", sandbox.run_code("print(x + 1)").output.strip())

    try:
        sandbox.commands.run("cat nothing.txt")
    except CommandExitError as error:
        print("status", error.exit_code, "-", error.stderr.strip())
