"""The command line of `paddock-agent`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import Callable, Dict, List, Optional, cast

from .. import __version__
from .._backend import Backend, open_backend
from .._text import text_callback
from ..errors import PaddockError
from .approve import Approver
from .box import Box
from .host import HostBackend
from .loop import Agent, Settings, TooManyTurns
from .models import ModelError, choose
from .project import Difference, Project, ProjectError
from .screen import Screen, is_terminal
from .store import Store, StoreError, Thread, all_agents, folder_of_all
from .text import one_line, plain
from .tools import Refusal, Tools
from .waiting import CALL_NAME, Interrupted, Leave, Waiter

TASK_MAX = 1024 * 1024

HELP = """/help          this
/auto          allow everything in the sandbox from here on, or ask again (Ctrl-T, Shift-Tab)
/diff          what is different in the sandbox from the directory of --put
/get           bring that back, after showing it
/undo          take the last write_file or edit_file back
/ports         what listens in the sandbox
/model NAME    ask another model: provider:name
/tokens        how much was used
/clear         begin a new conversation, in the same sandbox
/quit          leave (Ctrl-D)
!LINE          run a line in the sandbox yourself
Ctrl-C         end what is going on; twice: leave"""


class Usage(Exception):
    """The command line is wrong."""


def _options() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="paddock-agent", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="A coding agent in the terminal whose tools work in a sandbox.",
        epilog="commands:\n  paddock-agent list                      agents and their conversations\n"
               "  paddock-agent reset --agent NAME [--target OTHER] [--dry-run]\n"
               "                                          forget all, or become like OTHER\n\n"
               "The model's key is ANTHROPIC_API_KEY or OPENAI_API_KEY; a server is named by PADDOCK_URL and\n"
               "PADDOCK_API_KEY, and without one the sandbox is in this process.")
    p.add_argument("task", nargs="*", help="what to do; further messages are asked for")
    p.add_argument("-p", "--print", action="store_true", help="do the task (an argument, or standard input), write the "
                   "answer to standard output, and leave")
    p.add_argument("--json", action="store_true", help="as -p, with every event as a line of JSON")
    p.add_argument("--agent", default="agent", metavar="NAME", help="whose memory, skills and conversations")
    p.add_argument("--model", metavar="PROVIDER:NAME", help="anthropic:NAME or openai:NAME")
    p.add_argument("--model-timeout", type=_positive, default=120, metavar="SECONDS", help="how long it may be silent")
    p.add_argument("--window", type=_whole, default=160000, metavar="TOKENS", help="how much the model can take")
    p.add_argument("--max-turns", type=_whole, default=100, metavar="N", help="answers of the model to one message")
    p.add_argument("--put", metavar="DIR", help="copy this directory to /workspace, without what git ignores")
    p.add_argument("--get", action="store_true", help="with -p: bring changes back into DIR at the end, unasked")
    p.add_argument("--auto-approve", action="store_true", help="ask for nothing that stays in the sandbox")
    p.add_argument("--allow", action="append", default=[], metavar="PATTERN", help="do not ask for commands such as "
                   "'pytest*'; may be given several times")
    p.add_argument("--sandbox", default="paddock", metavar="paddock|none", help="none: work on this machine, here")
    p.add_argument("--yes-on-this-machine", action="store_true", help="allow --auto-approve without a sandbox")
    p.add_argument("--template", metavar="NAME", help="what the sandbox is made of")
    p.add_argument("-c", "--continue", dest="goes_on", action="store_true", help="go on with the last conversation")
    p.add_argument("-r", "--resume", metavar="ID", help="go on with this conversation")
    p.add_argument("--version", action="version", version=f"paddock-agent {__version__}")
    return p


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"'{text}' is not within 0 and 86400")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is less than 1")
    return value


# ---- list, reset ----

def _list() -> int:
    agents = all_agents()
    if not agents:
        print(f"there are no agents yet below {folder_of_all()}")
    for store in agents:
        threads = store.threads()
        print(f"{store.name}: {len(store.memory().splitlines())} lines of memory, {len(store.skills())} skills, "
              f"{len(threads)} conversations")
        for path in threads[:10]:
            print(f"  {path.stem}  {_first_words(path)}")
    return 0


def _first_words(path: Path) -> str:
    thread = Thread.peek(path)
    first = next((m["text"] for m in thread.messages if m["role"] == "user"), "")
    return f"{thread.head.get('began', '')}  {one_line(first, 70)}"


def _reset(arguments: List[str]) -> int:
    p = argparse.ArgumentParser(prog="paddock-agent reset", description="Forgets an agent's memory, skills and "
                                "conversations.")
    p.add_argument("--agent", required=True, metavar="NAME", help="the agent")
    p.add_argument("--target", metavar="OTHER", help="take over memory and skills of this agent")
    p.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    a = p.parse_args(arguments)
    store = Store(a.agent)
    source = Store(a.target) if a.target else None
    if source is not None and (not source.folder.is_dir() or source.folder == store.folder):
        raise StoreError(f"--target: there is no other agent '{a.target}': see `paddock-agent list`")
    goes = store.what_goes()
    for path in goes:
        print(f"{'would remove' if a.dry_run else 'removing'} {path}")
    if not goes:
        print(f"agent '{a.agent}' has nothing to forget")
    if not a.dry_run:
        store.reset(source)
        if source is not None:
            print(f"agent '{a.agent}' now has the memory and the skills of '{a.target}'")
    return 0


# ---- the program ----

class Program:
    """The parts, put together, and the commands of the user."""

    def __init__(self, a: argparse.Namespace) -> None:
        self._a = a
        self._is_task = a.print or a.json or not is_terminal(sys.stdin)
        self._waiter = Waiter()
        self._screen = Screen(self._waiter, as_json=a.json, only_answer=self._is_task)
        self._store = Store(a.agent)
        self._model = choose(a.model, a.model_timeout)
        self._thread = self._find_thread()
        self._is_host = a.sandbox == "none"
        project = None if self._is_host else self._find_project()
        self._agent = self._make(project)

    def _find_thread(self) -> Thread:
        if self._a.resume:
            return Thread.load(self._store.thread_path(self._a.resume))
        if self._a.goes_on:
            threads = self._store.threads()
            if not threads:
                raise StoreError(f"-c: agent '{self._store.name}' has no conversation yet")
            return Thread.load(threads[0])
        put = str(Path(self._a.put).resolve()) if self._a.put else None
        return Thread.begin(self._store, put=put)

    def _find_project(self) -> Optional[Project]:
        folder = self._a.put or self._thread.head.get("put")
        if not folder:
            if self._a.get:
                raise Usage("--get needs --put DIR")
            return None
        return Project(Path(str(folder)), self._thread.path.with_suffix(".base"))

    def _make(self, project: Optional[Project]) -> Agent:
        a = self._a
        backend = cast(Backend, HostBackend(Path.cwd())) if self._is_host else open_backend()
        box = Box(backend, f"{self._store.name}-{self._thread.id}", template=a.template,
                  was_there=bool(self._thread.messages) and not self._is_host,
                  fill=self._put if project is not None else None)
        if project is not None:
            project.use(box)
        tools = Tools(box, self._store, self._screen.output, is_host=self._is_host)
        approver = Approver(auto=a.auto_approve, allow=a.allow, is_host=self._is_host)
        settings = Settings(max_turns=a.max_turns, window=a.window,
                            may_be_auto=not self._is_host or a.yes_on_this_machine)
        return Agent(self._model, tools, box, approver, self._screen, self._waiter, self._store, self._thread, settings,
                     project)

    def _put(self) -> None:
        assert self._agent.project is not None
        count = self._agent.project.put()
        self._screen.say(f"{count} files of {self._agent.project.folder} are in /workspace", "dim")

    def run(self) -> int:
        """Until the user leaves; the exit status."""
        self._waiter.install()
        try:
            return self._task() if self._is_task else self._talk()
        except (Leave, Interrupted):
            self._screen.say("interrupted")
            return 130
        finally:
            self._thread.close()
            self._end()

    def _end(self) -> None:
        with contextlib.suppress(PaddockError):
            if self._agent.box.backend.mode != "remote":
                self._agent.box.end()

    # ---- one task ----

    def _task(self) -> int:
        text = " ".join(self._a.task)
        if not text and sys.stdin is not None:
            text = sys.stdin.buffer.read(TASK_MAX).decode("utf-8", "replace").strip()
        if not text:
            raise Usage("there is no task: give it as an argument, or on standard input")
        status = self._turn(text, self._screen.answer)
        self._bring_back(unasked=self._a.get)
        self._screen.event("end", status=status, conversation=self._thread.id,
                           input_tokens=self._agent.used.input_tokens, output_tokens=self._agent.used.output_tokens)
        return status

    def _turn(self, text: str, tell: Callable[[str], None]) -> int:
        """One message; whatever goes wrong is told, and the conversation stays as it is."""
        try:
            tell(self._agent.turn(text))
            return 0
        except Interrupted:
            self._screen.say("interrupted")
            return 130
        except TooManyTurns as error:
            self._screen.fail(str(error))
            return 3
        except PaddockError as error:
            self._screen.fail(f"the sandbox cannot be used: {error.message} ({error.remedy})")
        except (ModelError, ProjectError) as error:
            self._screen.fail(str(error))
        return 1

    def _bring_back(self, *, unasked: bool = False) -> None:
        """At the end: what is in a sandbox that ends with this process would be lost."""
        agent, project = self._agent, self._agent.project
        if project is None or not agent.box.is_open:
            return
        self._waiter.begin()
        try:
            found = self._waiter.call(project.difference)
            if not found.changes:
                return
            if unasked:
                self._write(project, found)
            elif agent.box.backend.mode != "remote":
                names = ", ".join(one_line(c.path, 80) for c in found.changes[:5])
                self._screen.warn(f"{len(found.changes)} files were changed in the sandbox, which ends now: {names}")
                if self._screen.can_ask:
                    self._get()
                else:
                    self._screen.warn("they are lost; with --get they are brought back")
        except PaddockError as error:
            self._screen.fail(f"changes cannot be brought back: {error.message}")

    # ---- talking ----

    def _talk(self) -> int:
        history = self._store.folder / "history"
        self._screen.prepare(history)
        where = f"on this machine, in {Path.cwd()}" if self._is_host else f"in a sandbox ({self._agent.box.backend.mode})"
        self._screen.say(f"paddock-agent {__version__}: {self._model}, {where}. /help tells more", "bold")
        if self._is_host:
            self._screen.warn("there is no sandbox: commands that you allow run on this machine, as you")
        if self._thread.messages:
            self._screen.say(f"going on with conversation {self._thread.id}, {len(self._thread.messages)} messages")
        try:
            if self._a.task:
                self._turn(" ".join(self._a.task), lambda _: None)
            self._lines()
            self._bring_back()
        finally:
            self._screen.keep_history(history)
        if self._thread.messages and not self._thread.problem:
            self._screen.say(f"`paddock-agent -r {self._thread.id}` goes on", "dim")
        return 0

    def _lines(self) -> None:
        pressed = False
        while True:
            try:
                line = self._screen.read("auto> " if self._agent.approver.auto else "> ").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                if pressed:
                    return
                pressed = True
                self._screen.say("Ctrl-C again leaves, and so does Ctrl-D")
                continue
            pressed = False
            if line in ("/quit", "/exit"):
                return
            if line:
                self._line(line)

    def _line(self, line: str) -> None:
        if not line.startswith(("/", "!")):
            self._turn(line, lambda _: None)
            return
        word, _, rest = line.partition(" ")
        commands: Dict[str, Callable[[], object]] = {
            "/help": lambda: self._screen.say(HELP), "/auto": self._agent.toggle_auto, "/diff": self._show_diff,
            "/get": self._get, "/undo": lambda: self._screen.say(self._agent.undo()),
            "/ports": self._ports, "/model": lambda: self._choose(rest.strip()), "/tokens": self._tokens,
            "/clear": self._clear}
        self._waiter.begin()
        try:
            if line.startswith("!"):
                self._run(line[1:])
            elif word in commands:
                commands[word]()
            else:
                self._screen.fail(f"'{word}' is no command: {', '.join(commands)}, /quit")
        except Interrupted:
            self._screen.say("interrupted")
        except PaddockError as error:
            self._agent.box.is_lost(error)
            self._screen.fail(f"{error.message} ({error.remedy})")
        except (ModelError, ProjectError, Refusal, StoreError) as error:
            self._screen.fail(str(error))

    def _run(self, command: str) -> None:
        """A line of the user's own, in the sandbox."""
        hear, finish = text_callback(self._screen.foreign)
        box = self._agent.box
        if command.strip():
            done = self._waiter.call(lambda: box.backend.exec(
                box.id, command, timeout_s=None, output_max_bytes=1, on_stdout=hear, on_stderr=hear))
            finish()
            if done.status:
                self._screen.say(f"[exit code {done.status}]", "dim")

    def _project(self) -> Project:
        if self._agent.project is None:
            raise ProjectError("no directory was sent with --put; what is in the sandbox is seen with !ls")
        if not self._agent.box.is_open:
            raise ProjectError("the sandbox was not used yet")
        return self._agent.project

    def _show_diff(self) -> Difference:
        project = self._project()
        found = self._waiter.call(project.difference)
        for change in found.changes:
            self._screen.say(project.diff(change))
        for line in found.left:
            self._screen.warn(f"stays in the sandbox: {line}")
        if not found.changes:
            self._screen.say("nothing is different")
        return found

    def _get(self) -> None:
        """Always asks: what was in the sandbox is on this machine afterwards."""
        project = self._project()
        found = self._show_diff()
        if not found.changes:
            return
        try:
            word = self._screen.read(f"write {len(found.changes)} files into {plain(str(project.folder))}? [y]es, [n]o: ")
        except (EOFError, KeyboardInterrupt):
            word = "n"
        if word.strip().lower() in ("y", "yes"):
            self._write(project, found)
        else:
            self._screen.say("nothing was written")

    def _write(self, project: Project, found: Difference) -> None:
        problems = project.get(found.changes)
        for problem in problems:
            self._screen.fail(f"not brought back: {problem}")
        self._screen.say(f"{len(found.changes) - len(problems)} files were written into {project.folder}")

    def _ports(self) -> None:
        ports = self._agent.box.backend.ports(self._agent.box.id)
        for port in ports:
            self._screen.say(f"{port.port}  {port.command or ''}")
        if not ports:
            self._screen.say("nothing listens")

    def _choose(self, name: str) -> None:
        if name:
            self._agent.model = self._model = choose(name, self._a.model_timeout)
        self._screen.say(f"the model is {self._agent.model}")

    def _tokens(self) -> None:
        used = self._agent.used
        self._screen.say(f"{used.input_tokens} tokens were sent, {used.output_tokens} received")

    def _clear(self) -> None:
        self._thread.close()
        self._thread = Thread.begin(self._store, put=self._thread.head.get("put"))
        self._agent.begin(self._thread)
        self._screen.say("a new conversation")


