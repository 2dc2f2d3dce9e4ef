// A terminal, as far as bash, top and vim use one: bytes come in, a screen of cells comes out. Pure: no
// page, no clock. What a program writes is foreign: it can change this screen, its title and a few modes,
// and nothing else. Nothing of it reaches a clipboard, and answers to a program are fixed texts.
//
// How it works: a decoder makes characters of bytes; a state machine (the one that DEC's terminals are
// described by) makes prints, controls and sequences of characters; methods change the grid. A row is
// an array of cells, and rows that scroll off the top of the main screen are kept up to a limit.

const SCROLLBACK = 5000;
const TEXT_MAX = 256; // of a title; longer strings are read and forgotten
const PARAMETERS_MAX = 32;
const VALUE_MAX = 65535;

export const BOLD = 1, DIM = 2, ITALIC = 4, UNDERLINE = 8, INVERSE = 16, HIDDEN = 32, STRIKE = 64;

/** The line-drawing characters of VT100, for what stands at ` to ~. */
const DRAWING = '◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·';

/** Columns that a character takes: 0, 1 or 2. */
export function widthOf(code) {
  if (code < 0x300) return 1;
  if (/\p{Mn}|\p{Me}|\p{Cf}/u.test(String.fromCodePoint(code))) return 0;
  const wide = (code >= 0x1100 && code <= 0x115f) || (code >= 0x2e80 && code <= 0xa4cf && code !== 0x303f)
    || (code >= 0xac00 && code <= 0xd7a3) || (code >= 0xf900 && code <= 0xfaff) || (code >= 0xfe30 && code <= 0xfe6f)
    || (code >= 0xff00 && code <= 0xff60) || (code >= 0xffe0 && code <= 0xffe6)
    || (code >= 0x1f300 && code <= 0x1f64f) || (code >= 0x1f680 && code <= 0x1f6ff)
    || (code >= 0x1f900 && code <= 0x1f9ff) || (code >= 0x20000 && code <= 0x3fffd);
  return wide ? 2 : 1;
}

/** How a cell looks. Colours: null, 0 to 255, or '#rrggbb'. Shared by cells, so never changed. */
const PLAIN = Object.freeze({ fg: null, bg: null, flags: 0 });
/** Cells are never changed either, only replaced: all that are empty are one. */
const BLANK = Object.freeze({ text: ' ', look: PLAIN });
const blank = (look = PLAIN) => (look === PLAIN ? BLANK : { text: ' ', look });
const clamp = (n, low, high) => Math.max(low, Math.min(high, n));

export class Terminal {
  constructor(cols = 80, rows = 24, { reply = () => {}, scrollback = SCROLLBACK } = {}) {
    this.cols = clamp(cols, 2, 1000);
    this.rows = clamp(rows, 1, 1000);
    this.reply = reply; // is given what a program asked for, as text
    this.limit = scrollback;
    this.decoder = new TextDecoder('utf-8');
    this.reset();
  }

  reset() {
    this.history = []; // rows above the screen
    this.forgotten = 0; // rows that history has let go of
    this.title = '';
    this.bells = 0;
    this.last = '';
    this.state = this.ground;
    this.main = this.newScreen();
    this.other = null; // the main screen while the alternate one is shown
    this.grid = this.main.grid;
    this.x = this.y = 0;
    this.pending = false; // the last column was written: the next character wraps
    this.look = PLAIN;
    this.top = 0;
    this.bottom = this.rows - 1;
    this.saved = null;
    this.charsets = [false, false];
    this.shift = 0;
    this.modes = { wrap: true, origin: false, insert: false, cursor: true, keys: false, paste: false, newline: false };
    this.tabs = new Set();
    for (let i = 8; i < 1000; i += 8) this.tabs.add(i);
    this.dirty = new Set(); // rows that are to be drawn
    this.whole = true; // all are
  }

  newRow() {
    return new Array(this.cols).fill(BLANK);
  }

  newScreen() {
    return { grid: Array.from({ length: this.rows }, () => this.newRow()) };
  }

  touch(y) {
    if (!this.whole) this.dirty.add(y);
  }

