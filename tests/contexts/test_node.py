"""The driver of JavaScript and TypeScript, with the node of the host."""

import contextlib
import random
import shutil
import time

import pytest

from paddock_testing import drivers
from paddock_testing import run as paddock


@pytest.fixture
def node(start):
    if not shutil.which("node"):
        pytest.skip("there is no node on this host")
    return start("javascript")


@pytest.fixture
def typescript(start):
    if not shutil.which("node"):
        pytest.skip("there is no node on this host")
    try:
        return start("typescript")
    except drivers.Ended:
        pytest.skip("there is no typescript on this host")


def test_a_cell(node):
    cell = node.run("console.log('out'); console.error('err'); 6 * 7")
    assert cell.order[0][1]["count"] == 1
    assert cell.order[1:3] == [("stdout", "out\n"), ("stderr", "err\n")]
    assert cell.text == "42" and cell.end["ok"]
    assert node.ready["version"].split(".")[0].isdigit()


def test_what_stays(node):
    node.run("const a = 1; let b = 2; var c = 3; function f() { return a + b + c }; class K { k = 5 }")
    assert node.run("f() + new K().k").text == "11"
    assert node.run("b = 10; f()").text == "14"


@pytest.mark.parametrize("code, shown", [
    ("undefined", None), ("null", "null"), ("'text'", "'text'"), ("const q = 1", None), ("({a: 1})", "{ a: 1 }"),
    ("{a: 1}", "{ a: 1 }"), ("", None), ("// note", None), ("if (true) { 5 }", "5"), ("10n", "10n")])
def test_the_last_value_is_shown(node, code, shown):
    cell = node.run(code)
    assert cell.error is None and cell.text == shown


def test_values_by_type(node):
    assert node.run("[1, NaN, {a: null}]").main["application/json"] == [1, None, {"a": None}]
    assert "application/json" not in node.run("new Map([[1, 2]])").main
    assert "application/json" not in node.run("x = {}; x.x = x").main
    assert node.run("({ _toHtml() { return '<b>' }, _toPng() { throw 1 } })").main["text/html"] == "<b>"
    shown = node.run("({ [Symbol.for('Jupyter.display')]() { return { 'text/markdown': '*x*' } } })").main
    assert shown["text/markdown"] == "*x*"
    assert node.run("new Proxy({}, { get() { throw new Error('no') }, ownKeys() { throw new Error('no') } })").end["ok"]


def test_memory_is_told(node):
    before = node.run("1").end["memory"]
    assert 8 << 20 < before < 200 << 20
    assert node.run("kept = Buffer.alloc(64 << 20, 1); 0").end["memory"] > before + (60 << 20)
    node.run("kept = null")


def test_display_keeps_its_place(node):
    cell = node.run("console.log('a'); await display({x: 1}); console.log('b'); await display('s')")
    assert cell.kinds() == ["start", "stdout", "result", "stdout", "result", "end"]
    assert [event["main"] for event in cell.all("result")] == [False, False]


def test_children_keep_the_order(node):
    cell = node.run("const { execSync, spawnSync } = require('child_process'); console.log('a');"
                    "spawnSync('sh', ['-c', 'echo b; cat; ls /proc/self/fd | wc -l'], { stdio: 'inherit' }); console.log('c'); undefined")
    assert cell.stdout.split() == ["a", "b", "4", "c"]


def test_top_level_await(node):
    node.run("const later = v => new Promise(r => setTimeout(() => r(v), 5))")
    assert node.run("const x = await later(5); x + 1").text == "6"
    assert node.run("x").text == "5"
    assert node.run("await later({a: 1})").main["application/json"] == {"a": 1}
    assert node.run("await Promise.reject(new RangeError('no'))").error["name"] == "RangeError"


def test_imports(node, tmp_path):
    (tmp_path / "mine.mjs").write_text("export default 5; export const named = 6;")
    (tmp_path / "old.js").write_text("module.exports = { old: 7 }")
    assert node.run("import five, { named as six } from './mine.mjs'\nimport * as all from './mine.mjs'\n"
                    "import 'fs'\nimport fs from 'node:fs'\n[five, six, all.named, typeof fs.readFileSync]").main[
                        "application/json"] == [5, 6, 6, "function"]
    assert node.run("five + require('./old.js').old").text == "12"
    assert node.run("import path from 'path'; path.sep").text == "'/'"
    assert node.run("import x from './missing.mjs'").error is not None
    assert node.run("export const exported = 1; exported").text == "1"
    assert node.run("\"import x from 'y'\"").text is not None


