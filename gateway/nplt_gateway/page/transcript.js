/**
 * The conversation as one reads it. Only the messages that the state holds are in the document;
 * older and newer ones are asked for when their end comes near.
 *
 * The view stays where the reader is: at the end, or at the message that is read, whatever is added
 * above it.
 */

import { approvalCard } from "./approvals.js";
import { sentence } from "./client.js";
import { stateWords } from "./conversations.js";
import { openMenu } from "./dialogs.js";
import { h, icon, iconButton, keep, setText, show } from "./dom.js";
import { askToErase } from "./erase.js";
import { attachmentChip } from "./files.js";
import { LaterView } from "./later.js";
import { MarkdownText } from "./markdown.js";
import { compactJson, duration, longTime, modelName, shortTime, size, tokens } from "./text.js";

const NEAR = 900;
const AT_END = 60;
const PROMPT_SHOWN = 4_000;
const PROMPT_MAX = 6_000;

/** @typedef {import("./client.js").Client} Client */
/** @typedef {import("./conversation.js").Message} Message */

/**
 * What is shown in one place: a message, the text of a running turn, a prompt that is not sent yet,
 * one for later, an approval, or the line below which models read.
 * @typedef {object} Item
 * @property {string} key
 * @property {"prompt" | "answer" | "fault" | "live" | "unsent" | "approval" | "later" | "clear"} kind
 * @property {any} value
 * @property {boolean} [isLast] whether it is the last answer of its turn
 * @property {boolean} [isNewest] whether no other turn follows
 */