  /** The rows to draw, since it was last asked. */
  takeDirty() {
    const rows = this.whole ? [...this.grid.keys()] : [...this.dirty];
    this.dirty.clear();
    this.whole = false;
    return rows;
  }

  /** Bytes as they come; a character may be cut between two calls. */
  write(bytes) {
    for (const char of this.decoder.decode(bytes, { stream: true })) this.state(char, char.codePointAt(0));
  }

  // ---- the state machine ----

  ground(char, code) {
    if (code < 0x20 || code === 0x7f) this.control(code);
    else if (code >= 0x80 && code < 0xa0) this.state = this.ground; // C1 as UTF-8: nobody means it
    else this.print(char, code);
  }

  control(code) {
    switch (code) {
      case 0x07: this.bells++; break;
      case 0x08: this.move(this.x - 1, this.y); break;
      case 0x09: this.tab(); break;
      case 0x0a: case 0x0b: case 0x0c:
        this.index();
        if (this.modes.newline) this.move(0, this.y);
        break;
      case 0x0d: this.move(0, this.y); break;
      case 0x0e: this.shift = 1; break;
      case 0x0f: this.shift = 0; break;
      case 0x1b: this.middle = ''; this.state = this.escape; break;
      default: break;
    }
  }

  /** What every state has in common: true when it is dealt with. */
  cuts(code) {
    if (code === 0x18 || code === 0x1a) this.state = this.ground;
    else if (code === 0x1b) this.control(code);
    else if (code < 0x20) this.control(code);
    else return false;
    return true;
  }

  escape(char, code) {
    if (this.cuts(code)) return;
    if (code < 0x30) {
      this.middle += char;
      if (this.middle.length > 2) this.state = this.ground;
      return;
    }
    this.state = this.ground;
    if (this.middle) this.designate(this.middle, char);
    else if (char === '[') this.begin();
    else if (char === ']') { this.text = ''; this.state = this.command; }
    else if ('PX^_'.includes(char)) { this.text = ''; this.state = this.ignored; }
    else this.single(char);
  }

  designate(middle, char) {
    if (middle === '(') this.charsets[0] = char === '0';
    else if (middle === ')') this.charsets[1] = char === '0';
    else if (middle === '#' && char === '8') this.align();
  }

  single(char) {
    switch (char) {
      case '7': this.save(); break;
      case '8': this.restore(); break;
      case 'c': this.reset(); break;
      case 'D': this.index(); break;
      case 'E': this.index(); this.move(0, this.y); break;
      case 'H': this.tabs.add(this.x); break;
      case 'M': this.reverseIndex(); break;
      default: break;
    }
  }

  begin() {
    this.parameters = [];
    this.value = '';
    this.mark = '';
    this.middle = '';
    this.state = this.sequence;
  }

  sequence(char, code) {
    if (this.cuts(code)) return;
    if (code >= 0x30 && code <= 0x39) {
      if (this.value.length < 6) this.value += char;
    } else if (char === ';' || char === ':') {
      this.endParameter();
    } else if (code >= 0x3c && code <= 0x3f) {
      this.mark += char;
    } else if (code < 0x30) {
      this.middle += char;
    } else {
      this.state = this.ground;
      this.endParameter();
      if (code <= 0x7e && this.mark.length <= 1 && this.middle.length <= 1) this.execute(this.mark + this.middle + char);
    }
  }

  endParameter() {
    if (this.parameters.length < PARAMETERS_MAX) this.parameters.push(this.value === '' ? null : Math.min(Number(this.value), VALUE_MAX));
    this.value = '';
  }

  /** An OSC string: a title, or something that is left alone (the clipboard, links, colours). */
  command(char, code) {
    if (code === 0x07 || code === 0x1b || code === 0x9c) {
      const said = /^[02];(.*)$/s.exec(this.text);
      if (said) this.title = said[1].replace(/[\p{Cc}\p{Cf}]/gu, '').slice(0, TEXT_MAX);
      this.state = this.ground;
      if (code === 0x1b) { this.middle = ''; this.state = this.escape; } // the rest of ESC \
    } else if (code === 0x18 || code === 0x1a) {
      this.state = this.ground;
    } else if (this.text.length < TEXT_MAX + 2) {
      this.text += char;
    }
  }

