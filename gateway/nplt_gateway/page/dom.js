/** Small helpers for the document. Text is always set as text, never as HTML. */

/**
 * Makes an element. `h("button.icon", { title: "Copy", onclick: copy }, icon("copy"))`
 * @param {string} selector a tag with classes
 * @param {Record<string, any>} [attributes] names with `on` are listeners; false leaves one out
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {any}
 */
export function h(selector, attributes = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child) element.append(child);
  return element;
}

/**
 * Makes the children of an element those of a list; the element of a key is kept.
 * @template T
 * @param {HTMLElement} parent
 * @param {T[]} items
 * @param {(item: T) => string} keyOf
 * @param {(item: T) => HTMLElement} make
 * @param {(element: any, item: T) => void} update
 */
export function keep(parent, items, keyOf, make, update) {
  const held = new Map(
    [...parent.children].map((child) => [/** @type {HTMLElement} */ (child).dataset.key, child]),
  );
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = /** @type {HTMLElement | undefined} */ (held.get(key));
    held.delete(key);
    if (!element) {
      element = make(item);
      element.dataset.key = key;
    }
    update(element, item);
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
  for (const old of held.values()) old.remove();
}

/**
 * Changes the text only if it differs, so that a selection in it survives.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {HTMLElement} element @param {boolean} isShown */
export function show(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

const SVG = "http://www.w3.org/2000/svg";
/** @type {Record<string, string>} the strokes of each icon, in a square of 24 */
const STROKES = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  edit: "M4 20h4L19 9a2.1 2.1 0 0 0-3-3L5 17zM14.5 7.5l3 3",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  clip: "M20 11.5l-8.3 8.3a5 5 0 0 1-7-7l8.5-8.6a3.4 3.4 0 0 1 4.8 4.8l-8.6 8.5a1.7 1.7 0 0 1-2.4-2.4l7.9-7.8",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.5l4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6L6 18",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  again: "M20 11a8 8 0 1 0-.6 4M20 5v6h-6",
  undo: "M9 14L4 9l5-5M4 9h10a6 6 0 0 1 0 12h-3",
  fork: "M6 4v6a4 4 0 0 0 4 4h8M14 10l4 4-4 4M6 14v6",
  pin: "M9 4h6l-1 6 3 3v2H7v-2l3-3zM12 15v6",
  archive: "M4 5h16v4H4zM6 9v10h12V9M10 13h4",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  down: "M6 9l6 6 6-6",
  right: "M9 6l6 6-6 6",
  arrow: "M12 5v14M6 13l6 6 6-6",
  tool: "M14.7 6.3a4 4 0 0 1 5 5l-3-1-2 2-1-1 2-2zM13 11l-8 8a1.8 1.8 0 0 1-2.6-2.6l8-8a4 4 0 0 1 4.3-2.1",
  think: "M9 18h6M10 21h4M12 3a6 6 0 0 0-3.5 10.9c.5.4.8 1 .8 1.6h5.4c0-.6.3-1.2.8-1.6A6 6 0 0 0 12 3z",
  gear: "M12 15a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM12 3v3M12 18v3M3 12h3M18 12h3M5.6 5.6l2.2 2.2M16.2 16.2l2.2 2.2M5.6 18.4l2.2-2.2M16.2 7.8l2.2-2.2",
  file: "M7 3h7l5 5v13H7zM14 3v5h5",
  warn: "M12 4l9 16H3zM12 10v4M12 17h.01",
  bell: "M6 16V11a6 6 0 1 1 12 0v5l2 2H4zM10 21h4",
  clock: "M12 20a8 8 0 1 0 0-16 8 8 0 0 0 0 16zM12 8v4.5l3 2",
  erase: "M9 19h11M5 14.5l8-8a2 2 0 0 1 3 0l2.5 2.5a2 2 0 0 1 0 3L11.5 19H8.5L5 15.5a.7.7 0 0 1 0-1zM9 10.5l5.5 5.5",
  clear: "M4 12h16M8 7l-1-3M12 7V3M16 7l1-3M8 17l-1 3M12 17v4M16 17l1 3",
  system: "M5 4h14v16H5zM9 9h6M9 13h6",
  chart: "M5 20V10M12 20V4M19 20v-7",
};

/** @param {string} name */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.classList.add("icon");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", STROKES[name]);
  svg.append(path);
  return svg;
}

/**
 * @param {string} name of the icon
 * @param {string} label
 * @param {(event: Event) => void} onclick
 * @param {string} [classes]
 */
export function iconButton(name, label, onclick, classes = "") {
  const attributes = { type: "button", title: label, "aria-label": label, onclick };
  return h(`button.icon-button${classes}`, attributes, icon(name));
}
