// The terminal without a page: vectors, hostile bytes, and a screen that another program drew.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { BOLD, INVERSE, keyBytes, Terminal, widthOf } from '../../web/vt.js';

const bytes = (text) => new TextEncoder().encode(text);
function screen(text, cols = 10, rows = 4) {
  const replies = [];
  const t = new Terminal(cols, rows, { reply: (r) => replies.push(r) });
  t.write(bytes(text));
  return Object.assign(t, { replies });
}

// What is written to 10 columns and 4 rows, and what stands there then.
const VECTORS = {
  'text and line ends': ['ab\r\ncd', ['ab', 'cd', '', '']],
  'a line feed keeps the column': ['ab\ncd', ['ab', '  cd', '', '']],
  'wraps at the edge': ['0123456789ab', ['0123456789', 'ab', '', '']],
  'the last column waits': ['0123456789\r\nx', ['0123456789', 'x', '', '']],
  'no wrap': ['\x1b[?7l0123456789ab', ['012345678b', '', '', '']],
  scrolls: ['1\r\n2\r\n3\r\n4\r\n5', ['2', '3', '4', '5']],
  'backspace and tab': ['ab\bc\td', ['ac      d', '', '', '']],
  'goes anywhere': ['\x1b[3;4Hx\x1b[Hy', ['y', '', '   x', '']],
  'stays on the screen': ['\x1b[99;99Hx\x1b[99A\x1b[99Dy', ['y', '', '', '         x']],
  'erases to the end': ['abcdef\x1b[3D\x1b[K', ['abc', '', '', '']],
  'erases to the start': ['abcdef\x1b[3D\x1b[1K', ['    ef', '', '', '']],
  'erases all': ['ab\r\ncd\x1b[2J', ['', '', '', '']],
  'erases below': ['ab\r\ncd\r\nef\x1b[2;2H\x1b[J', ['ab', 'c', '', '']],
  'inserts and deletes characters': ['abcd\x1b[2G\x1b[2@X\x1b[1P', ['aXbcd', '', '', '']],
  'inserts lines': ['1\r\n2\r\n3\r\n4\x1b[2;1H\x1b[L', ['1', '', '2', '3']],
  'deletes lines': ['1\r\n2\r\n3\r\n4\x1b[2;1H\x1b[M', ['1', '3', '4', '']],
  'a region scrolls alone': ['1\r\n2\r\n3\r\n4\x1b[2;3r\x1b[3;1H\nx', ['1', '3', 'x', '4']],
  'reverse index': ['1\r\n2\x1b[H\x1bMx', ['x', '1', '2', '']],
  'lines are drawn': ['\x1b(0lqk\x1b(Bq', ['┌─┐q', '', '', '']],
  'repeats': ['a\x1b[3b', ['aaaa', '', '', '']],
  'the alternate screen leaves the main one': ['main\x1b[?1049hother\x1b[?1049lx', ['mainx', '', '', '']],
  'wide characters': ['漢字x', ['漢字x', '', '', '']],
  'half of a wide one is gone': ['漢字\x1b[2Gx', [' x字', '', '', '']],
  'marks stay with their letter': ['e\u0301x', ['e\u0301x', '', '', '']],
  'unknown sequences are nothing': ['a\x1b[?9999h\x1b[>4;1m\x1b[1;2;3zb', ['ab', '', '', '']],
  'strings of others are nothing': ['a\x1bPq#0;2;0;0;0~\x1b\\b\x1b_x\x1b\\c\x1b^y\x1b\\d', ['abcd', '', '', '']],
  'a sequence is cut off': ['a\x1b[12\x18b\x1b]0;x\x1ac', ['abc', '', '', '']],
  'a control inside of a sequence': ['ab\x1b[1\rCx', ['ax', '', '', '']],
  'the clipboard and links are left alone': ['a\x1b]52;c;aGVsbG8=\x07b\x1b]8;;http://evil.example\x07c\x1b]8;;\x07', ['abc', '', '', '']],
};
for (const [name, [input, expected]] of Object.entries(VECTORS)) {
  test(name, () => {
    assert.deepEqual(screen(input).lines(), expected);
    // The same in pieces of one byte.
    const slowly = new Terminal(10, 4);
    for (const byte of bytes(input)) slowly.write(Uint8Array.of(byte));
    assert.deepEqual(slowly.lines(), expected);
  });
}

test('colours and looks', () => {
  const t = screen('\x1b[1;31ma\x1b[38;5;200;48;2;1;2;3mb\x1b[7mc\x1b[0md\x1b[97me');
  const [a, b, c, d, e] = t.grid[0].map((cell) => cell.look);
  assert.deepEqual([a.fg, a.flags], [1, BOLD]);
  assert.deepEqual([b.fg, b.bg], [200, '#010203']);
  assert.equal(c.flags, BOLD | INVERSE);
  assert.deepEqual([d.fg, d.bg, d.flags], [null, null, 0]);
  assert.equal(e.fg, 15);
});

