"""The Python driver: the data of figures, 22 kinds of them, each with all of its values.

By night each figure is also given to the peer's package e2b-charts, with the libraries of peer/requirements.txt: it must say
the same."""

import importlib.util
import json
import os
import subprocess

import pytest

from paddock_testing import drivers
from paddock_testing.run import NIGHTLY

if importlib.util.find_spec("pandas") is None or importlib.util.find_spec("matplotlib") is None:
    pytest.skip("there is no matplotlib on this host", allow_module_level=True)

LABELS = {"x_label": None, "y_label": None, "x_unit": None, "y_unit": None}
START = "import datetime, numpy as np, pandas as pd, matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n"
PEER = """
import e2b_charts, json, warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    print(json.dumps(e2b_charts.chart_figure_to_dict(plt.gcf()), default=lambda number: number.item()))
"""


@pytest.fixture(scope="module", params=["host", "peer"] if NIGHTLY else ["host"])
def warm(request, languages, tmp_path_factory):
    """A driver with the host's libraries, or with the peer's."""
    argv = languages["python"].argv
    if request.param == "peer":
        install = subprocess.run([os.path.join(drivers.ROOT, "tests/contexts/install")], check=False,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert install.returncode == 0, install.stdout
        argv = [os.path.join(drivers.ROOT, "build-contexts/peer/bin/python"), *argv[1:]]
    driver = drivers.Driver(languages["python"], argv=argv, cwd=tmp_path_factory.mktemp("charts"),
                            env={"MPLCONFIGDIR": str(tmp_path_factory.mktemp("mpl"))})
    driver.asks_peer = request.param == "peer"
    yield driver
    driver.stop()


def chart(warm, code, peer_too=True):
    asked = PEER if warm.asks_peer and peer_too else ""
    cell = warm.run(START + code + "\n" + asked + "None", limit=60)
    assert cell.error is None, cell.error["traceback"]
    assert len(cell.results) == 1 and "image/png" in cell.results[0]
    found = cell.results[0].get("e2b/chart")
    if asked:
        assert (found or {}) == json.loads(cell.stdout, parse_constant=lambda name: None)
    return found


def without_ticks(found):
    """Where ticks are is matplotlib's to decide; two tests below have them."""
    return {key: value for key, value in found.items() if "_tick" not in key}


def line(elements, **more):
    return {"type": "line", "title": None, **LABELS, "x_scale": "linear", "y_scale": "linear", "elements": elements, **more}


def test_01_a_line(warm):
    assert without_ticks(chart(warm, "ax.plot([1, 2, 3], [4, 5.5, 6])")) == line(
        [{"label": "Line 0", "points": [[1, 4.0], [2, 5.5], [3, 6.0]]}])


def test_02_lines_with_labels_and_units(warm):
    found = chart(warm, "ax.plot([1], [2], label='a'); ax.plot([3], [4]); ax.set_xlabel('Time (s)'); "
                  "ax.set_ylabel('Length [m]'); ax.set_title('T')")
    assert without_ticks(found) == line(
        [{"label": "a", "points": [[1, 2]]}, {"label": "Line 1", "points": [[3, 4]]}],
        title="T", x_label="Time (s)", y_label="Length [m]", x_unit="s", y_unit="m")


def test_03_ticks(warm):
    found = chart(warm, "ax.plot([0, 1], [0, 1]); ax.set_xticks([0, 0.5, 1]); ax.set_yticks([0, 1], ['low', 'high'])")
    assert found["x_ticks"] == [0.0, 0.5, 1.0] and found["x_tick_labels"] == ["0.0", "0.5", "1.0"]
    assert found["y_ticks"] == [0, 1] and found["y_tick_labels"] == ["low", "high"]
    assert (found["x_scale"], found["y_scale"]) == ("linear", "linear")     # names of numbers that somebody chose


def test_04_logarithms(warm):
    found = chart(warm, "ax.plot([1, 10], [1, 1000]); ax.set_yscale('log')")
    assert (found["x_scale"], found["y_scale"]) == ("linear", "log")


def test_05_dates(warm):
    found = chart(warm, "ax.plot([datetime.datetime(2024, 1, d) for d in (1, 2)], [1, 2]); "
                  "ax.set_xticks([datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 2)])")
    assert found["x_scale"] == "datetime"
    assert found["x_ticks"] == ["2024-01-01T00:00:00+00:00", "2024-01-02T00:00:00+00:00"]
    assert found["elements"][0]["points"] == [["2024-01-01T00:00:00", 1], ["2024-01-02T00:00:00", 2]]


def test_06_dates_of_numpy(warm):
    found = chart(warm, "ax.plot(np.array(['2024-01-01', '2024-01-02'], dtype='datetime64[ns]'), [1, 2])")
    assert found["x_scale"] == "datetime"
    assert found["elements"][0]["points"] == [["2024-01-01T00:00:00", 1], ["2024-01-02T00:00:00", 2]]


def test_07_categories(warm):
    found = chart(warm, "ax.plot(['a', 'b', 'c'], [1, 2, 3])")
    assert found["x_scale"] == "categorical" and found["x_tick_labels"] == ["a", "b", "c"]
    assert found["elements"][0]["points"] == [["a", 1], ["b", 2], ["c", 3]]


def test_08_lines_of_a_grid_are_left_out(warm):
    found = chart(warm, "ax.plot([1, 2, 3], [1, 2, 3]); ax.axhline(2); ax.axvline(1); ax.grid(); ax.text(1, 1, 'note')")
    assert [e["points"] for e in found["elements"]] == [[[1, 1], [2, 2], [3, 3]]]


def test_09_points(warm):
    assert without_ticks(chart(warm, "ax.scatter([1, 2], [3, 4.5])")) == {
        **line([{"label": "_child0", "points": [[1.0, 3.0], [2.0, 4.5]]}]), "type": "scatter"}


def test_10_groups_of_points(warm):
    found = chart(warm, "ax.scatter([1], [2], label='a'); ax.scatter([3], [4], label='b'); ax.axhline(0)")
    assert found["type"] == "scatter"
    assert found["elements"] == [{"label": "a", "points": [[1.0, 2.0]]}, {"label": "b", "points": [[3.0, 4.0]]}]


def test_points_with_names(warm):
    found = chart(warm, "ax.scatter(['a', 'b'], [1, 2])")
    assert (found["x_scale"], found["x_tick_labels"]) == ("categorical", ["a", "b"])
    found = chart(warm, "ax.scatter([0, 1, 2], [5, 6, 7]); ax.set_xticks([0, 1, 2], ['p', 'q', 'r'])")
    assert (found["x_scale"], found["x_tick_labels"]) == ("linear", ["p", "q", "r"])


def test_11_points_on_logarithms(warm):
    found = chart(warm, "ax.scatter([1, 10], [1, 100]); ax.set_xscale('log'); ax.set_xlabel('x')")
    assert (found["type"], found["x_scale"], found["x_label"]) == ("scatter", "log", "x")


def test_12_bars(warm):
    assert chart(warm, "ax.bar(['a', 'b'], [1, 2.5])") == {
        "type": "bar", "title": None, **LABELS,
        "elements": [{"label": "a", "group": "Group 0", "value": 1}, {"label": "b", "group": "Group 0", "value": 2.5}]}


def test_13_groups_of_bars(warm):
    found = chart(warm, "ax.bar(['a', 'b'], [1, 2], label='one'); ax.bar(['a', 'b'], [3, 4], bottom=[1, 2], label='two')")
    assert [(e["label"], e["group"], e["value"]) for e in found["elements"]] == [
        ("a", "one", 1), ("b", "one", 2), ("a", "two", 3), ("b", "two", 4)]


def test_14_bars_that_lie(warm):
    found = chart(warm, "ax.barh(['a', 'b'], [1, 2]); ax.set_xlabel('Value (kg)'); ax.set_ylabel('Name')")
    assert found == {"type": "bar", "title": None, "x_label": "Name", "y_label": "Value (kg)", "x_unit": None, "y_unit": "kg",
                     "elements": [{"label": "a", "group": "Group 0", "value": 1}, {"label": "b", "group": "Group 0", "value": 2}]}


def test_15_groups_of_bars_that_lie(warm):
    found = chart(warm, "ax.barh([0, 1], [1, 2], 0.4, label='one'); ax.barh([0.4, 1.4], [3, 4], 0.4, label='two'); "
                  "ax.set_yticks([0, 1], ['a', 'b']); ax.set_xlabel('Value')")
    assert found["x_label"] == "Value" and found["y_label"] is None     # swapped by each of the two
    assert [(e["label"], e["group"], e["value"]) for e in found["elements"]] == [
        ("a", "one", 1), ("b", "one", 2), ("a", "two", 3), ("b", "two", 4)]


def test_16_a_histogram_is_bars(warm):
    found = chart(warm, "ax.hist([1, 1, 2, 3, 3, 3], bins=3); ax.set_xticks([1, 2, 3], ['a', 'b', 'c'])")
    assert found["type"] == "bar"
    assert [(e["label"], e["value"]) for e in found["elements"]] == [("a", 2.0), ("b", 1.0), ("c", 3.0)]


def test_17_a_pie(warm):
    assert chart(warm, "ax.pie([1, 3], labels=['a', 'b'], autopct='%1.0f%%'); ax.set_title('P')") == {
        "type": "pie", "title": "P",
        "elements": [{"label": "a", "angle": 90.0, "radius": 1.0}, {"label": "b", "angle": 270.0, "radius": 1.0}]}


def test_18_a_pie_in_thirds(warm):
    found = chart(warm, "ax.pie([1, 1, 1], radius=0.5, explode=[0, 0.1, 0])")
    assert [(e["angle"], e["radius"]) for e in found["elements"]] == [(120.0, 0.5)] * 3


BOXES = "data = [[1, 2, 3, 4, 5, 20], [2, 3, 4, 5, 6]]\n"
BOX_ELEMENTS = [
    {"label": "a", "min": 1.0, "first_quartile": 2.25, "median": 3.5, "third_quartile": 4.75, "max": 5.0, "outliers": [20.0]},
    {"label": "b", "min": 2.0, "first_quartile": 3.0, "median": 4.0, "third_quartile": 5.0, "max": 6.0, "outliers": []}]


def test_19_boxes(warm):
    found = chart(warm, BOXES + "ax.boxplot(data, patch_artist=True); ax.set_xticks([1, 2], ['a', 'b']); ax.set_ylabel('V [x]')")
    assert found == {"type": "box_and_whisker", "title": None, **LABELS, "y_label": "V [x]", "y_unit": "x",
                     "elements": BOX_ELEMENTS}


def test_20_boxes_that_lie(warm):
    """Their labels are those of the x axis, as with the peer; the values are those of boxes that stand."""
    found = chart(warm, BOXES + "ax.boxplot(data, patch_artist=True, vert=False); ax.set_xticks([1, 2], ['a', 'b']); "
                  "ax.set_xlabel('V')")
    assert (found["x_label"], found["y_label"]) == (None, "V")
    assert found["elements"] == BOX_ELEMENTS


def test_21_more_than_one_axes(warm):
    found = chart(warm, "plt.close(fig)\nfig, (left, right) = plt.subplots(1, 2)\nleft.plot([1, 2, 3])\nright.bar(['a', 'b'], [1, 2])\n"
                  "fig.suptitle('Both')")
    assert (found["type"], found["title"]) == ("superchart", "Both")
    assert [e["type"] for e in found["elements"]] == ["line", "bar"]
    assert found["elements"][0]["elements"] == [{"label": "Line 0", "points": [[0.0, 1], [1.0, 2], [2.0, 3]]}]


def test_22_a_picture_is_unknown(warm):
    assert chart(warm, "ax.imshow([[1, 2], [3, 4]])") == {"type": "unknown", "title": None, "elements": []}


def test_a_figure_without_data_has_no_chart(warm):
    assert chart(warm, "pass") is None


def test_values_that_json_has_not(warm):
    found = chart(warm, "ax.plot([1, 2, 3], [1, np.nan, np.inf])")
    assert found["elements"][0]["points"] == [[1, 1.0], [2, None], [3, None]]


def test_frames_that_plot_themselves(warm):
    found = chart(warm, "pd.DataFrame({'a': [1, 2, 3], 'b': [4, 5, 6]}).plot(ax=ax)")
    assert [(e["label"], e["points"]) for e in found["elements"]] == [
        ("a", [[0, 1], [1, 2], [2, 3]]), ("b", [[0, 4], [1, 5], [2, 6]])]


def test_periods_of_pandas(warm):
    """The peer's package fails."""
    found = chart(warm, "pd.Series([1, 2, 3], index=pd.period_range('2024-01', periods=3, freq='M')).plot(ax=ax)", peer_too=False)
    assert found["type"] == "line"
    assert [y for _, y in found["elements"][0]["points"]] == [1, 2, 3]