  /** DCS, SOS, PM and APC strings: read to their end, and that is all. */
  ignored(char, code) {
    if (code === 0x18 || code === 0x1a || code === 0x9c) this.state = this.ground;
    else if (code === 0x1b) { this.middle = ''; this.state = this.escape; }
  }

  // ---- sequences ----

  /** Parameter i, or what it is when it was left out. 0 counts as left out where that makes no sense. */
  p(i, otherwise = 1) {
    return this.parameters[i] || otherwise;
  }

  execute(name) {
    const n = this.p(0);
    const low = this.modes.origin ? this.top : 0;
    switch (name) {
      case '@': this.insertCells(n); break;
      case 'A': this.move(this.x, Math.max(this.y - n, this.y >= this.top ? this.top : 0)); break;
      case 'B': case 'e': this.move(this.x, Math.min(this.y + n, this.y <= this.bottom ? this.bottom : this.rows - 1)); break;
      case 'C': case 'a': this.move(this.x + n, this.y); break;
      case 'D': this.move(this.x - n, this.y); break;
      case 'E': this.move(0, this.y + n); break;
      case 'F': this.move(0, this.y - n); break;
      case 'G': case '`': this.move(n - 1, this.y); break;
      case 'H': case 'f': this.goTo(this.p(1) - 1, low + n - 1); break;
      case 'I': for (let i = 0; i < Math.min(n, this.cols); i++) this.tab(); break;
      case 'J': this.eraseScreen(this.p(0, 0)); break;
      case 'K': this.eraseLine(this.p(0, 0)); break;
      case 'L': this.shiftRows(this.y, n); break;
      case 'M': this.shiftRows(this.y, -n); break;
      case 'P': this.deleteCells(n); break;
      case 'S': this.scroll(Math.min(n, this.rows)); break;
      case 'T': this.shiftRows(this.top, n, true); break;
      case 'X': this.erase(this.y, this.x, this.x + n); break;
      case 'Z': this.backTab(n); break;
      case 'b': if (this.last) for (let i = 0; i < Math.min(n, this.cols * this.rows); i++) this.print(this.last, this.last.codePointAt(0)); break;
      case 'c': this.reply('\x1b[?62;22c'); break;
      case '>c': this.reply('\x1b[>1;10;0c'); break;
      case 'd': this.goTo(this.x, low + n - 1); break;
      case 'g': if (this.p(0, 0) === 3) this.tabs.clear(); else this.tabs.delete(this.x); break;
      case 'h': case 'l': this.setModes(name === 'h'); break;
      case '?h': case '?l': this.setPrivate(name === '?h'); break;
      case 'm': this.setLook(); break;
      case 'n':
        if (n === 5) this.reply('\x1b[0n');
        if (n === 6) this.reply(`\x1b[${this.y - low + 1};${this.x + 1}R`);
        break;
      case 'r': this.setRegion(); break;
      case 's': this.save(); break;
      case 'u': this.restore(); break;
      case '!p': this.softReset(); break;
      default: break;
    }
  }

  setModes(on) {
    for (const mode of this.parameters) {
      if (mode === 4) this.modes.insert = on;
      if (mode === 20) this.modes.newline = on;
    }
  }

  setPrivate(on) {
    for (const mode of this.parameters) {
      switch (mode) {
        case 1: this.modes.keys = on; break;
        case 6: this.modes.origin = on; this.goTo(0, on ? this.top : 0); break;
        case 7: this.modes.wrap = on; break;
        case 25: this.modes.cursor = on; this.touch(this.y); break;
        case 2004: this.modes.paste = on; break;
        case 47: case 1047: this.alternate(on); break;
        case 1048: if (on) this.save(); else this.restore(); break;
        case 1049:
          if (on) this.save();
          this.alternate(on);
          if (!on) this.restore();
          break;
        default: break;
      }
    }
  }