@pytest.mark.parametrize("code, name", [
    ("throw new TypeError('no')", "TypeError"), ("nothing.at.all", "ReferenceError"), ("let 5", "SyntaxError"),
    ("function f( {", "SyntaxError"), ("throw 5", "Error"), ("throw null", "Error"), ("throw undefined", "Error"),
    ("throw Object.create(null)", "Error"),
    ("await new Promise(() => setTimeout(() => { throw new RangeError('late') }, 1))", "RangeError"),
    ("process.exit(3)", "ExitStatus")])
def test_errors(node, code, name):
    node.run("var kept = 1")
    cell = node.run(code)
    assert cell.error["name"] == name and not cell.end["ok"]
    assert node.run("kept").text == "1"


def test_exit_keeps_the_variables(node):
    cell = node.run("var kept = 2; console.log('last'); process.exit()")
    assert cell.end["ok"] and cell.stdout == "last\n"
    assert node.run("kept").text == "2"


def test_an_error_after_its_cell_is_printed(node):
    node.run("setTimeout(() => { throw new Error('much later') }, 10); Promise.reject(new Error('left')); undefined")
    node.wait_for_output(b"much later", stream=1)
    assert node.run("1").text == "1"


def test_variables_of_one_cell_are_put_back(start, node):
    node = start("javascript", env={"KEPT": "old"})
    code = "`${process.env.KEPT} ${process.env.NEW}`"
    assert node.run(code, env={"KEPT": "a", "NEW": "b"}).text == "'a b'"
    assert node.run(code).text == "'old undefined'"


@pytest.mark.parametrize("code", [
    "console.log('go'); while (true);", "console.log('go'); await new Promise(() => {})",
    "require('child_process').spawnSync('bash', ['-c', 'echo go; exec sleep 1000'], { stdio: 'inherit' }); while (true);"])
def test_an_interrupt_ends_the_cell_and_keeps_the_variables(node, code):
    node.run("var kept = 1")
    request = node.start(code)
    node.wait_for_output(b"go\n")
    node.interrupt()
    cell = node.collect(request)
    assert cell.error is not None
    after = node.run("kept")
    assert after.text == "1" and after.order[0][1]["count"] == 3


@pytest.mark.parametrize("code", [
    "new Promise(() => {})", "({ [Symbol.for('Jupyter.display')]: () => new Promise(() => {}) })",
    "setTimeout(() => console.log('again'), 1); new Promise(() => {})"])
def test_an_interrupt_ends_what_never_comes(node, code):
    node.run("var kept = 1")
    request = node.start("console.log('go'); " + code)
    node.wait_for_output(b"go\n")
    node.interrupt()
    assert node.collect(request).error["name"] == "Interrupt"
    assert node.run("kept").text == "1"


def wait_for_go(node):
    """Or for the end of the cell: a second interrupt of the round before it may come now. (The server sends one, then `settle`.)"""
    deadline = time.monotonic() + paddock.seconds(30)
    while b"go" not in node.data[0] and b'"end"' not in node.data[2]:
        node.fill(deadline)


def test_no_interrupt_is_lost(node):
    """Most come while the cell's guard begins or ends; some come twice, or when nothing runs."""
    node.run("var kept = 1")
    chance = random.Random(1)
    for number in range(paddock.rounds(300, 5000)):
        end = chance.choice(["await new Promise(() => {})", "new Promise(() => {})", "while (true);"])
        request = node.start("process.stdout.write('go'); " + end)
        if chance.random() < 0.8:
            wait_for_go(node)
        time.sleep(chance.random() * 0.0005)
        node.interrupt()
        if chance.random() < 0.1:
            node.interrupt()
        assert node.collect(request).error["name"] == "Interrupt", number
        if chance.random() < 0.1:
            node.interrupt()
            assert node.run("kept").text in ("1", None), number
    assert any(node.run("kept").text == "1" for _ in range(5))


def test_listeners_of_the_code_hear_interrupts(node):
    node.run("var heard = 0; process.on('SIGINT', () => heard++); process.once('SIGINT', () => heard++); undefined")
    for _ in range(3):
        request = node.start("setTimeout(() => console.log('go'), 1); await new Promise(() => {})")
        node.wait_for_output(b"go\n")
        node.interrupt()
        assert node.collect(request).error["name"] == "Interrupt"
    assert node.run("heard").text == "4"


def test_an_interrupt_between_cells_ends_nothing(node):
    """It may be heard a little later, when a cell runs that came at once; never twice."""
    node.run("var kept = 1")
    cells = []
    for _ in range(5):
        node.interrupt()
        cells += [node.run("kept") for _ in range(2)]
    assert all(cell.text == "1" or cell.error["name"] == "Interrupt" for cell in cells)
    assert sum(cell.error is not None for cell in cells) <= 5


