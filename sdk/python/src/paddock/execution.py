"""What code gives back: its results, its output, its error. The names are those of E2B's package."""

from __future__ import annotations

import json as _json
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .charts import Chart, read_chart
from .models import Record

__all__ = ["Execution", "ExecutionError", "Logs", "OutputMessage", "Result"]

OUTPUT_MAX = 1024 * 1024  # characters of a stream that an Execution keeps


@dataclass
class OutputMessage:
    """A piece of output, as callbacks get it."""

    line: str
    """The text; a whole line with its end, if the code wrote one."""
    timestamp: Any = None
    """When it was read."""
    error: bool = False
    """Whether it came from standard error."""

    def __str__(self) -> str:
        return self.line


@dataclass
class ExecutionError(Record):
    """The exception that ended the code."""

    name: str
    """Its class. `ContextRestarting` when the interpreter died: see `Execution.reason`."""
    value: str = ""
    """Its text."""
    traceback: str = ""
    """The whole traceback."""

    def to_json(self) -> str:
        """As JSON."""
        return _json.dumps(self.to_dict())


@dataclass(repr=False)
class Result(Record):
    """Something that was displayed, or the value of the last expression, in every form that it has."""

    text: Optional[str] = None
    html: Optional[str] = None
    markdown: Optional[str] = None
    svg: Optional[str] = None
    png: Optional[str] = None
    """Base64, as are `jpeg` and `pdf`."""
    jpeg: Optional[str] = None
    pdf: Optional[str] = None
    latex: Optional[str] = None
    json: Any = None
    """A list or a dictionary."""
    javascript: Optional[str] = None
    data: Any = None
    """A table: the values of each column."""
    chart: Optional[Chart] = None
    """The data of a plot."""
    is_main_result: bool = False
    """It is the value of the last expression."""
    extra: Optional[Dict[str, Any]] = None
    """Forms that have no field of their own, by their MIME type."""

    def formats(self) -> List[str]:
        """The forms that it has."""
        own = ("text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json",
               "javascript", "data", "chart")
        return [name for name in own if getattr(self, name)] + list(self.extra or {})

    def __repr__(self) -> str:
        return f"Result({self.text})" if self.text else f"Result(Formats: {', '.join(self.formats())})"

    __str__ = __repr__

    # In a notebook it is shown as what it is.
    def _repr_html_(self) -> Optional[str]:
        return self.html

    def _repr_markdown_(self) -> Optional[str]:
        return self.markdown

    def _repr_svg_(self) -> Optional[str]:
        return self.svg

    def _repr_png_(self) -> Optional[str]:
        return self.png

    def _repr_jpeg_(self) -> Optional[str]:
        return self.jpeg

    def _repr_pdf_(self) -> Optional[str]:
        return self.pdf

    def _repr_latex_(self) -> Optional[str]:
        return self.latex

    def _repr_json_(self) -> Any:
        return self.json

    def _repr_javascript_(self) -> Optional[str]:
        return self.javascript


@dataclass
class Logs(Record):
    """What the code and its children wrote, in pieces as they came. Of very much output the beginning
    and the end are kept, with a note between them."""

    stdout: List[str] = field(default_factory=list)
    stderr: List[str] = field(default_factory=list)

    def to_json(self) -> str:
        """As JSON."""
        return _json.dumps(self.to_dict())


