// The smaller tabs of a sandbox: processes, ports with previews, metrics, history, and what it is.
import { del, get, post } from './api.js';
import { asCode, ask, attempt, say } from './dialog.js';
import { el, fill } from './el.js';
import { bytes, duration, time } from './format.js';

const REFRESH_MS = 2000;
const SVG = 'http://www.w3.org/2000/svg';

/** Calls f now and then while the page is seen, until it is ended. */
export function repeat(f) {
  let ended = false;
  let timer;
  let failing = false;
  async function turn() {
    if (!document.hidden) {
      if (failing) await f().then(() => { failing = false; }, () => {});
      else failing = (await attempt(() => f().then(() => true))) === undefined;
    }
    if (!ended) timer = setTimeout(turn, REFRESH_MS);
  }
  turn();
  return () => {
    ended = true;
    clearTimeout(timer);
  };
}

export function tableOf(label, heads) {
  const body = el('tbody', {});
  return [el('div.place', { tabindex: '0', role: 'region', 'aria-label': `${label}, scrolls` }, el(heads.at(-1) === 'Actions' ? 'table.list.acting' : 'table.list', { 'aria-label': label }, el('thead', {}, el('tr', {}, heads.map((h) => el('th', { scope: 'col' }, h)))), body)), body];
}

/** Parents before their children, each with how deep it is. */
function treeOf(processes) {
  const known = new Set(processes.map((p) => p.pid));
  const children = new Map();
  for (const p of processes) {
    const parent = known.has(p.parent_pid) && p.parent_pid !== p.pid ? p.parent_pid : 0;
    children.set(parent, [...(children.get(parent) ?? []), p]);
  }
  const rows = [];
  const add = (parent, depth) => {
    for (const p of (children.get(parent) ?? []).sort((a, b) => a.pid - b.pid)) {
      if (rows.length > processes.length) return; // a sandbox may tell of parents that are their own children
      rows.push([p, depth]);
      add(p.pid, depth + 1);
    }
  };
  add(0, 0);
  return rows;
}

export function processesTab(main, { base }) {
  const [started, startedBody] = tableOf('Started through the API', ['Pid', 'Command', 'State', 'Since', 'CPU', 'Memory at most', 'Output', 'Actions']);
  const [all, allBody] = tableOf('Every process', ['Pid', 'Command', 'State', 'User', 'Threads', 'CPU', 'Memory', 'Age']);
  let known = [];
  fill(main, el('h2', {}, 'Started through the API'), started, el('h2', {}, 'Every process in the sandbox'), all, asCode(() => [
    { what: 'Every process', method: 'GET', path: `${base}/processes?tree=true` },
    ...known.filter((p) => p.running).flatMap((p) => [
      { what: `Interrupt ${p.pid}`, method: 'POST', path: `${base}/processes/${p.process_id}/signal`, body: { signal: 'SIGINT' } },
      { what: `Kill ${p.pid}`, method: 'DELETE', path: `${base}/processes/${p.process_id}` }])]));
  let drawn = '';

  const signal = (p, name) => attempt(async () => {
    await post(`${base}/processes/${p.process_id}/signal`, { signal: name });
    say(`${name} sent to ${p.pid}`);
  });
  const kill = (p) => ask({
    title: `Kill ${p.pid}?`, button: 'Kill', danger: true,
    content: [el('p', {}, p.command), asCode([{ method: 'DELETE', path: `${base}/processes/${p.process_id}` }])],
    act: async () => { await del(`${base}/processes/${p.process_id}`); return true; },
  });

  function drawStarted(processes) {
    const now = JSON.stringify(processes);
    if (now === drawn) return;
    drawn = now;
    known = processes;
    fill(startedBody, processes.map((p) => el('tr', {}, el('td', {}, p.pid), el('td.mono', {}, p.command),
      el('td', {}, p.running ? 'running' : `ended: ${p.signal ?? p.exit_code}${p.stopped_by ? `, ${p.stopped_by}` : ''}`), el('td', {}, time(p.started_at)),
      // What the kernel tells when it has ended.
      el('td', {}, p.running && !p.cpu_time_ms ? '-' : `${Math.round(p.cpu_time_ms)} ms`), el('td', {}, p.running && !p.max_rss_bytes ? '-' : bytes(p.max_rss_bytes)), el('td', {}, bytes(p.stdout_bytes + p.stderr_bytes)),
      el('td', {}, p.running && [
        el('button.quiet.writes', { type: 'button', 'aria-label': `Interrupt ${p.pid}`, onclick: () => signal(p, 'SIGINT') }, 'Interrupt'),
        el('button.quiet.writes', { type: 'button', 'aria-label': `Kill ${p.pid}`, onclick: () => kill(p) }, 'Kill')]))),
    !processes.length && el('tr', {}, el('td.empty', { colspan: '8' }, 'Nothing was started through the API yet.')));
  }

  const end = repeat(async () => {
    const read = (more) => get(`${base}/processes?observe=true${more}`);
    // Nobody can be asked in a sandbox that stands still.
    const { processes, tree } = await read('&tree=true').catch((error) => (error.code === 'paused' ? read('') : Promise.reject(error)));
    drawStarted(processes);
    fill(allBody, treeOf(tree ?? []).map(([p, depth]) => el('tr', {}, el('td', {}, p.pid), el('td.mono.long', { title: p.command }, '\u2003'.repeat(Math.min(depth, 12)) + p.command),
      el('td', {}, { R: 'running', S: 'sleeping', D: 'waits for a disk', T: 'stopped', Z: 'ended' }[p.state] ?? p.state), el('td', {}, p.uid), el('td', {}, p.threads),
      el('td', {}, `${Math.round(p.cpu_time_ms)} ms`), el('td', {}, bytes(p.memory_bytes)), el('td', {}, duration(p.age_ms / 1000)))),
    !tree && el('tr', {}, el('td.empty', { colspan: '8' }, 'It is paused: its processes stand still.')));
  });
  return { end };
}