  setLook() {
    let { fg, bg, flags } = this.look;
    const list = this.parameters;
    const ADD = { 1: BOLD, 2: DIM, 3: ITALIC, 4: UNDERLINE, 7: INVERSE, 8: HIDDEN, 9: STRIKE };
    const TAKE = { 21: BOLD, 22: BOLD | DIM, 23: ITALIC, 24: UNDERLINE, 27: INVERSE, 28: HIDDEN, 29: STRIKE };
    for (let i = 0; i < list.length; i++) {
      const n = list[i] ?? 0;
      if (n === 0) { fg = bg = null; flags = 0; }
      else if (ADD[n]) flags |= ADD[n];
      else if (TAKE[n]) flags &= ~TAKE[n];
      else if (n >= 30 && n <= 37) fg = n - 30;
      else if (n >= 40 && n <= 47) bg = n - 40;
      else if (n >= 90 && n <= 97) fg = n - 82;
      else if (n >= 100 && n <= 107) bg = n - 92;
      else if (n === 39) fg = null;
      else if (n === 49) bg = null;
      else if (n === 38 || n === 48) {
        const colour = list[i + 1] === 5 ? clamp(list[i + 2] ?? 0, 0, 255)
          : list[i + 1] === 2 ? `#${[2, 3, 4].map((k) => clamp(list[i + k] ?? 0, 0, 255).toString(16).padStart(2, '0')).join('')}` : undefined;
        if (colour === undefined) break;
        i += list[i + 1] === 5 ? 2 : 4;
        if (n === 38) fg = colour; else bg = colour;
      }
    }
    this.look = fg === null && bg === null && !flags ? PLAIN : Object.freeze({ fg, bg, flags });
  }

  setRegion() {
    const top = this.p(0) - 1, bottom = Math.min(this.p(1, this.rows), this.rows) - 1;
    if (top >= bottom) return;
    this.top = top;
    this.bottom = bottom;
    this.goTo(0, this.modes.origin ? top : 0);
  }

  softReset() {
    Object.assign(this.modes, { wrap: true, origin: false, insert: false, cursor: true, keys: false });
    this.top = 0;
    this.bottom = this.rows - 1;
    this.look = PLAIN;
    this.saved = null;
  }

  // ---- the cursor ----

  move(x, y) {
    this.touch(this.y);
    this.x = clamp(x, 0, this.cols - 1);
    this.y = clamp(y, 0, this.rows - 1);
    this.pending = false;
    this.touch(this.y);
  }

  goTo(x, y) {
    this.move(x, this.modes.origin ? clamp(y, this.top, this.bottom) : y);
  }

  tab() {
    let x = this.x + 1;
    while (x < this.cols - 1 && !this.tabs.has(x)) x++;
    this.move(x, this.y);
  }

  backTab(n) {
    let { x } = this;
    for (let i = 0; i < Math.min(n, this.cols) && x > 0; i++) {
      x--;
      while (x > 0 && !this.tabs.has(x)) x--;
    }
    this.move(x, this.y);
  }

  save() {
    this.saved = { x: this.x, y: this.y, look: this.look, origin: this.modes.origin, charsets: [...this.charsets], shift: this.shift };
  }

  restore() {
    const s = this.saved ?? { x: 0, y: 0, look: PLAIN, origin: false, charsets: [false, false], shift: 0 };
    this.look = s.look;
    this.modes.origin = s.origin;
    this.charsets = [...s.charsets];
    this.shift = s.shift;
    this.move(s.x, s.y);
  }

  // ---- the grid ----

  /** What is erased keeps the background. */
  empty() {
    return blank(this.look.bg === null ? PLAIN : Object.freeze({ fg: null, bg: this.look.bg, flags: 0 }));
  }

