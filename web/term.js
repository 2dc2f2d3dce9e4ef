// A terminal in the page: one process of a sandbox, attached by WebSocket.
//
// The shell is the server's, not the page's: leaving, a reload or a killed server end nothing. What was
// received is counted, so that after a lost connection output goes on at the next byte. A page cannot
// slow a WebSocket down, so no more than WINDOW bytes are on their way, and one that is far behind is
// given the newest instead of all, and told how much was left out. A page that nobody sees lets go after a minute, so that a
// forgotten tab does not keep a sandbox, and goes on where it was when it is looked at again.
import { request, socket } from './api.js';
import { el, fill } from './el.js';
import { BOLD, DIM, HIDDEN, INVERSE, ITALIC, keyBytes, STRIKE, Terminal, UNDERLINE } from './vt.js';

const WINDOW = 262144;
const LAG = 1048576;
const UNSEEN_MS = 60000;
const PASTE_ASKS = /[\r\n]/;

/** A colour of the 256 as the page writes it; the first 16 are the theme's. */
function colour(c) {
  if (typeof c === 'string') return c;
  if (c < 16) return `var(--vt${c})`;
  if (c >= 232) return `rgb(${Array(3).fill(8 + 10 * (c - 232)).join(' ')})`;
  const level = (n) => (n ? 55 + 40 * n : 0);
  return `rgb(${[Math.floor((c - 16) / 36), Math.floor((c - 16) / 6) % 6, (c - 16) % 6].map(level).join(' ')})`;
}

function dress(span, look, isCursor) {
  let fg = look.fg === null ? 'var(--text)' : colour(look.flags & BOLD && look.fg < 8 ? look.fg + 8 : look.fg);
  let bg = look.bg === null ? 'var(--screen)' : colour(look.bg);
  if (Boolean(look.flags & INVERSE) !== isCursor) [fg, bg] = [bg, fg];
  if (look.flags & HIDDEN) fg = bg;
  span.style.color = fg;
  span.style.backgroundColor = bg;
  if (look.flags & BOLD) span.style.fontWeight = '700';
  if (look.flags & DIM) span.style.opacity = '.7';
  if (look.flags & ITALIC) span.style.fontStyle = 'italic';
  const lines = [look.flags & UNDERLINE && 'underline', look.flags & STRIKE && 'line-through'].filter(Boolean);
  if (lines.length) span.style.textDecoration = lines.join(' ');
}

/** One row as spans of the same look. Cells are text nodes: nothing in them is markup. */
function drawRow(node, row, cursor) {
  const spans = [];
  for (let x = 0; x < row.length;) {
    const { look } = row[x];
    let end = x + 1;
    if (x !== cursor) while (end < row.length && row[end].look === look && end !== cursor) end++;
    else if (row[end]?.text === '') end++;
    const text = row.slice(x, end).map((cell) => cell.text).join('');
    if (look.fg === null && look.bg === null && !look.flags && x !== cursor) {
      spans.push(document.createTextNode(text));
    } else {
      const span = document.createElement('span');
      span.textContent = text;
      dress(span, look, x === cursor);
      spans.push(span);
    }
    x = end;
  }
  node.replaceChildren(...spans);
}

/**
 * Shows a process. `base` is the path of the sandbox, `process` its record; with `watches` nothing is typed, and looking is no
 * use of the sandbox. Gives {node, focus, find, end}; `tell` is called with a title or when it has ended.
 */