def test_a_late_interrupt_does_not_hit_the_next_cell(node):
    """The server sends `settle` first, when it has interrupted the cell before."""
    node.run("var kept = 1")
    for _ in range(30):
        node.run("1")
        node.interrupt()
        node.send({"op": "settle"})
        cell = node.run("for (let i = 0; i < 1e6; i++);\nkept")
        assert cell.error is None and cell.text == "1", cell.error


def test_an_interrupt_that_was_heard_is_not_waited_for(node):
    request = node.start("process.stdout.write('go'); for (;;);")
    node.wait_for_output(b"go")
    node.interrupt()
    assert node.collect(request).error["name"] == "Interrupt"
    for _ in range(3):      # and one that never comes is not waited for for ever
        node.send({"op": "settle"})
    assert node.run("1").text == "1"


def test_text_that_is_none(node):
    assert node.run(r"'\ud800'").text == "'\\ud800'" or node.run(r"'\ud800'").text == "'\\uD800'"
    assert node.run(r"['\ud800\\ud800😀\u0000']").main["application/json"] == ["\\ud800\\ud800😀\0"]
    assert node.run(r"process.stdout.write('a\x1eb'); undefined").stdout == "a\x1eb"


def test_long_values_are_cut(node):
    cell = node.run("'a'.repeat(3000000)")
    assert cell.end["truncated"] and len(cell.text) < 1_100_000
    cell = node.run("await display({ [Symbol.for('Jupyter.display')]() { return { 'text/html': 'h'.repeat(17 << 20) } } })", limit=60)
    assert "text/html" not in cell.results[0] and cell.end["truncated"]


@pytest.mark.parametrize("code", [
    "JSON.stringify = JSON.parse = null", "Atomics.wait = Atomics.store = Atomics.notify = Atomics.load = null",
    "process.memoryUsage = null", "globalThis[Symbol.for('paddock.run')] = null", "globalThis.setTimeout = process.nextTick = null",
    "process.removeAllListeners()", "Error.prepareStackTrace = () => { throw 1 }"])
def test_what_code_replaces_does_not_keep_the_driver_from_its_work(node, code):
    node.run(code)
    assert node.run("[6 * 7]").main["application/json"] == [42]
    assert node.run("nosuch").error["name"] == "ReferenceError"


@pytest.mark.parametrize("code", [
    "String.prototype.split = null", "Promise.prototype.then = null", "Array.prototype.map = null; Array.prototype.push = null",
    "Object.prototype.toJSON = () => { throw 1 }", "require('fs').writeSync = () => { throw 1 }"])
def test_a_driver_that_cannot_go_on_ends(node, code):
    """At once: nobody waits for the end of a cell that it could not tell."""
    node.send({"op": "run", "code": code})

    def ended():
        with contextlib.suppress(BrokenPipeError):
            node.send({"op": "run", "code": "1"})
        return node.process.poll() is not None

    paddock.wait_for(ended, 30, "it ends")
    assert node.process.returncode != 0


def test_damaged_and_repeated_requests_are_left_out(node):
    node.run("var runs = 0")
    first = node.send({"op": "run", "code": "runs++"})
    sent = node.sent_line
    node.collect(first)
    name, crc, data = sent.split()
    for bad in (sent, b"\n", b"x\n", b"new %08x " % (int(crc, 16) ^ 1) + data + b"\n", b"new2 zzzzzzzz " + data + b"\n",
                b"new3 " + crc + b" !!!\n"):
        node.requests.sendall(bad)
    assert node.run("runs").text == "1"
    assert "there are run and settle" in node.collect(node.send({"op": "fork"}), until=("refused",)).end["why"]


def test_the_end_of_the_requests_is_the_end_of_the_driver(node):
    node.requests.shutdown(1)
    assert node.process.wait(paddock.seconds(30)) == 0


def test_a_host_without_node_says_127(languages, tmp_path):
    (tmp_path / "sh").symlink_to("/bin/sh")
    node = drivers.Driver(languages["javascript"], argv=[str(tmp_path / "sh"), *languages["javascript"].argv[1:]],
                          env={"PATH": str(tmp_path)}, wait=False)
    assert node.process.wait(paddock.seconds(30)) == 127
    node.stop()


def test_typescript(typescript):
    assert typescript.run("let n: number = 5; const f = <T>(x: T): T => x; f<number>(n)").text == "5"
    assert typescript.run("interface A { a: string }\nconst a: A = { a: 'x' }; a").main["application/json"] == {"a": "x"}
    assert typescript.run("enum E { One = 1, Two }\nE.Two as number").text == "2"
    typescript.run("import path from 'path'\nimport type { Nothing } from 'nowhere'")
    assert typescript.run("path.sep").text == "'/'"
    assert typescript.run("const later: Promise<number> = Promise.resolve(7); await later").text == "7"
    assert typescript.run("let broken: = 5").error is not None
    assert typescript.run("n").text == "5"
