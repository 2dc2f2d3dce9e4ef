// Numbers and times as people read them. Pure.

/** 61M, 1.5G: at most four characters and a letter. */
export function bytes(n) {
  if (n === null || n === undefined) return '-';
  const units = ['B', 'K', 'M', 'G', 'T', 'P'];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) {
    n /= 1024;
    at++;
  }
  return `${n < 10 && at > 0 ? Math.round(n * 10) / 10 : Math.round(n)}${units[at]}`;
}

/** 27:14, 3:05:00, 2 d 4 h. */
export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, '0');
  if (s >= 172800) return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
  if (s >= 3600) return `${Math.floor(s / 3600)}:${two(Math.floor((s % 3600) / 60))}:${two(s % 60)}`;
  return `${Math.floor(s / 60)}:${two(s % 60)}`;
}

export function time(text) {
  return text ? text.replace('T', ' ').replace(/\.\d+Z$/, ' UTC') : '-';
}

/** When a sandbox ends if nobody uses it, in ms since 1970; null: it has ended, or does not by itself. */
export function endOf(sandbox) {
  const isLive = sandbox.state === 'running' || sandbox.state === 'paused';
  return isLive && sandbox.expires_at ? Date.parse(sandbox.expires_at) : null;
}

/**
 * A filter as it is typed: `state:running user:ann thread:7 project=demo word`. Gives a function that
 * says whether a sandbox fits. Words are looked for in id, owner, template, image and metadata.
 */
export function filterOf(text) {
  const tests = text.trim().split(/\s+/).filter(Boolean).map((term) => {
    const said = /^(state|user|thread|template|provider|id):(.*)$/.exec(term);
    if (said) {
      const field = { user: 'user_id', thread: 'thread_id' }[said[1]] ?? said[1];
      return (s) => String(s[field] ?? '').toLowerCase().startsWith(said[2].toLowerCase());
    }
    const pair = /^([^=]+)=(.*)$/.exec(term);
    if (pair) return (s) => Object.hasOwn(s.metadata ?? {}, pair[1]) && String(s.metadata[pair[1]]) === pair[2];
    const word = term.toLowerCase();
    return (s) => [s.id, s.state, s.user_id, s.thread_id, s.template, s.image, s.provider,
      ...Object.entries(s.metadata ?? {}).flat()]
      .some((value) => String(value ?? '').toLowerCase().includes(word));
  });
  return (sandbox) => tests.every((test) => test(sandbox));
}

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A call as a line for a shell. The key is not in it: $PADDOCK_API_KEY is. `file`: the body is that file's. */
export function asCurl(origin, { method, path, body, file }) {
  const lines = [`curl -X ${method} ${quote(origin + path)}`, '-H "Authorization: Bearer $PADDOCK_API_KEY"'];
  if (file !== undefined) lines.push("-H 'Content-Type: application/octet-stream'", `--data-binary ${quote(`@${file}`)}`);
  if (body !== undefined) lines.push("-H 'Content-Type: application/json'", `-d ${quote(JSON.stringify(body))}`);
  return lines.join(' \\\n  ');
}

/** The same in Python, with nothing but its own library. */
export function asPython(origin, { method, path, body, file }) {
  const string = (text) => JSON.stringify(text).replace(/[\u007f-\uffff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
  const data = file !== undefined ? `,\n    data=open(${string(file)}, "rb").read()` : body === undefined ? '' : `,\n    data=json.dumps(json.loads(${string(JSON.stringify(body))})).encode()`;
  const kind = file === undefined ? 'json' : 'octet-stream';
  const type = body === undefined && file === undefined ? '' : `,\n             "Content-Type": "application/${kind}"`;
  return `import json, os, urllib.request

request = urllib.request.Request(
    ${string(origin + path)}, method=${string(method)}${data},
    headers={"Authorization": "Bearer " + os.environ["PADDOCK_API_KEY"]${type}})
with urllib.request.urlopen(request) as answer:
    print(answer.read().decode())`;
}