  print(char, code) {
    const width = widthOf(code);
    if (width === 0) return this.combine(char);
    if (this.pending && this.modes.wrap) {
      this.grid[this.y].wrapped = true;
      this.move(0, this.y);
      this.index();
    }
    if (width === 2 && this.x === this.cols - 1) {
      if (!this.modes.wrap) return undefined;
      this.move(0, this.y);
      this.index();
    }
    if (this.modes.insert) this.insertCells(width);
    const row = this.grid[this.y];
    this.split(row, this.x);
    this.split(row, this.x + width);
    if (this.charsets[this.shift] && code >= 0x60 && code <= 0x7e) char = DRAWING[code - 0x60];
    row[this.x] = { text: char, look: this.look };
    if (width === 2) row[this.x + 1] = { text: '', look: this.look };
    this.last = char;
    this.touch(this.y);
    if (this.x + width >= this.cols) {
      this.x = this.cols - 1;
      this.pending = true;
    } else {
      this.x += width;
      this.pending = false;
    }
    return undefined;
  }

  /** A mark on the character before; so many that no cell grows without end. */
  combine(char) {
    const row = this.grid[this.y];
    let at = this.pending ? this.x : this.x - 1;
    if (at > 0 && row[at]?.text === '') at--;
    if (at < 0 || row[at].text.length > 16) return;
    row[at] = { text: row[at].text + char, look: row[at].look };
    this.touch(this.y);
  }

  /** Half of a wide character that is about to be overwritten takes the other half along. */
  split(row, x) {
    if (x < this.cols && row[x]?.text === '' && x > 0) {
      row[x - 1] = blank(row[x - 1].look);
      row[x] = blank(row[x].look);
    }
  }

  erase(y, from, to) {
    const row = this.grid[y];
    this.split(row, from);
    this.split(row, Math.min(to, this.cols));
    for (let x = from; x < Math.min(to, this.cols); x++) row[x] = this.empty();
    this.touch(y);
  }

  eraseLine(how) {
    this.erase(this.y, how === 0 ? this.x : 0, how === 1 ? this.x + 1 : this.cols);
  }

  eraseScreen(how) {
    if (how === 3) { this.forgotten += this.history.length; this.history = []; return; }
    if (how !== 1) for (let y = how === 2 ? 0 : this.y + 1; y < this.rows; y++) this.erase(y, 0, this.cols);
    if (how === 1) for (let y = 0; y < this.y; y++) this.erase(y, 0, this.cols);
    if (how < 2) this.eraseLine(how);
  }

  insertCells(n) {
    const row = this.grid[this.y];
    this.split(row, this.x);
    const fresh = new Array(Math.min(n, this.cols - this.x)).fill(this.empty());
    row.splice(this.x, 0, ...fresh);
    row.length = this.cols;
    this.touch(this.y);
  }

  deleteCells(n) {
    const row = this.grid[this.y];
    this.split(row, this.x);
    row.splice(this.x, Math.min(n, this.cols - this.x));
    while (row.length < this.cols) row.push(this.empty());
    this.touch(this.y);
  }

  freshRow() {
    return new Array(this.cols).fill(this.empty());
  }

  /** Moves rows below `from` down by n, or up by -n, within the region. */
  shiftRows(from, n, always = false) {
    if (!always && (from < this.top || from > this.bottom)) return;
    const count = Math.min(Math.abs(n), this.bottom - from + 1);
    for (let i = 0; i < count; i++) {
      if (n > 0) {
        this.grid.splice(this.bottom, 1);
        this.grid.splice(from, 0, this.freshRow());
      } else {
        this.grid.splice(from, 1);
        this.grid.splice(this.bottom, 0, this.freshRow());
      }
    }
    for (let y = from; y <= this.bottom; y++) this.touch(y);
  }

  scroll(n) {
    const keep = this.top === 0 && !this.other;
    for (let i = 0; i < n; i++) {
      const [row] = this.grid.splice(this.top, 1);
      if (keep) this.history.push(row);
      this.grid.splice(this.bottom, 0, this.freshRow());
    }
    if (this.history.length > this.limit + 200) {
      this.forgotten += this.history.length - this.limit;
      this.history.splice(0, this.history.length - this.limit);
    }
    this.whole = true;
  }

  index() {
    this.touch(this.y);
    if (this.y === this.bottom) this.scroll(1);
    else this.move(this.x, this.y + 1);
  }