export function terminalView({ base, process, watches = false, tell = () => {} }) {
  const screen = el('div.screen', { 'aria-hidden': 'true' });
  const input = el('textarea.keys', {
    'aria-label': 'Terminal input. Ctrl+F6 leaves it.', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', rows: '1',
  });
  const spoken = el('div.unseen', { role: 'log', 'aria-live': 'off', 'aria-label': 'Terminal screen', tabindex: '-1' });
  const status = el('div.status', { role: 'status' });
  const node = el('div.terminal', { onclick: () => { if (getSelection().isCollapsed) input.focus({ preventScroll: true }); } }, screen, input, spoken, status);

  const terminal = new Terminal(80, 24, { reply: (text) => send(text) });
  const encoder = new TextEncoder();
  let ws = null;
  let ended = false; // the view
  let over = !process.running && process.stdout_bytes === 0;
  let tries = 0;
  let back = 0; // rows that are scrolled up
  let found = -1; // the row that was looked for, counted from the first there was
  let frame = 0;
  // Where output goes on. What is kept is replayed, so that the screen is as it was.
  let offset = Math.max(process.stdout_first, process.stdout_bytes - LAG);
  const queue = [];
  let queued = false;

  // ---- the screen ----

  function draw() {
    frame = 0;
    while (screen.children.length < terminal.rows) screen.append(document.createElement('div'));
    while (screen.children.length > terminal.rows) screen.lastChild.remove();
    back = Math.min(back, terminal.history.length);
    const changed = terminal.takeDirty();
    const shown = terminal.modes.cursor && back === 0 && document.activeElement === input && !over;
    const first = terminal.history.length - back;
    for (const y of back > 0 || draw.back !== back ? screen.childNodes.keys() : changed) {
      const row = first + y < terminal.history.length ? terminal.history[first + y] : terminal.grid[first + y - terminal.history.length];
      if (!row || !screen.children[y]) continue;
      drawRow(screen.children[y], row, shown && y === terminal.y ? terminal.x : -1);
      screen.children[y].className = terminal.forgotten + first + y === found ? 'found' : '';
    }
    draw.back = back;
    clearTimeout(draw.timer);
    // Screen readers are told what stands there when it has come to rest.
    draw.timer = setTimeout(() => fill(spoken, terminal.lines().join('\n').trimEnd()), 300);
    tell({ title: terminal.title });
  }

  function plan() {
    if (!frame) frame = requestAnimationFrame(draw);
  }

  /** As many cells as fit. Whoever has the focus decides for all who watch. */
  function fit() {
    if (ended || !node.isConnected || !node.clientWidth) return;
    const probe = el('span', {}, 'M'.repeat(50));
    screen.append(probe);
    const box = probe.getBoundingClientRect();
    probe.remove();
    const cols = Math.max(20, Math.floor((node.clientWidth - 12) / (box.width / 50)));
    const rows = Math.max(5, Math.floor((node.clientHeight - 30) / box.height));
    if (cols === terminal.cols && rows === terminal.rows) return;
    terminal.resize(cols, rows);
    plan();
    resize();
  }

  function resize() {
    if (!watches) order({ type: 'resize', rows: terminal.rows, cols: terminal.cols });
  }

  // ---- the connection ----

  function order(message) {
    if (ws?.readyState === WebSocket.OPEN) ws.send(JSON.stringify(message));
  }

  function send(text) {
    if (!watches && ws?.readyState === WebSocket.OPEN) ws.send(encoder.encode(text));
  }

  /** Some at a time, so that keys are heard in between. */
  function digest() {
    queued = false;
    const until = performance.now() + 12;
    let done = 0;
    while (queue.length && performance.now() < until) {
      const piece = queue.shift();
      terminal.write(piece);
      done += piece.length;
    }
    if (done) order({ type: 'ack', bytes: done });
    plan();
    if (queue.length) schedule();
  }

  function schedule() {
    if (queued) return;
    queued = true;
    setTimeout(digest, 0);
  }

  function take(data) {
    if (typeof data !== 'string') {
      const bytes = new Uint8Array(data);
      offset += bytes.length - 1;
      queue.push(bytes.subarray(1));
      schedule();
      return;
    }
    const message = JSON.parse(data);
    if (message.type === 'skipped') {
      offset += message.bytes;
      queue.push(encoder.encode(`\r\n--- ${message.bytes} bytes left out, the newest follows ---\r\n`));
      offsetNote(`${message.bytes} bytes were left out`);
    } else if (message.type === 'exit') {
      over = true;
      const how = message.signal ?? message.exit_code;
      fill(status, `ended: ${how}${message.stopped_by ? `, ${message.stopped_by}` : ''}`);
      tell({ ended: how });
    } else if (message.type === 'error') {
      fill(status, message.error.message);
    }
  }

  const offsetNote = (text) => fill(status, text);

  function connect() {
    if (ended || over || unseen === 'let go') return;
    ws = socket(`${base}/processes/${process.process_id}/attach?offset=${offset}&window=${WINDOW}&lag=${LAG}${watches ? '&observe=true' : ''}`);
    ws.binaryType = 'arraybuffer';
    const mine = ws;
    ws.onopen = () => {
      fill(status, tries ? 'connected again, nothing is lost' : '');
      tries = 0;
      resize();
    };
    ws.onmessage = (event) => { if (mine === ws) take(event.data); };
    ws.onclose = async (event) => {
      if (mine !== ws || ended || over) return;
      if (event.code === 1008) return void fill(status, 'the server has closed it: log in again');
      fill(status, 'the connection is lost; trying again ...');
      tries++;
      setTimeout(again, Math.min(5000, 200 * tries));
    };
  }

  /** A socket does not say why it was refused: the process is looked at first. */
  async function again() {
    if (ended || unseen === 'let go') return;
    try {
      const there = await (await request('GET', `${base}/processes/${process.process_id}`)).json();
      if (offset < there.stdout_first) offset = there.stdout_first;
      connect();
    } catch (error) {
      if (error.status === 404 || error.status === 410 || error.status === 401) fill(status, error.message);
      else {
        tries++;
        setTimeout(again, Math.min(5000, 200 * tries));
      }
    }
  }

  /** Hidden: the socket goes in a minute. Seen again: on from the next byte. */
  let unseen = null; // a timer, or 'let go'
  function watchPage() {
    if (document.hidden) {
      unseen ??= setTimeout(() => {
        unseen = 'let go';
        const old = ws;
        ws = null;
        old?.close();
      }, UNSEEN_MS);
      return;
    }
    const wasLetGo = unseen === 'let go';
    if (!wasLetGo) clearTimeout(unseen);
    unseen = null;
    if (wasLetGo) again();
  }
  document.addEventListener('visibilitychange', watchPage);

  // ---- the keyboard ----

  input.addEventListener('keydown', (event) => {
    if (event.isComposing) return;
    if (event.key === 'F6' && event.ctrlKey) {
      event.preventDefault();
      document.getElementById('main').focus();
      return;
    }
    if (event.shiftKey && (event.key === 'PageUp' || event.key === 'PageDown')) {
      event.preventDefault();
      scroll((event.key === 'PageUp' ? 1 : -1) * (terminal.rows - 1));
      return;
    }
    // Copying and pasting are the browser's.
    if (event.ctrlKey && event.shiftKey && 'CV'.includes(event.key.toUpperCase())) return;
    const bytes = keyBytes(event, terminal.modes);
    if (bytes === null) return;
    event.preventDefault();
    event.stopPropagation();
    back = 0;
    plan();
    send(bytes);
  });
  input.addEventListener('input', () => {
    // What an input method has put together.
    if (input.value) send(input.value);
    input.value = '';
  });
  input.addEventListener('paste', (event) => {
    event.preventDefault();
    const text = event.clipboardData.getData('text').replace(/\r?\n/g, '\r').replaceAll('\x1b', '');
    if (!terminal.modes.paste && PASTE_ASKS.test(text) && !confirm('The text has several lines, which will be run one by one. Paste it?')) return;
    send(terminal.modes.paste ? `\x1b[200~${text}\x1b[201~` : text);
  });
  for (const kind of ['focus', 'blur']) {
    input.addEventListener(kind, () => {
      terminal.touch(terminal.y);
      plan();
      if (kind === 'focus') fit();
    });
  }

  /** Shows the next row above, or below, that has this text. False: there is none. */
  function find(text, isUp = true) {
    const rows = [...terminal.history, ...terminal.grid];
    const wanted = text.toLowerCase();
    const step = isUp ? -1 : 1;
    const last = found - terminal.forgotten;
    let y = (last >= 0 && last < rows.length ? last : isUp ? rows.length : -1) + step;
    while (y >= 0 && y < rows.length && !terminal.textOf(rows[y]).toLowerCase().includes(wanted)) y += step;
    const isThere = wanted !== '' && y >= 0 && y < rows.length;
    found = isThere ? terminal.forgotten + y : -1;
    if (isThere) back = Math.max(0, Math.min(terminal.history.length, terminal.history.length - y + (terminal.rows >> 1)));
    draw.back = -1; // all rows are another
    plan();
    return isThere;
  }

  function scroll(rows) {
    back = Math.max(0, Math.min(terminal.history.length, back + rows));
    plan();
  }
  node.addEventListener('wheel', (event) => {
    event.preventDefault();
    scroll(-Math.sign(event.deltaY) * 3);
  }, { passive: false });

  const watch = new ResizeObserver(fit);
  watch.observe(node);
  connect();
  plan();
  return {
    node,
    focus: () => input.focus({ preventScroll: true }),
    find,
    end: () => {
      ended = true;
      document.removeEventListener('visibilitychange', watchPage);
      if (unseen !== 'let go') clearTimeout(unseen);
      watch.disconnect();
      cancelAnimationFrame(frame);
      clearTimeout(draw.timer);
      ws?.close();
    },
  };
}
