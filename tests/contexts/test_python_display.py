"""The Python driver: values by MIME type, and other people's libraries: pandas, matplotlib, PIL, IPython."""

import base64
import importlib.util

import pytest

from paddock_testing import drivers

PNG = b"\x89PNG\r\n\x1a\n"


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"there is no {module} on this host")


@pytest.fixture(scope="module")
def warm(languages, tmp_path_factory):
    """One driver for all: the libraries take longer to import than the tests."""
    driver = drivers.Driver(languages["python"], cwd=tmp_path_factory.mktemp("cells"),
                            env={"MPLCONFIGDIR": str(tmp_path_factory.mktemp("mpl"))})
    yield driver
    driver.stop()


def is_png(text):
    return base64.b64decode(text, validate=True).startswith(PNG)


@pytest.mark.parametrize("method, mime", [
    ("html", "text/html"), ("markdown", "text/markdown"), ("svg", "image/svg+xml"), ("latex", "text/latex"),
    ("javascript", "application/javascript")])
def test_representations_as_text(warm, method, mime):
    cell = warm.run(f"class R:\n    def _repr_{method}_(self): return '<ä>'\n    def __repr__(self): return 'R'\nR()")
    assert cell.main == {mime: "<ä>", "text/plain": "R"}


@pytest.mark.parametrize("method, mime", [("png", "image/png"), ("jpeg", "image/jpeg"), ("pdf", "application/pdf")])
def test_representations_as_bytes(warm, method, mime):
    cell = warm.run(f"class R:\n    def _repr_{method}_(self): return b'\\x00\\xff'\n    def __repr__(self): return 'R'\nR()")
    assert cell.main == {mime: "AP8=", "text/plain": "R"}


@pytest.mark.parametrize("method, mime", [
    ("json", "application/json"), ("e2b_data", "e2b/data"), ("e2b_chart", "e2b/chart")])
def test_representations_as_json(warm, method, mime):
    cell = warm.run(f"class R:\n    def _repr_{method}_(self): return {{'a': [1, float('nan')]}}\n"
                    "    def __repr__(self): return 'R'\nR()")
    assert cell.main == {mime: {"a": [1, None]}, "text/plain": "R"}


def test_a_bundle_and_types_of_its_own(warm):
    cell = warm.run("class R:\n    def _repr_mimebundle_(self, **_): return {'a/b': 'c', 'x/y+json': {'z': 1}}, {}\n"
                    "    def __repr__(self): return 'R'\nR()")
    assert cell.main == {"a/b": "c", "x/y+json": {"z": 1}, "text/plain": "R"}
    assert warm.run("display({'text/html': 'x'}, raw=True)").results == [{"text/html": "x"}]


def test_a_class_is_shown_as_a_class(warm):
    cell = warm.run("class R:\n    def _repr_html_(self): return 'no'\nR")
    assert cell.main == {"text/plain": "<class '__main__.R'>"}


def test_an_object_that_displays_itself(warm):
    cell = warm.run("class R:\n    def _ipython_display_(self): print('self')\nR()")
    assert cell.stdout == "self\n" and cell.results == []


def test_lists_and_dicts_are_json_too(warm):
    code = "import datetime, decimal\n[1, (2, {3}), {4: None, 'd': datetime.date(2024, 1, 2)}, decimal.Decimal('1.5'), b'x']"
    assert warm.run(code).main["application/json"] == [1, [2, [3]], {"4": None, "d": "2024-01-02"}, "1.5", "b'x'"]
    assert "application/json" not in warm.run("(1, 2)").main


def test_a_data_frame(warm):
    needs("pandas")
    cell = warm.run("import pandas as pd\nframe = pd.DataFrame({'n': [1, 2], 'x': [0.5, None], 's': ['a', None], "
                    "'t': pd.to_datetime(['2024-01-02', None])})\nframe")
    assert cell.main["e2b/data"] == {"n": [1, 2], "x": [0.5, None], "s": ["a", None], "t": ["2024-01-02T00:00:00", None]}
    assert "<table" in cell.main["text/html"]
    assert cell.main["text/plain"].split()[:4] == ["n", "x", "s", "t"]
    twice = warm.run("pd.concat([frame[['n']], frame[['n']].rename(columns={'n': 5})], axis=1)")
    assert twice.main["e2b/data"] == {"n": [1, 2], "5": [1, 2]}


def test_a_data_frame_that_is_too_long_has_no_data(warm):
    needs("pandas")
    cell = warm.run("import numpy as np, pandas as pd; pd.DataFrame(np.zeros((500001, 2)))")
    assert "e2b/data" not in cell.main and "text/html" in cell.main
    assert cell.end["truncated"]


def test_numbers_of_numpy(warm):
    needs("numpy")
    cell = warm.run("import numpy as np\n[np.int64(1), np.float32(0.5), np.nan, np.bool_(True), np.arange(2)]")
    assert cell.main["application/json"] == [1, 0.5, None, True, [0, 1]]