export class Transcript {
  /** @param {Client} client */
  constructor(client) {
    this.client = client;
    this.items = h("div.items");
    this.empty = h("div.empty", { hidden: true });
    this.recent = h("nav.recent", { "aria-label": "Go on with", hidden: true });
    this.loading = h("p.loading", { hidden: true }, "Loading …");
    this.column = h("div.column", {}, this.loading, this.empty, this.recent, this.items);
    this.element = h(
      "div.transcript",
      { tabindex: 0, role: "log", "aria-label": "Conversation", "aria-live": "off" },
      this.column,
    );
    this.endButton = iconButton("arrow", "To the end", () => this.toEnd(), ".to-end");
    this.shownId = "";
    this.isAtEnd = true;
    /** Where the view was when it was scrolled last. */
    this.lastTop = 0;
    this.isEmpty = false;
    /** @type {number | null} the message whose prompt is being edited */
    this.editing = null;
    /** @type {{element: Element, top: number} | null} what the reader looks at */
    this.anchor = null;
    /** @type {LiveView | null} the view of the running turn */
    this.writing = null;
    this.element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.settle()).observe(this.column);
    new ResizeObserver(() => this.settle()).observe(this.element);
  }

  render() {
    const shown = this.client.conversation;
    if (shown.id !== this.shownId) {
      this.items.replaceChildren();
      this.shownId = shown.id;
      this.isAtEnd = true;
      this.anchor = null;
      this.editing = null;
    }
    const items = itemsOf(this.client);
    keep(
      this.items,
      items,
      (item) => item.key,
      (item) => this.make(item),
      (element, item) => element.view.update(item),
    );
    show(this.loading, !shown.isLoaded && !shown.problem);
    this.isEmpty = !items.length && shown.isLoaded && !shown.problem;
    this.showEmpty(this.isEmpty, shown.problem);
    this.showRecent();
    this.settle();
    this.askForMore();
  }

  /** @param {boolean} isEmpty @param {string} problem */
  showEmpty(isEmpty, problem) {
    show(this.empty, isEmpty || Boolean(problem));
    const words = problem || "What would you like to know?";
    if (this.empty.dataset.words === words) return;
    this.empty.dataset.words = words;
    const { id } = this.client.conversation;
    const restore = { type: "button", onclick: () => this.client.restore(id) };
    this.empty.replaceChildren(
      h("h1", {}, words),
      this.client.isInTrash(id)
        ? h("button.button.primary", restore, "Restore")
        : h("p", {}, problem ? "" : "The conversation stays on your server. Close this page whenever you like."),
    );
  }

  /** In an empty conversation: the others where something happened, or that are the newest. */
  showRecent() {
    const rows = this.isEmpty ? this.client.list.recent : [];
    keep(
      this.recent,
      rows,
      (row) => row.session_id,
      (row) =>
        h("a", { href: `#/c/${row.session_id}` }, h("span.dot"), h("span.name"), h("span.state")),
      (element, row) => {
        element.dataset.state = row.state;
        element.classList.toggle("unread", Boolean(row.unread));
        setText(element.children[1], row.name);
        setText(element.children[2], stateWords(row) || shortTime(row.updated_at));
      },
    );
    show(this.recent, rows.length > 0);
  }

  /** @param {Item} item */
  make(item) {
    const view = new VIEWS[item.kind](this.client, this);
    view.element.view = view;
    return view.element;
  }

  // Where the reader is

  /**
   * Only who scrolls up leaves the end: when a picture is loaded, the end moves down before this is
   * called for an earlier change.
   */
  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    const hasAfter = this.client.conversation.hasAfter;
    const isNearEnd = scrollHeight - scrollTop - clientHeight < AT_END;
    const isLeft = scrollTop < this.lastTop;
    this.isAtEnd = !hasAfter && (isNearEnd || (this.isAtEnd && !isLeft));
    this.lastTop = scrollTop;
    this.findAnchor();
    this.endButton.hidden = this.isAtEnd;
    this.askForMore();
  }

  findAnchor() {
    const top = this.element.getBoundingClientRect().top;
    this.anchor = null;
    for (const element of this.items.children) {
      const box = element.getBoundingClientRect();
      if (box.bottom <= top) continue;
      this.anchor = { element, top: box.top };
      return;
    }
  }

  /** After a change: keeps the end, or what is read, in its place. */
  settle() {
    if (this.isAtEnd) {
      this.element.scrollTop = this.element.scrollHeight;
      this.lastTop = this.element.scrollTop;
    } else if (this.isShort) {
      this.isAtEnd = true;
    } else if (this.anchor?.element.isConnected) {
      const moved = this.anchor.element.getBoundingClientRect().top - this.anchor.top;
      if (Math.abs(moved) >= 1) this.element.scrollTop += moved;
      this.findAnchor();
    }
    this.endButton.hidden = this.isAtEnd;
  }

  /** Whether all of the conversation is in view. */
  get isShort() {
    const { scrollHeight, clientHeight } = this.element;
    return !this.client.conversation.hasAfter && scrollHeight <= clientHeight;
  }

  askForMore() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    const shown = this.client.conversation;
    if (!shown.isLoaded || !scrollHeight) return;
    if (scrollTop < NEAR && shown.hasBefore) {
      if (!this.anchor) this.findAnchor();
      this.client.loadMore("before");
    } else if (scrollHeight - scrollTop - clientHeight < NEAR && shown.hasAfter) {
      this.client.loadMore("after");
    }
  }

  async toEnd() {
    await this.client.showEnd();
    this.isAtEnd = true;
    this.settle();
  }

  /** @param {number} seq */
  showMessage(seq) {
    const element = this.items.querySelector(`[data-key="m${seq}"]`);
    if (!element) return;
    this.isAtEnd = false;
    element.scrollIntoView({ block: "center" });
    element.classList.add("found");
    setTimeout(() => element.classList.remove("found"), 2_000);
    this.scrolled();
  }

  /** @param {number | null} seq */
  edit(seq) {
    this.editing = seq;
    if (seq !== null) this.isAtEnd = false; // so that what is edited stays in view
    else this.onedited();
    this.client.changed();
  }

  onedited() {}
}

/**
 * @param {Client} client
 * @returns {Item[]}
 */
