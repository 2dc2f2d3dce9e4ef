"""A page of the Python driver: the data of a matplotlib figure, so that a client can draw it anew.

A figure with one axes is a chart; one with more is a `superchart` of charts. The kind of a chart is told by what its axes
hold: lines, points, wedges, rectangles, or boxes. docs/contexts.md has the fields of each kind.
"""

import re
from decimal import Decimal, localcontext

from matplotlib import dates
from matplotlib.collections import PathCollection
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle, Wedge
from matplotlib.text import Text

UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")


def chart(figure):
    """The chart of a figure; None for one without data."""
    axes = figure.get_axes()
    if not any(ax.has_data() for ax in axes):
        return None
    if len(axes) == 1:
        return axes_chart(axes[0])
    title = figure._suptitle.get_text() if figure._suptitle else ""
    return {"type": "superchart", "title": title, "elements": [axes_chart(ax) for ax in axes]}


def axes_chart(ax):
    kind = kind_of(ax)
    found = {"type": kind, "title": ax.get_title() or None, "elements": []}
    KINDS.get(kind, lambda found, ax: None)(found, ax)
    return found


def kind_of(ax):
    """The first that fits. Lines of a grid (axhline, axvline) are no part of what they lie behind."""
    artists = [artist for artist in ax._children if not isinstance(artist, Text)]
    if all(isinstance(artist, Line2D) for artist in artists):
        return "line"
    if all(isinstance(artist, (PathPatch, Line2D)) for artist in artists):
        return "box_and_whisker"
    artists = [artist for artist in artists if not is_grid_line(artist)]
    for kind, of_class in (("scatter", PathCollection), ("pie", Wedge), ("bar", Rectangle)):
        if all(isinstance(artist, of_class) for artist in artists):
            return kind
    return "unknown"


def is_grid_line(artist):
    if not isinstance(artist, Line2D):
        return False
    x, y = artist.get_xdata(), artist.get_ydata()
    return len(x) == 2 and len(y) == 2 and bool(x[0] == x[1] or y[0] == y[1])


# ---- what charts have in common ----

def add_labels(found, ax):
    for axis in "xy":
        label = getattr(ax, "get_%slabel" % axis)() or None
        unit = UNIT.search(label) if label else None
        found[axis + "_label"] = label
        found[axis + "_unit"] = (unit[1] or unit[2]) if unit else None


def swap_labels(found):
    """For a chart that lies: what its values are measured on is its x axis."""
    for field in ("label", "unit"):
        found["x_" + field], found["y_" + field] = found["y_" + field], found["x_" + field]


def add_ticks(found, ax):
    for axis in "xy":
        ticks = list(getattr(ax, "get_%sticks" % axis)())
        labels = tick_labels(ax, axis)
        scale = getattr(ax, "get_%sscale" % axis)()
        if is_of_dates(getattr(ax, axis + "axis")):
            scale, ticks = "datetime", [dates.num2date(tick).isoformat() for tick in ticks]
        else:
            if scale == "linear" and is_categorical(ticks, labels):
                scale = "categorical"
            ticks = [plain(tick) for tick in ticks]
        found[axis + "_ticks"], found[axis + "_tick_labels"], found[axis + "_scale"] = ticks, labels, scale


def tick_labels(ax, axis):
    return [label.get_text() for label in getattr(ax, "get_%sticklabels" % axis)()]


def is_of_dates(axis):
    # get_converter() is new in matplotlib 3.10, where `converter` is deprecated.
    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    return isinstance(converter, dates._SwitchableDateConverter)


def is_categorical(ticks, labels):
    """An axis of names has ticks 0, 1, 2... of Python's own or of floats; numpy's integers are ticks that somebody has set."""
    return all(isinstance(tick, (int, float)) and tick == i and label != str(i)
               for i, (tick, label) in enumerate(zip(ticks, labels)))