  reverseIndex() {
    if (this.y === this.top) this.shiftRows(this.top, 1, true);
    else this.move(this.x, this.y - 1);
  }

  alternate(on) {
    if (on === (this.other !== null)) return;
    if (on) {
      this.other = this.grid;
      this.grid = this.newScreen().grid;
    } else {
      this.grid = this.other;
      this.other = null;
    }
    this.all();
  }

  align() {
    for (const row of this.grid) for (let x = 0; x < this.cols; x++) row[x] = { text: 'E', look: PLAIN };
    this.move(0, 0);
    this.all();
  }

  all() {
    this.whole = true;
  }

  /** Rows are cut or made longer; what a program drew for another size it draws again by itself. */
  resize(cols, rows) {
    cols = clamp(cols, 2, 1000);
    rows = clamp(rows, 1, 1000);
    if (cols === this.cols && rows === this.rows) return;
    const fit = (grid, isShown) => {
      for (const row of grid) {
        while (row.length < cols) row.push(blank());
        row.length = cols;
        if (row[cols - 1] && widthOf(row[cols - 1].text.codePointAt(0) ?? 32) === 2) row[cols - 1] = blank();
      }
      while (grid.length > rows) {
        const y = isShown ? this.y : rows;
        if (y < rows) grid.pop();
        else {
          const row = grid.shift();
          if (!this.other || !isShown) this.history.push(row);
          if (isShown) this.y--;
        }
      }
      while (grid.length < rows) grid.push(new Array(cols).fill(BLANK));
    };
    fit(this.grid, true);
    if (this.other) fit(this.other, false);
    this.cols = cols;
    this.rows = rows;
    this.top = 0;
    this.bottom = rows - 1;
    this.move(this.x, this.y);
    this.all();
  }

  /** The text of a row, without blanks at its end. */
  textOf(row) {
    return row.map((cell) => cell.text).join('').trimEnd();
  }

  /** The screen as lines, for tests and for those who cannot see it. */
  lines() {
    return this.grid.map((row) => this.textOf(row));
  }
}

/** What a key press sends, or null when it is not the terminal's. `event` has key, ctrlKey, altKey, shiftKey, metaKey. */
export function keyBytes(event, modes) {
  const { key, ctrlKey, altKey, shiftKey, metaKey } = event;
  if (metaKey) return null;
  const modifier = 1 + (shiftKey ? 1 : 0) + (altKey ? 2 : 0) + (ctrlKey ? 4 : 0);
  const arrows = { ArrowUp: 'A', ArrowDown: 'B', ArrowRight: 'C', ArrowLeft: 'D', Home: 'H', End: 'F' };
  const numbers = { Insert: 2, Delete: 3, PageUp: 5, PageDown: 6, F5: 15, F6: 17, F7: 18, F8: 19, F9: 20, F10: 21, F11: 23, F12: 24 };
  const functions = { F1: 'P', F2: 'Q', F3: 'R', F4: 'S' };
  if (arrows[key]) return modifier > 1 ? `\x1b[1;${modifier}${arrows[key]}` : `\x1b${modes.keys ? 'O' : '['}${arrows[key]}`;
  if (numbers[key]) return `\x1b[${numbers[key]}${modifier > 1 ? `;${modifier}` : ''}~`;
  if (functions[key]) return modifier > 1 ? `\x1b[1;${modifier}${functions[key]}` : `\x1bO${functions[key]}`;
  const escape = altKey ? '\x1b' : '';
  if (key === 'Enter') return `${escape}\r`;
  if (key === 'Backspace') return escape + (ctrlKey ? '\x08' : '\x7f');
  if (key === 'Tab') return shiftKey ? '\x1b[Z' : '\t';
  if (key === 'Escape') return `${escape}\x1b`;
  if ([...key].length !== 1) return null;
  if (ctrlKey) {
    const code = key.toUpperCase().charCodeAt(0);
    if (key === ' ' || key === '2') return `${escape}\0`;
    if (code >= 0x40 && code <= 0x5f) return escape + String.fromCharCode(code - 0x40);
    if (key === '/') return `${escape}\x1f`;
    return null;
  }
  return escape + key;
}