export function itemsOf(client) {
  const { live, approvals, later, hasAfter, id } = client.conversation;
  const messages = joined(client.conversation.messages);
  /** @type {Item[]} */
  const items = [];
  messages.forEach((message, at) => {
    const kind = KINDS[message.role];
    if (!kind) return;
    const next = messages[at + 1];
    const isLast = next?.turn_id !== message.turn_id && live?.turnId !== message.turn_id;
    items.push({ key: `m${message.seq}`, kind, value: message, isLast });
    if (message.cleared && !next?.cleared) items.push({ key: "clear", kind: "clear", value: {} });
  });
  const newest = messages.at(-1)?.turn_id;
  for (const item of items) item.isNewest = item.value.turn_id === newest && !hasAfter;
  if (hasAfter) return items;
  if (live) {
    const item = /** @type {Item} */ ({ key: `live ${live.turnId}`, kind: "live", value: live });
    const last = items.findLastIndex((each) => each.value.turn_id === live.turnId);
    const cards = [...approvals.values()].map(
      (each) =>
        /** @type {Item} */ ({ key: `asks ${each.approval_id}`, kind: "approval", value: each }),
    );
    items.splice(last < 0 ? items.length : last + 1, 0, item, ...cards);
  }
  for (const prompt of client.outbox.of(id)) {
    const isShown = messages.some((each) => each.seq === prompt.seq);
    if (!isShown) items.push({ key: `unsent ${prompt.message_id}`, kind: "unsent", value: prompt });
  }
  const waiting = [...later.values()].sort((a, b) => a.due_at.localeCompare(b.due_at));
  for (const each of waiting) items.push({ key: `later ${each.turn_id}`, kind: "later", value: each });
  return items;
}

/**
 * Joins an answer that was cut with the one that goes on with it, and leaves out the prompt between
 * them. A part whose beginning is not among the messages stays as it is.
 * @param {Message[]} messages
 */
function joined(messages) {
  /** @type {Message[]} */
  const shown = [];
  let lastSeq = 0;
  let goesOn = "";
  for (const message of messages) {
    const held = shown.at(-1);
    if (held && message.continues === lastSeq) {
      goesOn = message.turn_id ?? "";
    } else if (held && message.role === "assistant" && message.turn_id === goesOn) {
      shown.splice(-1, 1, together(held, message));
      lastSeq = message.seq;
      goesOn = "";
    } else {
      shown.push(message);
      lastSeq = message.seq;
      goesOn = "";
    }
  }
  return shown;
}

/** @type {WeakMap<Message, Message>} joined answers by their last part, which are not made twice */
const joinedAnswers = new WeakMap();

/** @param {Message} first @param {Message} rest */
function together(first, rest) {
  const content = first.content + rest.content;
  const known = joinedAnswers.get(rest);
  if (known?.content === content) return known;
  const whole = {
    ...rest,
    seq: first.seq,
    content,
    reasoning: (first.reasoning ?? "") + (rest.reasoning ?? ""),
    tool_calls: [...first.tool_calls, ...rest.tool_calls],
  };
  joinedAnswers.set(rest, whole);
  return whole;
}

/** @type {Record<string, "prompt" | "answer" | "fault">} */
const KINDS = { user: "prompt", assistant: "answer", system: "fault" };

/** A prompt's text; a long one is folded. */
class Bubble {
  constructor() {
    this.text = h("span");
    this.more = button("", () => {
      this.isOpen = true;
      this.set(this.content);
    });
    this.element = h("div.bubble", {}, this.text, this.more);
    this.content = "";
    this.isOpen = false;
  }

  /** @param {string} content */
  set(content) {
    this.content = content;
    const isCut = content.length > PROMPT_MAX && !this.isOpen;
    setText(this.text, isCut ? `${content.slice(0, PROMPT_SHOWN)} …` : content);
    setText(this.more, `Show all (${size(content.length)})`);
    show(this.more, isCut);
  }
}

