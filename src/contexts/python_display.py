"""A page of the Python driver: how values are shown, and what is done when other people's libraries are imported.

A value is shown as a dict by MIME type, made from what the value says of itself (_repr_html_ and its like), and from what
is known here about figures, data frames, lists and dicts. IPython is a guest: when code imports it, it gets a shell
over the cells' namespace, and whatever is displayed through it comes back here.
"""

import binascii
import contextlib
import io
import os
import sys
import warnings

METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_",
    "text/latex": "_repr_latex_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
    "e2b/data": "_repr_e2b_data_",
    "e2b/chart": "_repr_e2b_chart_",
}
MATPLOTLIBRC = "/usr/share/matplotlib/mpl-data/matplotlibrc"
VALUES_MAX = 1000000    # of a list, a dict or a data frame that is sent as JSON

guest = None            # IPython's shell
shown_figures = []      # in this cell, by name: these are not shown once more at its end


# ---- a value by MIME type ----

class TooMuch(Exception):
    pass


def to_json(value, left=None):
    """Only what JSON can say. Numbers that it has not are null, keys are text, what is unknown is its str()."""
    left = left or [VALUES_MAX]
    left[0] -= 1
    if left[0] < 0:
        raise TooMuch

    if value is None or isinstance(value, (bool, int)):
        return value if type(value) in (bool, int, type(None)) else int(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else None
    if isinstance(value, str):
        return core.shorten(value)
    if isinstance(value, dict):
        return {core.shorten(str(key)): to_json(item, left) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item, left) for item in value]
    if type(value).__name__ in ("NAType", "NaTType"):
        return None     # missing in pandas
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "tolist"):
        return to_json(value.tolist(), left)
    return core.shorten(str(value))


def accept(mime, value):
    """A value as it may stand in an event, or None."""
    if isinstance(value, (bytes, bytearray)):
        return binascii.b2a_base64(value, newline=False).decode()
    if mime.endswith("json") or mime.startswith("e2b/"):
        return to_json(value)
    if not isinstance(value, str):
        return None
    if mime == "text/plain":
        return core.shorten(value)
    return value.encode("utf-8", "backslashreplace").decode()


def add(data, mime, make):
    """Adds what make() gives. A representation that fails is left out: the others may do."""
    try:
        value = make()
        value = accept(mime, value[0] if isinstance(value, tuple) else value) if value is not None else None
    except TooMuch:
        core.driver.truncated = True
        return
    except Exception:
        return
    if value is not None:
        data[mime] = value


def own_representations(value):
    """What the value says of itself."""
    data = {}
    if isinstance(value, type) or hasattr(value, "_paddock_asks_for_no_such_name_"):
        return data     # a class has the methods of its objects; a mock has every name
    try:
        bundle = value._repr_mimebundle_(include=None, exclude=None)
        bundle = bundle[0] if isinstance(bundle, tuple) else bundle
        for mime, item in dict(bundle).items():
            add(data, str(mime), lambda: item)
    except Exception:
        pass
    for mime, name in METHODS.items():
        method = getattr(value, name, None)
        if mime not in data and callable(method):
            add(data, mime, method)
    return data


def guest_representations(data, value):
    """What libraries have registered with IPython for the type of the value."""
    for mime, formatter in guest.display_formatter.formatters.items():
        if mime == "text/plain" or mime in data:
            continue
        try:
            printer = formatter.lookup(value)
        except KeyError:
            continue
        add(data, mime, lambda: printer(value))


def frame_data(frame):
    if frame.size > VALUES_MAX:
        raise TooMuch
    return {str(name): frame.iloc[:, i].tolist() for i, name in enumerate(frame.columns)}


def known(module, name, value):
    """Whether the value is of a class of a library, without importing it."""
    known_class = getattr(sys.modules.get(module), name, None)
    return isinstance(known_class, type) and isinstance(value, known_class)


def bundle(value):
    """The value by MIME type."""
    data = {}
    try:
        add_representations(data, value)
    except Exception:
        pass    # __getattr__ or __class__ of the value's own
    if "text/plain" not in data:
        data["text/plain"] = core.shorten(text_of(value))
    return data


def add_representations(data, value):
    data.update(own_representations(value))
    if guest is not None:
        guest_representations(data, value)

    if known("matplotlib.figure", "Figure", value):
        shown_figures.append(value)
        add(data, "image/png", lambda: draw(value))
        add(data, "e2b/chart", lambda: core.page("charts").chart(value))
    elif known("pandas", "DataFrame", value):
        add(data, "e2b/data", lambda: frame_data(value))
    elif isinstance(value, (list, dict)) and "application/json" not in data:
        add(data, "application/json", lambda: value)


