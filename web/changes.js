// The tenant's sandboxes, kept as the server has them: the list is read once, and what changes comes by
// one WebSocket. When that is lost it is opened again, and the list read anew, because nobody knows
// what was missed.
import { get, isLoggedIn, socket } from './api.js';

/** What the list shows; all that the server says of ten thousand would be three times as much. */
const FIELDS = ['id', 'state', 'user_id', 'thread_id', 'template', 'image', 'provider', 'limits', 'metadata', 'idle_timeout_s', 'expires_at', 'created_at', 'made_by',
  'end_reason', 'ended_at'];
const AGAIN_MS = [500, 1000, 2000, 5000, 10000]; // after the first, second ... loss in a row

/** Calls f with each page of every sandbox of the tenant, newest first. */
async function readAll(f) {
  let cursor = null;
  do {
    const page = await get(`/v1/sandboxes?order=newest&limit=1000&fields=${FIELDS}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ''}`);
    if (f(page.sandboxes) === false) return;
    cursor = page.next_cursor;
  } while (cursor);
}

/**
 * Follows the sandboxes until `end` is called. `told(sandboxes, state)` is called with all of them, a Map
 * by id, whenever something is different; state is 'live', 'reading' or 'lost'. `failed` hears errors.
 */
export function followSandboxes(told, failed) {
  let all = new Map();
  let reading = null; // the Map that is being filled, while the list is read
  let gone = null; // ids that were told as ended or removed meanwhile: an older page may still have them
  let state = 'reading';
  let ended = false;
  let losses = 0;
  let ws = null;
  let timer = null;

  function tell(next) {
    state = next;
    if (!ended) told(all, state);
  }

  /** One list at a time: whoever wants another while one is read makes it begin anew. */
  async function read() {
    const mine = reading = new Map();
    gone = new Set();
    const isFirst = all.size === 0;
    try {
      await readAll((page) => {
        if (ended || reading !== mine) return false;
        // What was told meanwhile is newer than the page.
        for (const s of page) if (!mine.has(s.id) && !gone.has(s.id)) mine.set(s.id, s);
        if (isFirst) {
          all = mine;
          tell('reading');
        }
        return true;
      });
      if (ended || reading !== mine) return;
      all = mine;
      reading = null;
      losses = 0;
      tell('live');
    } catch (error) {
      if (ended || reading !== mine) return;
      failed(error);
      ws?.close();
    }
  }

  function take(message) {
    for (const map of new Set([all, reading])) {
      if (!map) continue;
      for (const id of message.removed) map.delete(id);
      for (const s of message.sandboxes) {
        // The list is of those that are not gone; one that has been seen to end stays, with its reason.
        if (s.state !== 'gone' || map.has(s.id)) map.set(s.id, s);
        else if (map === reading) gone.add(s.id);
      }
    }
    for (const id of message.removed) gone?.add(id);
    tell(state);
  }

  function open() {
    if (ended || !isLoggedIn()) return;
    ws = socket('/v1/changes');
    ws.onmessage = (event) => {
      const message = JSON.parse(event.data);
      if (message.type === 'changes') take(message);
      else read(); // ready, reload
    };
    ws.onclose = () => {
      reading = null;
      if (ended) return;
      tell('lost');
      // A login that is over is found out by asking: a WebSocket does not say why it was refused.
      if (losses) get('/v1/console/me').catch(() => {});
      timer = setTimeout(open, AGAIN_MS[Math.min(losses++, AGAIN_MS.length - 1)]);
    };
  }
  open();

  return {
    end() {
      ended = true;
      clearTimeout(timer);
      ws?.close();
    },
  };
}