def plain(value):
    """A value of Python's own: a date as text, a number of numpy's as a number."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[s]"))
    return value.item() if hasattr(value, "item") else value


def points(pairs):
    return [[plain(x), plain(y)] for x, y in pairs]


# ---- each kind ----

def add_lines(found, ax):
    add_labels(found, ax)
    add_ticks(found, ax)
    for line in ax.get_lines():
        if is_grid_line(line):
            continue
        label = str(line.get_label())
        if label.startswith("_child"):
            label = "Line " + label[len("_child"):]
        found["elements"].append({"label": label, "points": points(zip(line.get_xdata(), line.get_ydata()))})


def add_scatter(found, ax):
    add_labels(found, ax)
    add_ticks(found, ax)
    for collection in ax.collections:
        found["elements"].append({"label": collection.get_label(), "points": points(collection.get_offsets())})


def add_wedges(found, ax):
    for wedge in ax.patches:
        angle = abs(rounded(Decimal(float(wedge.theta2)) - Decimal(float(wedge.theta1))))
        found["elements"].append({"label": wedge.get_label(), "angle": float(angle), "radius": float(wedge.r)})


def add_bars(found, ax):
    """Bars of one height lie: their values are their widths. Each group of them swaps the labels, as with the peer."""
    add_labels(found, ax)
    for container in ax.containers:
        group = str(container.get_label())
        if group.startswith("_container"):
            group = "Group " + group[len("_container"):]
        values = [bar.get_height() for bar in container]
        labels = tick_labels(ax, "x")
        if all(value == values[0] for value in values):
            swap_labels(found)
            values = [bar.get_width() for bar in container]
            labels = tick_labels(ax, "y")
        found["elements"] += [{"label": label, "group": group, "value": plain(value)}
                              for label, value in zip(labels, values)]


class Box:
    """A box of a box plot as it would stand upright; its edges are the quartiles."""

    def __init__(self, label, xs, ys):
        self.label = label
        self.left, self.right, self.bottom, self.top = min(xs), max(xs), min(ys), max(ys)
        self.least = self.median = self.most = None
        self.outliers = []

    def is_below(self, xs):
        return self.left <= min(xs) and max(xs) <= self.right

    def take(self, ys):
        """A line that belongs to the box: a point outside, the median, or a whisker."""
        if len(ys) == 1:
            self.outliers.append(ys[0])
        elif len(ys) == 2 and ys[0] == ys[1] and self.bottom <= ys[0] <= self.top:
            self.median = ys[0]
        elif len(ys) == 2 and max(ys) == self.bottom:
            self.least = min(ys)
        elif len(ys) == 2 and min(ys) == self.top:
            self.most = max(ys)

    def element(self):
        return {"label": self.label, "min": number(self.least), "first_quartile": number(self.bottom),
                "median": number(self.median), "third_quartile": number(self.top), "max": number(self.most),
                "outliers": [number(outlier) for outlier in self.outliers]}


def add_boxes(found, ax):
    """Boxes of one height lie, and x and y change places."""
    add_labels(found, ax)
    shapes = [[[rounded(v) for v in column] for column in patch.get_path().vertices.T] for patch in ax.patches]
    lies = len({max(ys) - min(ys) for _, ys in shapes}) == 1
    if lies:
        swap_labels(found)
        shapes = [shape[::-1] for shape in shapes]

    boxes = [Box(label, xs, ys) for label, (xs, ys) in zip(tick_labels(ax, "x"), shapes)]
    for line in ax.lines:
        xs, ys = ([rounded(v) for v in data] for data in (line.get_xdata(), line.get_ydata()))
        if lies:
            xs, ys = ys, xs
        box = next((box for box in boxes if len(xs) and box.is_below(xs)), None)
        if box is not None:
            box.take(ys)
    found["elements"] = [box.element() for box in boxes]


def rounded(value):
    """Eight digits: with all of them the edge of a box and the end of its whisker miss each other."""
    value = Decimal(str(value))
    with localcontext() as context:
        context.prec = max(1, 8 - value.adjusted())
        return +value


def number(value):
    return None if value is None else float(value)


KINDS = {"line": add_lines, "scatter": add_scatter, "pie": add_wedges, "bar": add_bars, "box_and_whisker": add_boxes}