def text_of(value):
    try:
        return repr(value)
    except Exception as error:
        return "<%s, whose __repr__ raised %s>" % (type(value).__name__, type(error).__name__)


def show(value, main):
    method = None
    try:
        if not isinstance(value, type) and not hasattr(value, "_paddock_asks_for_no_such_name_"):
            method = getattr(value, "_ipython_display_", None)
    except Exception:
        pass
    if callable(method):
        method()
    else:
        core.send_result(bundle(value), main)


def display(*values, raw=False, **options):
    for value in values:
        if raw:
            data = {}
            for mime, item in dict(value).items():
                add(data, str(mime), lambda: item)
            core.send_result(data, main=False)
        else:
            show(value, main=False)


# ---- figures ----

def draw(figure):
    picture = io.BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight")
    return picture.getvalue()


def show_figures(*arguments, **options):
    """Shows the open figures and closes them: the next cell begins without."""
    pyplot = sys.modules["matplotlib.pyplot"]
    try:
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            if not any(figure is other for other in shown_figures):
                core.send_result(bundle(figure), main=False)
    finally:
        shown_figures.clear()
        pyplot.close("all")


class FiguresLoader:
    """matplotlib's backend: pictures are drawn in memory, and show() shows them here."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        from matplotlib.backend_bases import FigureManagerBase
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        class FigureManager(FigureManagerBase):
            def show(self):
                core.send_result(bundle(self.canvas.figure), main=False)

        class FigureCanvas(FigureCanvasAgg):
            manager_class = FigureManager

        module.FigureCanvas, module.FigureManager, module.show = FigureCanvas, FigureManager, show_figures


# ---- other people's libraries ----

@contextlib.contextmanager
def surroundings(module):
    """What a module needs while it is imported: Debian's matplotlib looks for its settings in /etc only, and a sandbox may
    have them where they are installed. Not for longer: children would inherit the variable."""
    is_needed = (module.__name__ == "matplotlib" and "MATPLOTLIBRC" not in os.environ
                 and not os.path.exists("/etc/matplotlibrc") and os.path.exists(MATPLOTLIBRC))
    if is_needed:
        os.environ["MATPLOTLIBRC"] = MATPLOTLIBRC
    try:
        yield
    finally:
        if is_needed:
            os.environ.pop("MATPLOTLIBRC", None)


def imported(module):
    """Called behind the first import of a module that the driver waits for."""
    {"matplotlib": prepare_matplotlib, "PIL.Image": prepare_pillow, "IPython": invite}[module.__name__](module)


def prepare_matplotlib(matplotlib):
    # Not by MPLBACKEND: children would inherit it, and have no such module.
    matplotlib.rcParams["backend"] = "module://paddock_figures"


def prepare_pillow(module):
    """show() and save() to a file show the picture."""
    save = module.Image.save

    def save_and_show(self, fp, format=None, **parameters):
        caller = sys._getframe(1).f_globals.get("__name__") or ""
        if isinstance(fp, (str, os.PathLike)) and not caller.startswith("matplotlib"):
            display(self)
        return save(self, fp, format, **parameters)

    def show(self, *arguments, **options):
        display(self)

    module.Image.save, module.Image.show = save_and_show, show


def invite(ipython):
    """Gives IPython a shell over the cells' namespace. It has no history, whose thread would be in the way of forks."""
    global guest
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.formatters import DisplayFormatter
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Publisher(DisplayPublisher):
        def publish(self, data, *arguments, update=False, **options):
            if not update:
                display(data, raw=True)

        def clear_output(self, wait=False):
            pass

    class Formatter(DisplayFormatter):
        def format(self, value, include=None, exclude=None):
            return bundle(value), {}

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    hooks = sys.displayhook, sys.excepthook
    main = sys.modules["__main__"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")     # a home that cannot be written to is not worth a word
        shell = InteractiveShell.instance(config=config, user_module=main, user_ns=main.__dict__)
    shell.display_pub, shell.display_formatter = Publisher(parent=shell), Formatter(parent=shell)
    sys.displayhook, sys.excepthook = hooks
    guest = shell


def warm_up():
    """Does once what the first table and the first picture would do: forks find it done."""
    core.page("magics")
    if "pandas" in sys.modules:
        bundle(sys.modules["pandas"].DataFrame({"a": [1.5]}))
    if "matplotlib.pyplot" in sys.modules:
        pyplot = sys.modules["matplotlib.pyplot"]
        figure, axes = pyplot.subplots()
        axes.plot([1, 2])
        bundle(figure)
        shown_figures.clear()
        pyplot.close("all")