export function portsTab(main, { base }) {
  const [table, body] = tableOf('Ports', ['Port', 'Address', 'Pid', 'Command', 'Actions']);
  const [links, linksBody] = tableOf('Links', ['Link', 'Port', 'Made', 'Made by', 'Good until', 'State', 'Actions']);
  const frame = el('div.framed', {});
  const others = el('div', {});
  let known = [];
  fill(main, table, frame, others, asCode(() => [{ what: 'What listens', method: 'GET', path: `${base}/ports` }, { what: 'Links that were made', method: 'GET', path: `${base}/links` },
    ...known.map(({ port }) => ({ what: `Show port ${port} here, or open it in a tab`, method: 'POST', path: `${base}/ports/${port}/preview`, body: { by: 'host', expires_in_s: 3600 } }))]));
  let drawn = '';

  const revoke = (l) => ask({
    title: `Revoke link ${l.id}?`, button: 'Revoke', danger: true,
    content: [el('p', {}, `It leads to port ${l.port}. Whoever has it is kept out from then on, and what it has opened ends.`), asCode([{ method: 'DELETE', path: `${base}/links/${l.id}` }])],
    act: async () => {
      await del(`${base}/links/${l.id}`);
      await showLinks();
      return true;
    },
  });
  async function showLinks() {
    const { links: made } = await get(`${base}/links`);
    fill(others, made.length > 0 && [el('h2', {}, 'Links that were made'), links]);
    fill(linksBody, made.map((l) => el('tr', {}, el('td.mono', {}, l.id), el('td', {}, l.port), el('td', {}, time(l.created_at)), el('td', {}, l.made_by?.slice(0, 8) ?? '-'), el('td', {}, time(l.expires_at)),
      el(l.revoked_at ? 'td.state.gone' : 'td.state.running', {}, l.revoked_at ? '× revoked' : '● good'),
      el('td', {}, !l.revoked_at && el('button.quiet.writes', { type: 'button', 'aria-label': `Revoke link ${l.id}`, onclick: () => revoke(l) }, 'Revoke')))));
  }

  async function link(port) {
    const made = await post(`${base}/ports/${port}/preview`, { by: 'host', expires_in_s: 3600 });
    await showLinks();
    return made;
  }
  async function show(port) {
    const { url } = await link(port);
    // It may not lead this page elsewhere; its origin is its own.
    fill(frame, el('div.row', {}, el('strong', {}, `Port ${port}`), el('span.grow', {}), el('button', { type: 'button', onclick: () => fill(frame) }, 'Close')),
      el('iframe', { src: url, title: `Preview of port ${port}`, sandbox: 'allow-scripts allow-same-origin allow-forms allow-popups allow-modals allow-downloads', referrerpolicy: 'no-referrer' }));
  }
  async function openTab(port) {
    const { url } = await link(port);
    window.open(url, '_blank', 'noopener,noreferrer');
  }
  const share = (port) => ask({
    title: `Link to port ${port}`, button: 'Make',
    content: [el('label.field', {}, 'Good for, minutes', el('input', { name: 'life', type: 'number', min: 1, max: 10080, value: '60' })),
      el('p', {}, 'Everybody who has the link can use the port.'),
      asCode([{ method: 'POST', path: `${base}/ports/${port}/preview`, body: { expires_in_s: 3600 } }])],
    act: async (data) => {
      const { url } = await post(`${base}/ports/${port}/preview`, { expires_in_s: 60 * Number(data.get('life')) });
      fill(frame, el('p', {}, `Link to port ${port}:`), el('pre', { tabindex: '0' }, url));
      await showLinks();
      return true;
    },
  });

  const end = repeat(async () => {
    const { ports } = await get(`${base}/ports?observe=true`);
    const now = JSON.stringify(ports);
    if (now === drawn) return;
    drawn = now;
    known = ports;
    fill(body, ports.map((p) => el('tr', {}, el('td', {}, p.port), el('td', {}, p.address), el('td', {}, p.pid ?? '-'), el('td.mono', {}, p.command ?? '-'),
      el('td', {}, el('button.quiet.writes', { type: 'button', 'aria-label': `Show port ${p.port} here`, onclick: () => attempt(() => show(p.port)) }, 'Show here'),
        el('button.quiet.writes', { type: 'button', 'aria-label': `Open port ${p.port} in a tab`, onclick: () => attempt(() => openTab(p.port)) }, 'Open in a tab'),
        el('button.quiet.writes', { type: 'button', 'aria-label': `Link to port ${p.port}`, onclick: () => attempt(() => share(p.port)) }, 'Link...')))),
    !ports.length && el('tr', {}, el('td.empty', { colspan: '5' }, 'Nothing listens.')));
  });
  attempt(showLinks);
  return { end };
}

