/**
 * Markdown as the server renders it, block by block.
 *
 * A text that grows is sent from its first open block on; blocks before it stay as they are. The
 * server's HTML is the only HTML that ever enters the document, by the one policy there is.
 */

import { h, icon } from "./dom.js";

const RENDER_EVERY = 100;
/** What is rendered at once, so that the page is never busy for long. */
const PIECE_MAX = 12_000;
/** A longer block is shown as plain text. */
const BLOCK_MAX = 60_000;
/** How much plain text is laid out together. */
const PART_MAX = 8_000;
/** Of a longer text, the browser lays out only what is near the view. */
const LONG = 50_000;
/** What is shown before the first piece is rendered. */
const SHOWN_AT_FIRST = 4_000;
const BATCH_CHARACTERS = 64_000;
const RETRY_AFTER = 2_000;

/** @typedef {{lines: number, html: string}} Block */

const policy = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("nplt", {
  createHTML: (/** @type {string} */ html) => html,
});

/**
 * @param {string} html from the server's renderer
 * @returns {DocumentFragment}
 */
function fragment(html) {
  const template = document.createElement("template");
  template.innerHTML = policy ? policy.createHTML(html) : html;
  const content = template.content;
  for (const link of content.querySelectorAll("a")) {
    link.target = "_blank";
    link.title = link.href;
  }
  for (const table of content.querySelectorAll("table")) {
    const frame = h("div.table", { tabindex: 0, role: "region", "aria-label": "table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const pre of content.querySelectorAll("pre")) pre.replaceWith(codeBlock(pre));
  return content;
}

/** @param {HTMLElement} pre */
function codeBlock(pre) {
  const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
  const label = h("span", {}, "Copy");
  const copy = async () => {
    await navigator.clipboard.writeText(pre.textContent ?? "");
    label.textContent = "Copied";
    setTimeout(() => (label.textContent = "Copy"), 1_500);
  };
  const button = h("button", { type: "button", onclick: copy }, icon("copy"), label);
  const head = h("div.code-head", {}, h("span", {}, language), button);
  const scrolled = pre.cloneNode(true);
  /** @type {HTMLElement} */ (scrolled).tabIndex = 0;
  return h("div.code", {}, head, scrolled);
}

/** Sends texts to the server, several in one request. */
class Renderer {
  constructor() {
    /** @type {{text: string, resolve: (blocks: Block[]) => void}[]} */
    this.waiting = [];
    this.isBusy = false;
  }

  /** @param {string} text @returns {Promise<Block[]>} */
  render(text) {
    return new Promise((resolve) => {
      this.waiting.push({ text, resolve });
      if (!this.isBusy) queueMicrotask(() => this.run());
    });
  }

  get isIdle() {
    return !this.isBusy && !this.waiting.length;
  }

  async run() {
    if (this.isBusy) return;
    this.isBusy = true;
    while (this.waiting.length) {
      let characters = 0;
      const batch = [];
      for (const each of this.waiting) {
        characters += each.text.length;
        if (batch.length && characters > BATCH_CHARACTERS) break;
        batch.push(each);
      }
      const rendered = await post(batch.map((each) => each.text));
      if (!rendered) {
        await new Promise((resolve) => setTimeout(resolve, RETRY_AFTER));
        continue;
      }
      this.waiting.splice(0, batch.length);
      batch.forEach((each, number) => each.resolve(rendered[number]));
    }
    this.isBusy = false;
  }
}

/** @param {string[]} texts @returns {Promise<Block[][] | null>} */
async function post(texts) {
  try {
    const response = await fetch("/markdown", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ texts: texts.map((text) => text.toWellFormed?.() ?? text) }),
    });
    if (response.ok) return (await response.json()).texts;
    const isRefused = response.status >= 400 && response.status < 500 && response.status !== 401;
    return isRefused ? texts.map(() => []) : null; // what is refused is shown as plain text
  } catch {
    return null; // the server is away; it is asked again
  }
}

export const renderer = new Renderer();

/** A text that is shown as Markdown, and may grow. Until it is rendered, it is shown as it is. */
export class MarkdownText {
  constructor() {
    /** @type {HTMLElement} */
    this.element = h("div.markdown");
    this.open = h("div.open");
    this.element.append(this.open);
    this.text = "";
    /** How many characters the closed blocks take. */
    this.closed = 0;
    this.openHtml = "";
    this.isFinal = false;
    this.isRendering = false;
    this.renderedAt = 0;
    /** Whether a block is too long to be rendered: the rest is shown as plain text. */
    this.isPlain = false;
  }

