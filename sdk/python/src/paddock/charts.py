"""The data of a plot, so that it can be drawn again elsewhere. The names are those of E2B's package."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type, TypeVar, Union

__all__ = [
    "BarChart", "BarData", "BoxAndWhiskerChart", "BoxAndWhiskerData", "Chart", "Chart2D",
    "ChartType", "LineChart", "PieChart", "PieData", "PointChart", "PointData", "ScaleType",
    "ScatterChart", "SuperChart",
]

E = TypeVar("E", bound=enum.Enum)
Value = Union[str, float]


class ChartType(str, enum.Enum):
    """What kind of plot it is."""

    LINE = "line"
    SCATTER = "scatter"
    BAR = "bar"
    PIE = "pie"
    BOX_AND_WHISKER = "box_and_whisker"
    SUPERCHART = "superchart"
    UNKNOWN = "unknown"


class ScaleType(str, enum.Enum):
    """How an axis runs."""

    LINEAR = "linear"
    DATETIME = "datetime"
    CATEGORICAL = "categorical"
    LOG = "log"
    SYMLOG = "symlog"
    LOGIT = "logit"
    FUNCTION = "function"
    FUNCTIONLOG = "functionlog"
    ASINH = "asinh"
    UNKNOWN = "unknown"


def _named(kind: Type[E], value: object) -> E:
    """The member of that value; `UNKNOWN` where this version has none."""
    try:
        return kind(value)
    except ValueError:
        return kind("unknown")


@dataclass
class PointData:
    """One line, or one set of points."""

    label: str
    points: List[Tuple[Value, Value]]


@dataclass
class BarData:
    """One bar."""

    label: str
    group: str
    value: Value


@dataclass
class PieData:
    """One slice."""

    label: str
    angle: float
    radius: float


@dataclass
class BoxAndWhiskerData:
    """One box."""

    label: str
    min: float
    first_quartile: float
    median: float
    third_quartile: float
    max: float
    outliers: List[float]


class Chart:
    """A plot: its type, its title and its elements."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = dict(data)
        self.type: ChartType = _named(ChartType, data.get("type"))
        """What kind of plot it is."""
        self.title: Optional[str] = data.get("title")
        """Its title."""
        self.elements: List[Any] = [self._element(e) for e in data.get("elements") or []]
        """What is in it."""

    def _element(self, data: Any) -> Any:
        return data

    def to_dict(self) -> Dict[str, Any]:
        """As it came."""
        return self._data

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type.value} {self.title!r}>"


class Chart2D(Chart):
    """A plot with two axes."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(data)
        self.x_label: Optional[str] = data.get("x_label")
        """What is written at the axis, as is `y_label`."""
        self.y_label: Optional[str] = data.get("y_label")
        self.x_unit: Optional[str] = data.get("x_unit")
        """What the label has in brackets, as is `y_unit`."""
        self.y_unit: Optional[str] = data.get("y_unit")


class PointChart(Chart2D):
    """A plot of points; its elements are `PointData`."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(data)
        self.x_ticks: List[Value] = list(data.get("x_ticks") or [])
        """Where the axis has marks, as are `y_ticks`."""
        self.x_tick_labels: List[str] = list(data.get("x_tick_labels") or [])
        """What is written there, as are `y_tick_labels`."""
        self.x_scale: ScaleType = _named(ScaleType, data.get("x_scale"))
        """How the axis runs, as is `y_scale`."""
        self.y_ticks: List[Value] = list(data.get("y_ticks") or [])
        self.y_tick_labels: List[str] = list(data.get("y_tick_labels") or [])
        self.y_scale: ScaleType = _named(ScaleType, data.get("y_scale"))

    def _element(self, data: Any) -> PointData:
        return PointData(data.get("label", ""), [(x, y) for x, y in data.get("points") or []])


class LineChart(PointChart):
    """Lines."""


class ScatterChart(PointChart):
    """Points."""


class BarChart(Chart2D):
    """Bars; its elements are `BarData`."""

    def _element(self, data: Any) -> BarData:
        return BarData(data.get("label", ""), data.get("group", ""), data.get("value", 0))


class PieChart(Chart):
    """A pie; its elements are `PieData`."""

    def _element(self, data: Any) -> PieData:
        return PieData(data.get("label", ""), data.get("angle", 0), data.get("radius", 0))


class BoxAndWhiskerChart(Chart2D):
    """Boxes; its elements are `BoxAndWhiskerData`."""

    def _element(self, data: Any) -> BoxAndWhiskerData:
        return BoxAndWhiskerData(
            data.get("label", ""), data.get("min", 0), data.get("first_quartile", 0),
            data.get("median", 0), data.get("third_quartile", 0), data.get("max", 0),
            list(data.get("outliers") or []))


class SuperChart(Chart):
    """Several plots in one picture; its elements are charts."""

    def _element(self, data: Any) -> Chart:
        return read_chart(data) or Chart({"type": "unknown"})


_KINDS: Dict[ChartType, Type[Chart]] = {
    ChartType.LINE: LineChart, ChartType.SCATTER: ScatterChart, ChartType.BAR: BarChart,
    ChartType.PIE: PieChart, ChartType.BOX_AND_WHISKER: BoxAndWhiskerChart,
    ChartType.SUPERCHART: SuperChart,
}


def read_chart(data: object) -> Optional[Chart]:
    """The chart of a result. None where there is none, or what came is none: the code in the sandbox
    wrote it, so anything may come."""
    if not isinstance(data, Mapping) or not data:
        return None
    try:
        return _KINDS.get(_named(ChartType, data.get("type")), Chart)(data)
    except (AttributeError, TypeError, ValueError):
        return None
