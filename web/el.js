// Elements. Everything that a sandbox, a user or the server says gets onto a page through here, as
// text: children that are strings become text nodes, and there is no other way in.

/**
 * el('a.link', {href: '#/', onclick: f, 'aria-label': 'Home'}, 'Home') makes an element. Attributes that
 * are null, undefined or false are left out; functions become listeners; children may be elements,
 * texts, numbers, null, and lists of these.
 */
export function el(name, attributes, ...children) {
  const [tag, ...classes] = name.split('.');
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(' ');
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') node.addEventListener(key.replace(/^on/, ''), value);
    else if (key === 'value' || key === 'checked' || key === 'disabled') node[key] = value;
    else node.setAttribute(key, value === true ? '' : String(value));
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(node, child);
    else node.append(child instanceof Node ? child : document.createTextNode(printable(child)));
  }
}

/** Puts these children in place of what is there. */
export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

/** Makes these the children, and leaves those alone that are there already, in their place. */
export function arrange(node, children) {
  const wanted = new Set(children);
  for (const child of [...node.childNodes]) if (!wanted.has(child)) child.remove();
  children.forEach((child, i) => {
    if (node.childNodes[i] !== child) node.insertBefore(child, node.childNodes[i] ?? null);
  });
}

/**
 * Foreign text as it may be shown: what turns the direction of writing around, or cannot be seen,
 * would make one text look like another, so it is shown as its number.
 */
export function printable(text) {
  return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (c) => `<${c.codePointAt(0).toString(16).padStart(4, '0')}>`);
}