class PromptView {
  /** @param {Client} client @param {Transcript} transcript */
  constructor(client, transcript) {
    this.client = client;
    this.transcript = transcript;
    this.bubble = new Bubble();
    this.text = this.bubble.element;
    this.files = h("div.chips");
    this.time = h("time");
    this.actions = h("div.actions");
    this.form = /** @type {HTMLElement | null} */ (null);
    this.remark = h("p.remark");
    this.element = h(
      "article.prompt",
      { "aria-label": "You" },
      this.files,
      this.text,
      this.remark,
      this.actions,
    );
    this.shown = "";
  }

  /** @param {Item} item */
  update({ value: message }) {
    const isEdited = this.transcript.editing === message.seq;
    const state = `${message.revision} ${message.cleared} ${isEdited}`;
    if (state === this.shown) return;
    this.shown = state;
    this.element.classList.toggle("cleared", Boolean(message.cleared));
    this.bubble.set(message.redacted_at ? "(erased)" : message.content);
    this.files.replaceChildren(
      ...(message.attachments ?? []).map((/** @type {any} */ each) =>
        attachmentChip(this.client, each),
      ),
    );
    show(this.text, !isEdited && message.content !== "");
    setText(this.remark, hiddenRemark(message));
    show(this.remark, Boolean(message.hidden));
    this.form?.remove();
    this.form = isEdited ? this.editor(message) : null;
    if (this.form) this.text.after(this.form);
    this.actions.replaceChildren(
      h("time", { datetime: message.timestamp, title: longTime(message.timestamp) }, shortTime(message.timestamp)),
      ...[
        iconButton("copy", "Copy", (event) => copy(event, message.content)),
        iconButton("edit", "Edit and ask again", () => this.transcript.edit(message.seq)),
        moreButton(this.client, message),
      ].filter(Boolean),
    );
    show(this.actions, !isEdited);
  }

  /** @param {Message} message */
  editor(message) {
    const area = h("textarea", { "aria-label": "Your prompt", rows: 1 });
    area.value = message.content;
    const isLast = this.client.conversation.lastPrompt?.seq === message.seq;
    const send = () => {
      const text = area.value.trim();
      if (!text) return;
      if (this.client.conversation.isRunning) {
        this.client.say("Wait for the answer, or stop it, before you edit a prompt.", true);
        return;
      }
      this.transcript.edit(null);
      this.client.prompt(text, message.attachments ?? [], { replace_from: message.seq });
    };
    area.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") {
        event.stopPropagation();
        this.transcript.edit(null);
      } else if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        send();
      }
    });
    queueMicrotask(() => area.focus());
    return h(
      "div.editor",
      {},
      area,
      h(
        "div.buttons",
        {},
        !isLast && h("span.hint", {}, "The turns after this one are taken back."),
        h("button.button", { type: "button", onclick: () => this.transcript.edit(null) }, "Cancel"),
        h("button.button.primary", { type: "button", onclick: send }, "Send"),
      ),
    );
  }
}

class UnsentView {
  /** @param {Client} client */
  constructor(client) {
    this.client = client;
    this.bubble = new Bubble();
    this.state = h("div.state");
    this.element = h(
      "article.prompt.unsent",
      { "aria-label": "You" },
      this.bubble.element,
      this.state,
    );
    this.shown = "";
  }

  /** @param {Item} item */
  update({ value: prompt }) {
    const state = prompt.problem
      ? prompt.problem
      : prompt.seq !== undefined || prompt.isSending
        ? ""
        : "Waits for the connection; it will be sent once.";
    this.bubble.set(prompt.text);
    if (this.shown === state && this.state.firstChild) return;
    this.shown = state;
    const discard = () => {
      this.client.outbox.remove(prompt);
      this.client.changed();
    };
    const retry = prompt.problem && button("Try again", () => this.client.retry(prompt));
    const buttons = state ? [retry, button("Discard", discard)] : [];
    this.state.replaceChildren(h("span", { role: "status" }, state), ...buttons.filter(Boolean));
    this.element.classList.toggle("refused", Boolean(prompt.problem));
  }
}