@dataclass
class Execution(Record):
    """How a piece of code ended, and what it gave."""

    results: List[Result] = field(default_factory=list)
    """What was displayed, and the value of the last expression, in their order."""
    logs: Logs = field(default_factory=Logs)
    """What was written."""
    error: Optional[ExecutionError] = None
    """The exception that ended it; None when there was none."""
    execution_count: Optional[int] = None
    """The how manieth of its context it was."""
    state: str = "kept"
    """`kept`: variables are as the code left them. `restarted`: the interpreter was lost, and they
    are gone."""
    reason: Optional[str] = None
    """Why: `timeout`, `oom`, `exit`, `killed`, `slept`, ..."""
    truncated: bool = False
    """Some results were too large, and were left out."""
    id: str = ""
    """Names it among the executions of its context."""

    @property
    def text(self) -> Optional[str]:
        """The value of the last expression as text."""
        return next((r.text for r in self.results if r.is_main_result), None)

    @property
    def success(self) -> bool:
        """It ended without an exception."""
        return self.error is None

    @property
    def output(self) -> str:
        """All of standard output."""
        return "".join(self.logs.stdout)

    @property
    def stderr(self) -> str:
        """All of standard error."""
        return "".join(self.logs.stderr)

    @property
    def state_lost(self) -> bool:
        """The variables of earlier code are gone."""
        return self.state == "restarted"

    def keys(self) -> List[str]:
        """The names of the fields and of the properties."""
        return [*super().keys(), "text", "success", "output", "stderr", "state_lost"]

    def to_json(self) -> str:
        """As JSON: `results`, `logs`, `error`."""
        shown = [{**{name: r.chart.to_dict() if name == "chart" and r.chart else
                     r[name] if name in r else (r.extra or {})[name] for name in r.formats()},
                  "text": r.text} for r in self.results]
        return _json.dumps({"results": shown, "logs": self.logs.to_json(),
                            "error": self.error.to_json() if self.error else None})


class _Pieces:
    """Fills a list with text that comes in pieces: of too much, the beginning and the end."""

    def __init__(self, into: List[str]) -> None:
        self._into = into
        self._head = OUTPUT_MAX // 2
        self._tail: List[str] = []
        self._tail_size = 0
        self._left_out = 0

    def add(self, text: str) -> None:
        if self._head >= len(text) and not self._tail:
            self._head -= len(text)
            self._into.append(text)
            return
        self._tail.append(text)
        self._tail_size += len(text)
        # Now and then, so that a long list is not cut at every piece.
        if self._tail_size > OUTPUT_MAX:
            self._cut()

    def _cut(self) -> None:
        tail = "".join(self._tail)
        if self._head:
            self._into.append(tail[:self._head])
            tail, self._head = tail[self._head:], 0
        over = max(len(tail) - OUTPUT_MAX // 2, 0)
        self._left_out += over
        self._tail, self._tail_size = [tail[over:]], len(tail) - over

    def finish(self) -> None:
        if self._left_out or self._tail_size > self._head + OUTPUT_MAX // 2:
            self._cut()
            self._into.append(f"\n[... {self._left_out} characters left out ...]\n")
        self._into.extend(self._tail)
        self._tail = []


Callbacks = Tuple[Optional[Callable[[OutputMessage], object]],
                  Optional[Callable[[OutputMessage], object]],
                  Optional[Callable[[Result], object]],
                  Optional[Callable[[ExecutionError], object]]]


class Cell:
    """Makes an `Execution` of the events of one execution, and calls back as they come."""

    def __init__(self, callbacks: Callbacks = (None, None, None, None)) -> None:
        self.execution = Execution()
        self.ended = False
        on_stdout, on_stderr, self._on_result, self._on_error = callbacks
        self._streams = {
            "stdout": (_Pieces(self.execution.logs.stdout), on_stdout),
            "stderr": (_Pieces(self.execution.logs.stderr), on_stderr)}

    def add(self, event: Mapping[str, Any]) -> None:
        """Takes one event. Those that this version does not know are left out."""
        kind, made = event.get("type"), self.execution
        if kind in self._streams:
            text = str(event.get("text", ""))
            pieces, tell = self._streams[kind]
            pieces.add(text)
            if tell:
                tell(OutputMessage(text, event.get("time"), kind == "stderr"))
        elif kind == "result":
            result = Result.from_json({**event, "chart": read_chart(event.get("chart"))})
            made.results.append(result)
            if self._on_result:
                self._on_result(result)
        elif kind == "error":
            made.error = ExecutionError.from_json(event)
            if self._on_error:
                self._on_error(made.error)
        elif kind == "start":
            made.id = str(event.get("id", ""))
            made.execution_count = event.get("execution_count")
        elif kind == "end":
            self._end(event)

    def _end(self, event: Mapping[str, Any]) -> None:
        made = self.execution
        made.state = event.get("state") or "kept"
        made.reason = event.get("reason")
        made.truncated = bool(event.get("truncated"))
        for pieces, _ in self._streams.values():
            pieces.finish()
        self.ended = True