/** A line of values, with its extremes as text beside it. */
function chart(title, values, most, format) {
  const width = 600, height = 80;
  const top = Math.max(most ?? 0, ...values, 1e-9);
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', `${title}: now ${format(values.at(-1) ?? 0)}, at most ${format(Math.max(0, ...values))}`);
  const line = document.createElementNS(SVG, 'polyline');
  line.setAttribute('points', values.map((v, i) => `${(i / Math.max(1, values.length - 1)) * width},${height - 2 - (v / top) * (height - 4)}`).join(' '));
  svg.append(line);
  return el('figure.chart', {}, el('figcaption', {}, `${title}: now ${format(values.at(-1) ?? 0)}, at most ${format(Math.max(0, ...values))}${most ? `, limit ${format(most)}` : ''}`), svg);
}

export function metricsTab(main, { base, sandbox }) {
  const place = el('div.charts', {});
  fill(main, place, asCode([{ method: 'GET', path: `${base}/metrics?history=true` }]));
  const end = repeat(async () => {
    const usage = await get(`${base}/metrics?history=true`);
    const samples = [...usage.history, { cpu_percent: usage.history.at(-1)?.cpu_percent ?? 0, memory_bytes: usage.memory_bytes, disk_bytes: usage.history.at(-1)?.disk_bytes ?? 0 }];
    fill(place, chart('CPU', samples.map((s) => s.cpu_percent), sandbox.limits?.cpu ? 100 * sandbox.limits.cpu : null, (v) => `${Math.round(v)} %`),
      chart('Memory', samples.map((s) => s.memory_bytes), usage.limits?.memory_bytes, bytes),
      chart('Disk', samples.map((s) => s.disk_bytes), usage.limits?.disk_bytes, bytes),
      el('p', {}, `${usage.pids} processes; memory at most ${bytes(usage.memory_peak_bytes)}; processor time ${Math.round(usage.cpu_time_ms)} ms; the last five minutes.`));
  });
  return { end };
}

/** An event of the audit log, as six cells. */
export function eventCells(e) {
  return [el('td', {}, time(e.time)), el('td', {}, e.action), el('td.mono', {}, e.command ?? ''),
    el('td', {}, e.exit_code !== undefined ? `${e.result}, exit ${e.exit_code}` : e.result ?? ''),
    el('td', {}, e.duration_ms !== undefined ? `${Math.round(e.duration_ms)} ms` : ''), el('td', {}, e.key ?? '')];
}

export function historyTab(main, { base }) {
  const [table, body] = tableOf('History', ['Time', 'Action', 'What', 'Result', 'Took', 'Key']);
  fill(main, table, asCode([{ method: 'GET', path: `${base}/events?limit=500` }]));
  attempt(async () => {
    const { events } = await get(`${base}/events?limit=500`);
    fill(body, events.reverse().map((e) => el('tr', {}, eventCells(e))));
  });
  return {};
}

export function aboutTab(main, { base, sandbox }) {
  fill(main, el('pre.whole', { tabindex: '0', 'aria-label': 'The sandbox as JSON' }, JSON.stringify(sandbox, null, 2)), asCode([{ method: 'GET', path: base }]));
  return {};
}
