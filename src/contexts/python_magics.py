"""A page of the Python driver: cells that are not quite Python. `!cmd`, `x = !cmd`, `%magic`, `%%magic` and indented cells.

A cell comes here only when it does not parse. Lines are rewritten one at a time, each time the one where the
compiler found the error: so a line that merely looks like a magic, in a text or in an expression, is left alone. A line stays
one line, and the numbers in tracebacks stay true.
"""

import os
import re
import signal
import sys
import time

LINE = re.compile(r"^(?P<indent>\s*)(?:(?P<target>[A-Za-z_][\w.,\s\[\]'\"]*?)\s*=\s*)?(?P<sign>!!?|%)(?P<rest>(?!=).*)$")
CELL = re.compile(r"\A\s*%%(?P<sign>!?)(?P<name>\w*)[ \t]*(?P<line>[^\n]*)\n?(?P<body>.*)\Z", re.S)
HELP = re.compile(r"^\s*\??\s*(?P<name>[A-Za-z_][\w.]*)\s*\?{0,2}\s*$")
PIECE = re.compile(r"\$\$|\$\{[^}]*\}|\{(?P<expression>[^{}]+)\}|\$(?P<name>[A-Za-z_]\w*)")
NAME = "__paddock_magics__"     # under which rewritten lines find this page


def rewrite(source, compiles):
    """The cell as Python, or None where that is not possible. `compiles` raises SyntaxError for what is none."""
    setattr(core.builtins, NAME, core.page("magics"))
    cell = CELL.match(source)
    if cell:
        return "%s.run_cell_magic(%r, %r, %r)" % (NAME, cell["name"] or "bash", cell["line"].strip(), cell["body"])

    lines = dedent(source.split("\n"))
    for _ in range(len(lines) + 1):
        text = "\n".join(lines)
        try:
            compiles(text)
            return text
        except (SyntaxError, ValueError) as error:
            number = (getattr(error, "lineno", None) or 0) - 1
        if not 0 <= number < len(lines):
            return None
        changed = rewrite_line(lines[number])
        if changed is None:
            return None
        lines[number] = changed
    return None


def dedent(lines):
    """Without the indent of the first line, for cells that were cut out of a text."""
    first = next((line for line in lines if line.strip()), "")
    indent = first[:len(first) - len(first.lstrip())]
    return [line[len(indent):] if line.startswith(indent) else line for line in lines]


def rewrite_line(line):
    match = LINE.match(line)
    if match:
        target = match["target"]
        if match["sign"] == "%":
            call = "run_magic"
        else:
            call = "read_command" if target or match["sign"] == "!!" else "run_command"
        return "%s%s%s.%s(%r)" % (match["indent"], target + " = " if target else "", NAME, call, match["rest"])
    match = HELP.match(line)
    if match and "?" in line:
        return "help(%s)" % match["name"]
    return None


# ---- commands ----

class Lines(list):
    """What a command has printed, as lines; its names are IPython's."""

    n = property(lambda self: "\n".join(self))
    s = property(lambda self: " ".join(self))
    l = property(lambda self: list(self))


def expand(command, frame):
    """Puts in values: {expression} and $name, if there is such a variable. The rest is the shell's."""
    def value(match):
        if match[0] == "$$":
            return "$"
        source = match["expression"] or match["name"]
        if not source or match["name"] and source not in frame.f_locals and source not in frame.f_globals:
            return match[0]
        try:
            return str(eval(source, frame.f_globals, frame.f_locals))
        except Exception:
            return match[0]
    return PIECE.sub(value, command)


def spawn(command, output=None):
    """Starts a shell in this process group, so that an interrupt reaches it, too."""
    core.flush_streams()
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    actions = [(os.POSIX_SPAWN_DUP2, output, 1)] if output is not None else []
    # SIGPIPE is ignored in Python itself; programs expect it.
    return os.posix_spawn(shell, [shell, "-c", command], os.environ, file_actions=actions,
                          setsigdef=[signal.SIGINT, signal.SIGPIPE])


def wait(pid):
    """Until the command has ended; returns its exit status, which is also in _exit_code."""
    try:
        status = os.waitpid(pid, 0)[1]
    except BaseException:
        stop(pid)
        raise
    core.driver.namespace["_exit_code"] = os.waitstatus_to_exitcode(status)
    return core.driver.namespace["_exit_code"]


def stop(pid):
    """Ends a command after an interrupt, of which it may have had its own."""
    os.kill(pid, signal.SIGINT)
    deadline = time.monotonic() + 2
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def run_command(command):
    wait(spawn(expand(command, sys._getframe(1))))