class AnswerView {
  /** @param {Client} client @param {Transcript} transcript */
  constructor(client, transcript) {
    this.client = client;
    this.transcript = transcript;
    this.thinking = new Thinking(() => this.readThoughts());
    this.markdown = new MarkdownText();
    this.tools = h("div.tools");
    this.remark = h("p.remark", { hidden: true });
    this.rest = button("Show the rest", () => this.showRest());
    this.actions = h("div.actions");
    this.element = h(
      "article.answer",
      { "aria-label": "Answer" },
      this.thinking.element,
      this.markdown.element,
      this.rest,
      this.tools,
      this.remark,
      this.actions,
    );
    this.shown = "";
    /** @type {any} */
    this.message = null;
  }

  /** @param {Item} item */
  update({ value: message, isLast, isNewest }) {
    const { lastTurn, isRunning } = this.client.conversation;
    const isTimed = lastTurn?.turnId === message.turn_id;
    const { model } = this.client.conversation;
    const state = [message.revision, message.cleared, isLast, isNewest, isRunning, isTimed, model].join();
    if (state === this.shown && message === this.message) return;
    this.shown = state;
    if (!this.message) this.adopt(message);
    this.message = message;
    this.element.classList.toggle("cleared", Boolean(message.cleared));
    const thoughts = message.reasoning ?? (message.reasoning_size ? null : "");
    this.thinking.update(thoughts, false);
    this.markdown.set(message.redacted_at ? "(erased)" : message.content, true);
    show(this.markdown.element, message.content !== "");
    show(this.rest, Boolean(message.truncated));
    keep(
      this.tools,
      message.tool_calls,
      (/** @type {any} */ tool) => tool.tool_call_id,
      () => new ToolView().element,
      (element, tool) => element.view.update(tool),
    );
    const remark = remarkOf(message);
    setText(this.remark, remark);
    show(this.remark, remark !== "");
    this.actions.replaceChildren(...(isLast ? this.actionsOf(message, isNewest, isTimed) : []));
  }

  /**
   * Takes over what was rendered while the answer was written, so that it does not flicker.
   * @param {Message} message
   */
  adopt(message) {
    const written = this.transcript.writing?.release(message);
    if (!written) return;
    this.markdown.element.replaceWith(written.element);
    this.markdown = written;
  }

  /** @param {Message} message @param {boolean | undefined} isNewest @param {boolean} isTimed */
  actionsOf(message, isNewest, isTimed) {
    const { client } = this;
    const running = client.conversation.isRunning;
    const { lastTurn } = client.conversation;
    const usage = (isTimed && lastTurn?.usage) || message.usage;
    const isUsual = message.model === client.conversation.model;
    const facts = [
      usage?.output_tokens && `${tokens(usage.output_tokens)} tokens`,
      isTimed && lastTurn && duration(lastTurn.seconds),
    ].filter(Boolean);
    return [
      iconButton("copy", "Copy the answer", (event) => copy(event, message.content)),
      isNewest && !running && canGoOn(message) && goOnButton(client),
      isNewest && !running && iconButton("again", "Ask again", () => client.regenerate()),
      isNewest && !running && iconButton("undo", "Take this turn back", () => client.undo()),
      iconButton("fork", "Continue in a copy from here", () => client.fork(message.seq)),
      moreButton(client, message),
      h(
        "span.facts",
        { title: message.timestamp && longTime(message.timestamp) },
        message.model && h(`span${isUsual ? ".usual" : ""}`, {}, modelName(message.model)),
        ...facts.map((fact) => h("span", {}, fact)),
      ),
    ].filter(Boolean);
  }

  async readThoughts() {
    const { message } = this;
    if (message.reasoning !== undefined || !message.reasoning_size) return;
    await this.client.readReasoning(message).catch((error) => this.client.fail(error));
  }

  async showRest() {
    this.rest.disabled = true;
    await this.client.readWhole(this.message).catch((error) => this.client.fail(error));
    this.rest.disabled = false;
  }
}