test('a title is text of bounded length, and nothing is sent back but fixed answers', () => {
  const t = screen(`\x1b]2;<b>\u202ehi${'x'.repeat(5000)}\x07\x1b[6n\x1b[5n\x1b[c\x1b[>c\x1b[21t\x1bP$qm\x1b\\\x1b]10;?\x07`);
  assert.equal(t.title.length <= 256 && t.title.startsWith('<b>hi'), true);
  assert.deepEqual(t.replies, ['\x1b[1;1R', '\x1b[0n', '\x1b[?62;22c', '\x1b[>1;10;0c']);
});

test('what scrolls off is kept, up to a limit', () => {
  const t = new Terminal(10, 4, { scrollback: 100 });
  for (let i = 0; i < 1000; i++) t.write(bytes(`${i}\r\n`));
  assert.ok(t.history.length <= 300 && t.history.length >= 100);
  assert.equal(t.textOf(t.history.at(-1)), '996');
  assert.equal(t.forgotten + t.history.length, 997);
  t.write(bytes('\x1b[3J'));
  assert.equal(t.history.length, 0);
});

test('another size', () => {
  const t = screen('1\r\n2\r\n3\r\n4');
  t.resize(5, 2);
  assert.deepEqual(t.lines(), ['3', '4']);
  t.resize(20, 6);
  assert.deepEqual(t.lines(), ['3', '4', '', '', '', '']);
  t.write(bytes('x'.repeat(25)));
  assert.deepEqual(t.lines()[1].length, 20);
  for (const [cols, rows] of [[0, 0], [2, 1], [1e9, 1e9], [80, 24]]) t.resize(cols, rows);
  assert.equal(t.grid.length, 24);
});

test('hostile bytes: nothing breaks, nothing grows', () => {
  let seed = 1;
  const random = (n) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return seed % n;
  };
  const pieces = ['\x1b[', '\x1b]', '\x1bP', '\x1b(0', '?', '1049', '47', ';', 'h', 'l', 'm', 'H', 'J', 'K', 'L', 'M', 'r', 'S', 'T', '@', 'P', 'X',
    'b', '99999999', '\r', '\n', '\t', '\b', '\x07', '漢', '\u0301', '😀', 'a', '\x1b7', '\x1b8', '\x1bM', '\x1bD', '\x1bc', '\x18', '3', '2', ':'];
  for (let round = 0; round < 300; round++) {
    const t = new Terminal(2 + random(40), 1 + random(20), { scrollback: 50 });
    for (let i = 0; i < 200; i++) {
      t.write(random(8) ? bytes(pieces[random(pieces.length)]) : Uint8Array.from({ length: 4 }, () => random(256)));
      if (random(50) === 0) t.resize(2 + random(40), 1 + random(20));
    }
    assert.equal(t.grid.length, t.rows);
    for (const row of t.grid) {
      assert.equal(row.length, t.cols);
      for (const cell of row) assert.ok(typeof cell.text === 'string' && cell.text.length <= 20 && !/[\x00-\x1f]/.test(cell.text));
    }
    assert.ok(t.x >= 0 && t.x < t.cols && t.y >= 0 && t.y < t.rows && t.top <= t.bottom && t.bottom < t.rows);
    assert.ok(t.history.length <= 250 + t.rows);
  }
});

test('keys', () => {
  const plain = { keys: false };
  const key = (name, more = {}, modes = plain) => keyBytes({ key: name, ...more }, modes);
  assert.equal(key('a'), 'a');
  assert.equal(key('Enter'), '\r');
  assert.equal(key('Backspace'), '\x7f');
  assert.equal(key('c', { ctrlKey: true }), '\x03');
  assert.equal(key('[', { ctrlKey: true }), '\x1b');
  assert.equal(key('x', { altKey: true }), '\x1bx');
  assert.equal(key('ArrowUp'), '\x1b[A');
  assert.equal(key('ArrowUp', {}, { keys: true }), '\x1bOA');
  assert.equal(key('ArrowLeft', { ctrlKey: true }), '\x1b[1;5D');
  assert.equal(key('PageUp'), '\x1b[5~');
  assert.equal(key('F1'), '\x1bOP');
  assert.equal(key('Tab', { shiftKey: true }), '\x1b[Z');
  for (const none of ['Shift', 'Control', 'Dead', 'CapsLock', 'AudioVolumeUp']) assert.equal(key(none), null);
  assert.equal(key('v', { metaKey: true }), null);
  assert.equal(widthOf('漢'.codePointAt(0)), 2);
});