def read_command(command):
    inner, outer = os.pipe()
    try:
        pid = spawn(expand(command, sys._getframe(1)), outer)
    finally:
        os.close(outer)
    try:
        with open(inner, encoding="utf-8", errors="backslashreplace") as output:
            text = output.read()
    except BaseException:
        stop(pid)
        raise
    wait(pid)
    return Lines(text.splitlines())


# ---- magics ----

def run_magic(text):
    name, _, line = text.strip().partition(" ")
    magic = MAGICS.get(name)
    if magic:
        return magic(expand(line.strip(), sys._getframe(1)) if name in EXPANDED else line.strip())
    return ask_guest("Line magic function `%%%s`" % name).run_line_magic(name, line.strip())


def run_cell_magic(name, line, body):
    magic = CELL_MAGICS.get(name)
    if magic:
        return magic(line, body)
    return ask_guest("Cell magic `%%%%%s`" % name).run_cell_magic(name, line, body)


class UsageError(Exception):
    pass


def ask_guest(what):
    """IPython's shell, for a magic that is none of the driver's."""
    try:
        import IPython
        return IPython.get_ipython()
    except ImportError:
        raise UsageError("%s not found; install ipython for those of IPython" % what) from None


def change_directory(line):
    os.chdir(os.path.expanduser(line.strip("'\"") or "~"))


def set_variable(line):
    if not line:
        return dict(os.environ)
    name, sign, value = line.partition("=") if "=" in line else line.partition(" ")
    if not sign:
        return os.environ[name]
    os.environ[name.strip()] = value.strip()


def install(line):
    wait(spawn("%s -m pip %s" % (sys.executable, line)))


def run_timed(line, body=None):
    processor, began = time.process_time(), time.perf_counter()
    value = core.run_source(body if body is not None else line, "<cell %d, timed>" % core.driver.count)
    print("CPU times: total: %.3g s\nWall time: %.3g s"
          % (time.process_time() - processor, time.perf_counter() - began))
    return value


def measure(line, body=None):
    if line.startswith("-"):
        return ask_guest("An option of %timeit").run_line_magic("timeit", line)
    import timeit
    setup, statement = (line, body) if body is not None else ("pass", line)
    timer = timeit.Timer(statement, setup or "pass", globals=core.driver.namespace)
    loops, _ = timer.autorange()
    runs = [run / loops for run in timer.repeat(7, loops)]
    mean = sum(runs) / len(runs)
    deviation = (sum((run - mean) ** 2 for run in runs) / len(runs)) ** 0.5
    print("%s +- %s per loop (mean +- std. dev. of 7 runs, %d loops each)"
          % (timeit_text(mean), timeit_text(deviation), loops))


def timeit_text(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return "%.3g %s" % (seconds / size, unit)
    return "%.3g ns" % (seconds / 1e-9)


def write_file(line, body):
    append = line.startswith("-a ")
    path = os.path.expanduser(line[3:].strip() if append else line)
    with open(path, "a" if append else "w", encoding="utf-8") as file:
        file.write(body)
    print("%s %s" % ("Appending to" if append else "Writing", path))


def run_script(line, body):
    status = wait(spawn(body))
    if status:
        from subprocess import CalledProcessError
        raise CalledProcessError(status, "%%bash")


def capture(line, body):
    """Runs the body without showing what it prints; a name on the line gets it."""
    import contextlib
    import io
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        core.run_source(body, "<cell %d, captured>" % core.driver.count)
    if line and not line.startswith("-"):
        core.driver.namespace[line] = core.types.SimpleNamespace(stdout=output.getvalue(), stderr=errors.getvalue())


def show_as(mime):
    return lambda line, body: core.page("display").display({mime: body, "text/plain": body}, raw=True)


def nothing(line):
    """Settings of a notebook that has nothing to set here."""


EXPANDED = {"cd", "pip", "conda"}
MAGICS = {
    "cd": change_directory, "pwd": lambda line: os.getcwd(), "env": set_variable, "set_env": set_variable,
    "pip": install, "conda": install, "time": run_timed, "timeit": measure,
    "matplotlib": nothing, "config": nothing, "load_ext": nothing, "reload_ext": nothing, "autoreload": nothing,
    "bash": lambda line: wait(spawn(line)), "sh": lambda line: wait(spawn(line)),
}
CELL_MAGICS = {
    "bash": run_script, "sh": run_script, "time": run_timed, "timeit": measure, "capture": capture,
    "writefile": write_file, "file": write_file,
    "html": show_as("text/html"), "HTML": show_as("text/html"), "markdown": show_as("text/markdown"),
    "latex": show_as("text/latex"), "svg": show_as("image/svg+xml"), "javascript": show_as("application/javascript"),
    "js": show_as("application/javascript"),
}