/** @param {Message} message */
function canGoOn(message) {
  const isCut = ["length", "window", "pause", "cancelled"].includes(message.stop_reason ?? "");
  const isEndedEarly = ["interrupted", "failed"].includes(message.state ?? "");
  return (isCut || isEndedEarly) && message.content !== "";
}

/** @param {Client} client */
function goOnButton(client) {
  const onclick = () => client.goOn();
  return h("button.button.small", { type: "button", onclick }, "Go on");
}

/** @param {Message} message */
function hiddenRemark(message) {
  return message.hidden ? `Models of ${message.hidden} refused this and are not shown it.` : "";
}

/** @param {Message} message */
function remarkOf(message) {
  if (message.rejected) return `This answer was not accepted: ${message.rejected}`;
  if (message.state === "interrupted") {
    return message.stop_reason === "cancelled" ? "Stopped." : "The server stopped before this answer was complete.";
  }
  if (message.state === "failed") {
    return message.error ? `This answer broke off: ${message.error.message}.` : "This answer broke off.";
  }
  const why = /** @type {Record<string, string>} */ ({
    length: "The answer was cut at the longest that the model may give.",
    window: "The answer was cut because the model's window is full.",
    filter: "The provider's content filter cut the answer.",
    refusal: "The model declined to answer.",
    pause: "The provider paused the answer.",
  });
  const from = message.fallback_from;
  return [
    message.stop_reason && why[message.stop_reason],
    from && `${from.model} could not answer: ${from.message ?? from.reason}`,
    hiddenRemark(message),
  ]
    .filter(Boolean)
    .join(" ");
}

class LiveView {
  /** @param {Client} client @param {Transcript} transcript */
  constructor(client, transcript) {
    this.client = client;
    transcript.writing = this;
    this.turnId = "";
    this.thinking = new Thinking();
    this.markdown = new MarkdownText();
    this.note = h("p.note", { role: "status" });
    this.element = h(
      "article.answer.live",
      { "aria-label": "Answer, being written", "aria-busy": "true" },
      this.thinking.element,
      this.markdown.element,
      this.note,
    );
    this.call = -1;
  }

  /** @param {Item} item */
  update({ value: live }) {
    this.turnId = live.turnId;
    this.thinking.update(live.reasoning, !live.text);
    if (live.call !== this.call) {
      this.call = live.call;
      this.markdown.restart();
    }
    this.markdown.set(live.text, false);
    show(this.markdown.element, live.text !== "");
    const isWaiting = !live.text && !live.reasoning && !this.client.conversation.approvals.size;
    const words = live.note || (isWaiting ? "…" : "");
    setText(this.note, words);
    this.note.classList.toggle("dots", words === "…");
    show(this.note, words !== "");
  }

  /**
   * Gives away the rendered text of a message that was written here.
   * @param {Message} message
   * @returns {MarkdownText | null}
   */
  release(message) {
    const written = this.markdown;
    const isIt = message.turn_id === this.turnId && message.content.startsWith(written.text);
    if (!written.text || !isIt) return null;
    this.markdown = new MarkdownText();
    written.element.before(this.markdown.element);
    return written;
  }
}

class Thinking {
  /** @param {() => void} onopen is called when thoughts are to be shown that are not here yet */
  constructor(onopen = () => {}) {
    this.summary = h("span", {}, "");
    this.text = h("div.folded");
    this.element = h(
      "details.thinking",
      { hidden: true, ontoggle: () => this.element.open && onopen() },
      h("summary", {}, icon("think"), this.summary, icon("right")),
      this.text,
    );
  }

  /** @param {string | null} reasoning `null`: it must be asked for @param {boolean} isRunning */
  update(reasoning, isRunning) {
    show(this.element, reasoning !== "");
    if (reasoning === "") return;
    setText(this.summary, isRunning ? "Thinking …" : "Thoughts");
    setText(this.text, reasoning ?? "Loading …");
  }
}

