// Calls of the API. The browser sends the login's cookie by itself; the proof that goes with it is kept
// here, in the storage of this origin, and is worth nothing without the cookie.

const PROOF = 'paddock.proof';
const RECENT = 20;
const PAUSES_MS = [200, 1000]; // before a question is asked again
const listeners = new Set();

/** What the page has done last, newest first: {method, path, body, file}. Never a login. */
export const recent = [];

/** Something was done that is this call without the page. */
export function done(call) {
  recent.unshift(call);
  recent.length = Math.min(recent.length, RECENT);
}

function remember(method, path, body, data) {
  if (method === 'GET' || path.startsWith('/v1/console/') || path.includes('/files/ticket')) return;
  done({ method, path, body, file: data === undefined ? undefined : data.name ?? 'FILE' });
}

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = error?.code ?? '';
    this.details = error?.details ?? {};
  }
}

export const isLoggedIn = () => localStorage.getItem(PROOF) !== null;

/** Calls f when somebody has logged in or out, in this tab or another. */
export function onLogin(f) {
  listeners.add(f);
}

function told() {
  for (const f of listeners) f();
}

addEventListener('storage', (event) => {
  if (event.key === PROOF) told();
});

/** What the server said when it ended the login by itself; null when the user did. */
let whyEnded = null;

/** Takes that, for the page that asks for the next login. */
export function takeWhy() {
  const why = whyEnded;
  whyEnded = null;
  return why;
}

export function forget(why = null) {
  whyEnded = why;
  localStorage.removeItem(PROOF);
  told();
}

/**
 * A request, and its answer. Browsers drop what is under way when the machine's network changes: what does no harm when it is
 * asked again is asked again.
 */
async function fetched(path, options, isHarmless) {
  for (const pause of isHarmless ? PAUSES_MS : []) {
    try {
      return await fetch(path, options);
    } catch (fault) {
      if (fault.name === 'AbortError') throw fault;
    }
    await new Promise((done) => { setTimeout(done, pause); });
    options.signal?.throwIfAborted();
  }
  return fetch(path, options);
}

/** The answer to a request, once it is one below 400; else it throws an ApiError. */
export async function request(method, path, { body, data, headers, signal, isHarmless = method === 'GET' } = {}) {
  const sent = { ...headers };
  const proof = localStorage.getItem(PROOF);
  if (proof) sent['X-Paddock-Proof'] = proof;
  if (body !== undefined) sent['Content-Type'] = 'application/json';
  remember(method, path, body, data);
  let answer;
  try {
    answer = await fetched(path, {
      method, headers: sent, body: body === undefined ? data : JSON.stringify(body),
      credentials: 'same-origin', cache: 'no-store', signal,
    }, isHarmless);
  } catch (fault) {
    if (fault.name === 'AbortError') throw fault;
    throw new ApiError(0, { code: 'lost', message: 'the server cannot be reached; trying again helps when it is back' });
  }
  if (answer.status < 400) return answer;

  let error = null;
  try {
    ({ error } = await answer.json());
  } catch { /* no JSON: the status has to do */ }
  if (answer.status === 401 && proof && proof === localStorage.getItem(PROOF)) forget(error?.message);
  throw new ApiError(answer.status, error);
}

export async function call(method, path, body) {
  const answer = await request(method, path, { body });
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

export const get = (path) => call('GET', path);
export const post = (path, body = {}) => call('POST', path, body);
export const del = (path) => call('DELETE', path);

/** Lines of an answer as they come. */
export async function* linesOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done: isLast } = await reader.read();
    rest += value ?? '';
    const lines = rest.split('\n');
    rest = lines.pop();
    yield* lines;
    if (isLast) return;
  }
}

/**
 * A POST that takes its time and tells meanwhile: `told` gets the data of each event `news`, and what comes with the event `last` is the answer.
 * An answer without events is one at once.
 */
export async function streamed(path, body, { last, news, told, signal }) {
  const answer = await request('POST', path, { body, headers: { Accept: 'text/event-stream' }, signal });
  if (!answer.headers.get('Content-Type')?.startsWith('text/event-stream')) return answer.json();
  let event = '';
  for await (const line of linesOf(answer)) {
    if (line.startsWith('event: ')) event = line.slice(7);
    if (!line.startsWith('data: ')) continue;
    const data = JSON.parse(line.slice(6));
    if (event === last) return data;
    if (event === 'error') throw new ApiError(answer.status, data.error);
    if (event === news) told(data);
  }
  throw new ApiError(0, { code: 'lost', message: 'the connection was lost while the image was pulled; the list shows what came of it' });
}

/** With {key}, as often as one likes, or {code}, once. */
export async function login(how) {
  localStorage.removeItem(PROOF);
  const answer = await request('POST', '/v1/console/login', { body: how, isHarmless: 'key' in how });
  const made = await answer.json();
  localStorage.setItem(PROOF, made.proof);
  told();
}

export async function logout() {
  try {
    await del('/v1/console/login');
  } finally {
    forget();
  }
}

/** A WebSocket of this server. Pages cannot add headers to one, so the proof is a subprotocol. */
export function socket(path) {
  const proof = localStorage.getItem(PROOF) ?? '';
  return new WebSocket(location.origin.replace(/^http/, 'ws') + path, ['paddock.v1', `proof.${proof}`]);
}