def _start(arguments: List[str]) -> int:
    if arguments[:1] == ["list"]:
        if arguments[1:]:
            raise Usage("list: takes no arguments")
        return _list()
    if arguments[:1] == ["reset"]:
        return _reset(arguments[1:])
    a = _options().parse_args(arguments)
    if a.sandbox not in ("paddock", "none"):
        raise Usage(f"--sandbox: '{one_line(a.sandbox, 40)}' is neither paddock nor none")
    if a.sandbox == "none" and a.auto_approve and not a.yes_on_this_machine:
        raise Usage("--auto-approve with --sandbox none would run whatever the model says on this machine, as you; add "
                    "--yes-on-this-machine if you mean it, or leave out --sandbox none")
    if a.sandbox == "none" and (a.put or a.get or a.template):
        raise Usage("--put, --get and --template are for a sandbox, and --sandbox none works in the current directory")
    return Program(a).run()


def main(arguments: Optional[List[str]] = None) -> int:
    """The program; gives its exit status."""
    try:
        return _start(sys.argv[1:] if arguments is None else arguments)
    except Usage as error:
        status, text = 2, str(error)
    except (ModelError, StoreError, ProjectError) as error:
        status, text = 1, str(error)
    except PaddockError as error:
        status, text = 1, f"{error.message} ({error.remedy})"
    except BrokenPipeError:
        return 1  # nobody reads any more
    except KeyboardInterrupt:
        return 130
    print(f"paddock-agent: {plain(text)}", file=sys.stderr)
    return status


def run() -> None:
    """The program, as a process: it ends here."""
    status = main()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    if any(thread.name == CALL_NAME for thread in threading.enumerate()):
        # A call that could not be ended must not keep the program.
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    run()