const TOOL_STATES = /** @type {Record<string, string>} */ ({
  pending: "waits",
  running: "runs …",
  success: "",
  failed: "failed",
  skipped: "was not run",
});

class ToolView {
  constructor() {
    this.name = h("strong");
    this.given = h("span.given");
    this.state = h("span.tool-state");
    this.body = h("div.folded");
    this.element = h(
      "details.tool",
      {},
      h("summary", {}, icon("tool"), this.name, this.given, this.state, icon("right")),
      this.body,
    );
    this.element.view = this;
  }

  /** @param {import("./conversation.js").ToolCall} tool */
  update(tool) {
    setText(this.name, tool.tool_name);
    setText(this.given, compactJson(tool.arguments));
    const took = tool.status === "success" && tool.duration ? duration(tool.duration) : "";
    setText(this.state, TOOL_STATES[tool.status] || took);
    this.element.dataset.status = tool.status;
    const shown = `${tool.status}${tool.result}`;
    if (this.body.dataset.shown === shown) return;
    this.body.dataset.shown = shown;
    const given = JSON.stringify(tool.arguments, null, 2);
    const parts = [["Arguments", given === "{}" ? "" : given], ["Result", tool.result]];
    this.body.replaceChildren(
      ...parts
        .filter(([, text]) => text)
        .flatMap(([title, text]) => [h("h4", {}, title), h("pre", { tabindex: 0 }, text)]),
    );
  }
}

class FaultView {
  /** @param {Client} client */
  constructor(client) {
    this.client = client;
    this.text = h("p");
    this.actions = h("div.actions");
    this.element = h("article.fault", { role: "alert" }, icon("warn"), this.text, this.actions);
  }

  /** @param {Item} item */
  update({ value: message, isNewest }) {
    const isStopped = message.state === "interrupted";
    this.element.classList.toggle("stopped", isStopped);
    const words = message.content || (isStopped ? "Stopped." : "The turn failed.");
    setText(this.text, sentence(words));
    const canRepeat = Boolean(isNewest) && !this.client.conversation.isRunning;
    if (canRepeat !== Boolean(this.actions.firstChild)) {
      const again = button("Ask again", () => this.client.regenerate());
      this.actions.replaceChildren(...(canRepeat ? [again] : []));
    }
  }
}

class ApprovalView {
  /** @param {Client} client */
  constructor(client) {
    this.client = client;
    this.element = h("div");
  }

  /** @param {Item} item */
  update({ value: approval }) {
    if (!this.element.firstChild) this.element.append(approvalCard(this.client, approval));
  }
}

/** The models read only what is below this line. */
class ClearView {
  constructor() {
    this.element = h("p.clear-line", {}, h("span", {}, "Models are no longer shown what is above"));
  }

  update() {}
}

/** @type {Record<Item["kind"], any>} */
const VIEWS = {
  prompt: PromptView,
  answer: AnswerView,
  fault: FaultView,
  live: LiveView,
  unsent: UnsentView,
  approval: ApprovalView,
  later: LaterView,
  clear: ClearView,
};

/** @param {Client} client @param {Message} message */
function moreButton(client, message) {
  const erase = { icon: "erase", label: "Erase for good …", act: () => askToErase(client, message.seq) };
  return (
    !message.redacted_at &&
    iconButton("more", "More", (event) =>
      openMenu(/** @type {HTMLElement} */ (event.currentTarget), [erase]),
    )
  );
}

/** @param {string} label @param {() => void} onclick */
function button(label, onclick) {
  return h("button.button.small", { type: "button", onclick }, label);
}

/** @param {Event} event @param {string} text */
async function copy(event, text) {
  const pressed = /** @type {HTMLElement} */ (event.currentTarget);
  await navigator.clipboard.writeText(text);
  pressed.replaceChildren(icon("check"));
  setTimeout(() => pressed.replaceChildren(icon("copy")), 1_500);
}