  /**
   * @param {string} text
   * @param {boolean} isFinal
   */
  set(text, isFinal) {
    if (text === this.text && isFinal === this.isFinal) return;
    // The blocks of a final text are closed, its last one too, which a longer text may go on.
    if (!text.startsWith(this.text) || (this.isFinal && text !== this.text)) this.restart();
    this.text = text;
    this.isFinal = isFinal;
    if (!this.renderedAt || this.isPlain) this.showPlain();
    this.run();
  }

  restart() {
    this.element.replaceChildren(this.open);
    this.closed = 0;
    this.openHtml = "";
    this.isPlain = false;
    this.renderedAt = 0;
  }

  showPlain() {
    if (this.isPlain) this.closeParts();
    const end = this.isPlain ? this.text.length : this.closed + SHOWN_AT_FIRST;
    const rest = this.text.slice(this.closed, end);
    this.openHtml = "";
    const node = this.open.firstChild;
    if (this.isPlain && node instanceof Text && rest.startsWith(node.data)) {
      node.appendData(rest.slice(node.data.length));
    } else this.open.textContent = rest;
    this.open.className = "open plain";
  }

  /** Plain text is shown in parts, because the browser lays out a part as a whole when it grows. */
  closeParts() {
    while (this.text.length - this.closed > PART_MAX) {
      const from = this.closed;
      const isPair = /[\ud800-\udbff]/.test(this.text[from + PART_MAX - 1]);
      const part = this.text.slice(from, from + PART_MAX - Number(isPair));
      const line = part.lastIndexOf("\n");
      const end = line >= 0 ? line : part.lastIndexOf(" ") + 1 || part.length;
      this.open.before(h("div.plain.part", {}, part.slice(0, end)));
      this.open.replaceChildren();
      this.closed = from + (line >= 0 ? line + 1 : end);
    }
    if (this.closed > LONG) this.element.classList.add("long");
  }

  async run() {
    if (this.isRendering || this.isPlain) return;
    this.isRendering = true;
    let most = PIECE_MAX;
    for (let done = ""; done !== this.text + this.isFinal && !this.isPlain; ) {
      const pause = this.renderedAt + RENDER_EVERY - performance.now();
      if (pause > 0 && !this.isFinal) await new Promise((resolve) => setTimeout(resolve, pause));
      const { text, isFinal } = this;
      const from = this.closed;
      const tail = text.slice(from);
      const cut = tail.length > most ? tail.lastIndexOf("\n", most) + 1 : tail.length;
      const isWhole = cut === tail.length;
      const blocks = cut ? await renderer.render(tail.slice(0, cut)) : [];
      if (from !== this.closed || !this.text.startsWith(text)) continue;
      const isOneBlock = !isWhole && blocks.length <= 1;
      if (isOneBlock && most < BLOCK_MAX) {
        most = BLOCK_MAX;
        continue;
      }
      if (isOneBlock || !blocks.length) this.becomePlain();
      else this.apply(blocks, isFinal && isWhole);
      most = PIECE_MAX;
      this.renderedAt = performance.now();
      if (isWhole) done = text + isFinal;
    }
    this.isRendering = false;
  }

  becomePlain() {
    this.isPlain = true;
    this.showPlain();
  }

  /** @param {Block[]} blocks @param {boolean} isAll whether the last one is closed too */
  apply(blocks, isAll) {
    const closed = isAll ? blocks : blocks.slice(0, -1);
    if (closed.length) {
      const lines = closed.reduce((sum, block) => sum + block.lines, 0);
      this.closed = isAll ? this.text.length : afterLines(this.text, this.closed, lines);
      this.open.before(fragment(closed.map((block) => block.html).join("")));
      this.openHtml = "";
      this.open.replaceChildren();
      if (this.closed > LONG) this.element.classList.add("long");
    }
    const last = isAll ? "" : blocks[blocks.length - 1].html;
    this.open.className = "open";
    if (last === this.openHtml && this.open.firstElementChild) return;
    this.openHtml = last;
    this.open.replaceChildren(fragment(last));
  }
}

/** @param {string} text @param {number} from @param {number} lines */
function afterLines(text, from, lines) {
  let at = from;
  for (; lines > 0; lines--) {
    const end = text.indexOf("\n", at);
    if (end < 0) return text.length;
    at = end + 1;
  }
  return at;
}