# ---- figures ----

def test_figures_are_shown_at_the_end_and_closed(warm):
    needs("matplotlib")
    cell = warm.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    assert len(cell.results) == 1 and cell.main is None
    assert is_png(cell.results[0]["image/png"])
    assert cell.results[0]["e2b/chart"]["type"] == "line"
    assert cell.results[0]["text/plain"].startswith("<Figure size")
    assert warm.run("plt.get_fignums()").results == [{"application/json": [], "text/plain": "[]"}]


def test_show_shows_where_it_stands(warm):
    needs("matplotlib")
    cell = warm.run("import matplotlib.pyplot as plt\nprint('before')\nplt.plot([1])\nplt.show()\nprint('after')\n"
                    "plt.plot([2])\nplt.plot([3])\nplt.show()\nprint('end')")
    assert cell.kinds() == ["start", "stdout", "result", "stdout", "result", "stdout", "end"]
    assert len(cell.results[1]["e2b/chart"]["elements"]) == 2


@pytest.mark.parametrize("code", ["fig", "fig.show()", "display(fig)"])
def test_a_figure_by_its_name_is_shown_once(warm, code):
    needs("matplotlib")
    cell = warm.run(f"import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 2])\n{code}")
    assert [("image/png" in result) for result in cell.results] == [True]


def test_figures_of_a_cell_that_failed_are_shown_and_not_again(warm):
    needs("matplotlib")
    cell = warm.run("import matplotlib.pyplot as plt\nplt.plot([1])\n1/0")
    assert cell.kinds() == ["start", "result", "error", "end"]
    assert warm.run("1;").results == []


def test_figures_and_their_files(warm):
    needs("matplotlib")
    cell = warm.run("import matplotlib.pyplot as plt, os\nplt.plot([1])\nplt.savefig('a.png')\nos.path.getsize('a.png') > 0")
    assert cell.text == "True" and len(cell.results) == 2
    assert warm.run("import os; os.environ.get('MPLBACKEND')").text is None


def test_pictures_of_pil(warm):
    needs("PIL")
    cell = warm.run("from PIL import Image\npicture = Image.new('RGB', (2, 2))\npicture")
    assert is_png(cell.main["image/png"])
    assert [is_png(r["image/png"]) for r in warm.run("picture.show()").results] == [True]
    assert [is_png(r["image/png"]) for r in warm.run("picture.save('a.png')").results] == [True]
    assert warm.run("import io; picture.save(io.BytesIO(), 'PNG')").results == []


# ---- IPython, a guest ----

def test_display_of_ipython(warm):
    needs("IPython", "pandas")
    cell = warm.run("from IPython.display import display, HTML, Markdown\ndisplay(HTML('<b>x</b>'))\n"
                    "import pandas as pd\ndisplay(pd.DataFrame({'a': [1]}))\nMarkdown('*m*')")
    assert cell.results[0]["text/html"] == "<b>x</b>"
    assert cell.results[1]["e2b/data"] == {"a": [1]}
    assert cell.main["text/markdown"] == "*m*"
    assert cell.stderr == "" and cell.end["ok"]


def test_magics_of_ipython(warm):
    needs("IPython")
    cell = warm.run("%who_ls int")
    assert cell.error is None and isinstance(cell.main["application/json"], list)
    assert "per loop" in warm.run("%timeit -n1 -r1 pass").stdout
    assert warm.run("%no_such_magic").error is not None
    assert warm.run("get_ipython().user_ns is globals()").text == "True"
    warm.run("from IPython.display import clear_output; clear_output()")


def test_a_guest_has_no_thread(warm):
    needs("IPython")
    warm.run("import IPython")
    child = warm.fork()
    assert child.run("1").text == "1"
    child.stop()


def test_a_magic_without_ipython(start):
    python = start("python")
    cell = python.run("import sys; sys.modules['IPython'] = None\n%who")
    assert cell.error["name"] == "UsageError" and "install ipython" in cell.error["value"]


def test_a_warm_context(start, tmp_path):
    """Imported before any cell, as in a zygote: its forks have the libraries, and nothing of the warming up is seen."""
    needs("pandas", "matplotlib")
    python = start("python", env={"MPLCONFIGDIR": str(tmp_path)})
    cell = python.collect(python.send({"op": "import", "modules": ["numpy", "pandas", "matplotlib.pyplot"]}), limit=60)
    assert cell.kinds() == ["start", "end"] and cell.end["ok"]
    child = python.fork()
    cell = child.run("import pandas as pd; pd.DataFrame({'a': [1]})")
    assert cell.main["e2b/data"] == {"a": [1]} and cell.order[0][1]["count"] == 1
    one, other = (each.run("import numpy; float(numpy.random.rand())").text for each in (child, python))
    assert one != other
    child.stop()
