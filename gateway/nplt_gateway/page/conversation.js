/**
 * The conversation that is shown: its messages, and the turn that runs. No DOM and no I/O.
 *
 * Messages come from history pages and from events; each is known by its seq, so that it is never
 * held twice. Only a window of them is held: older and newer ones are loaded when they are needed.
 */

import { Cursor, codePoints } from "./cursor.js";
import * as code from "./frames.js";

export const MESSAGES_MAX = 240;

/**
 * @typedef {object} ToolCall
 * @property {string} tool_call_id
 * @property {string} tool_name
 * @property {any} arguments
 * @property {string} status pending, running, success, failed or skipped
 * @property {string} result
 * @property {number} [duration]
 */

/**
 * @typedef {object} Message
 * @property {number} seq
 * @property {string} role
 * @property {string} content
 * @property {string} [timestamp]
 * @property {ToolCall[]} tool_calls
 * @property {string} [turn_id]
 * @property {string} [model]
 * @property {string} [state]
 * @property {string} [stop_reason]
 * @property {string} [reasoning]
 * @property {number} [reasoning_size] how long the reasoning is that can be asked for
 * @property {string} [rejected]
 * @property {any} [usage]
 * @property {any} [fallback_from]
 * @property {any[]} [attachments]
 * @property {boolean} [truncated]
 * @property {number} [continues] the answer that a prompt asks to go on with
 * @property {{message: string}} [error] why it broke off; only in events
 * @property {boolean} [cleared]
 * @property {string} [hidden]
 * @property {string} [redacted_at]
 * @property {number} [size]
 * @property {any} [metadata]
 * @property {number} revision counts the changes of this message
 */

/**
 * A turn that runs: what its present call has given so far.
 * @typedef {object} LiveTurn
 * @property {string} turnId
 * @property {string} model
 * @property {number} startedAt
 * @property {number} call
 * @property {string} text
 * @property {string} reasoning
 * @property {string} note what happens, in words: retrying, waiting
 */

/**
 * @typedef {object} Approval
 * @property {string} approval_id
 * @property {string} turn_id
 * @property {string} tool_name
 * @property {any} arguments
 * @property {string} expires_at
 */

/**
 * A prompt that runs later.
 * @typedef {object} Later
 * @property {string} turn_id
 * @property {number} seq
 * @property {string} due_at
 * @property {boolean} [held] whether it waits, in a copy, for somebody to release it
 * @property {string} [content] the whole text
 * @property {string} [preview] the beginning of it
 */

export class Conversation {
  /**
   * @param {string} id
   * @param {boolean} isNew whether it is not stored yet
   */
  constructor(id, isNew) {
    this.id = id;
    this.isNew = isNew;
    this.name = "";
    this.model = "";
    this.cursor = new Cursor(id);
    this.isAttached = false;
    /** @type {Message[]} */
    this.messages = [];
    this.hasBefore = false;
    this.hasAfter = false;
    this.isLoaded = isNew;
    this.needsReload = false;
    /** @type {Set<number>} messages that came while a page was asked for, which may lack them */
    this.arrived = new Set();
    /** @type {"before" | "after" | null} */
    this.loading = null;
    /** @type {LiveTurn | null} */
    this.live = null;
    /** @type {string[]} turns that wait */
    this.queue = [];
    /** @type {Map<string, Approval>} */
    this.approvals = new Map();
    /** @type {Map<string, Later>} by turn */
    this.later = new Map();
    /** @type {any} what prompts ask for here, such as an effort */
    this.options = {};
    this.otherClients = 0;
    /** @type {{turnId: string, usage: any, seconds: number} | null} */
    this.lastTurn = null;
    /** @type {string} why the conversation can't be shown */
    this.problem = "";
    /** @type {Map<string, any>} the name and size of each file, by its id */
    this.files = new Map();
  }

  get headSeq() {
    return this.cursor.seq;
  }

  get isRunning() {
    return this.live !== null || this.queue.length > 0;
  }

  /** @returns {Message | undefined} */
  get lastPrompt() {
    return this.messages.findLast((message) => message.role === "user");
  }

  /**
   * Applies the reply to ATTACH. The entries after `after_seq`, if that was named, follow it.
   * @param {any} attached
   * @param {Record<string, unknown>} request
   */
  attached(attached, request) {
    const isResumed = request.after_seq !== undefined && !attached.resync;
    const old = this.cursor;
    this.id = attached.session_id;
    this.cursor = new Cursor(this.id, isResumed ? old.seq : attached.head_seq);
    const active = attached.active_turn;
    if (request.turn_id !== undefined && active?.turn_id === request.turn_id) {
      Object.assign(this.cursor, {
        turnId: old.turnId,
        call: old.call,
        textLength: old.textLength,
        reasoningLength: old.reasoningLength,
      });
    }
    this.name = attached.name;
    this.model = attached.model;
    this.isAttached = true;
    this.problem = "";
    this.queue = [...attached.queue];
    if (!active) this.live = null;
    else if (this.live?.turnId !== active.turn_id) this.begin(active.turn_id, active.model);
    this.approvals = new Map(
      attached.pending_approvals.map((/** @type {Approval} */ each) => [each.approval_id, each]),
    );
    this.later = new Map(
      (attached.later ?? []).map((/** @type {Later} */ each) => {
        const { content } = this.later.get(each.turn_id) ?? {};
        return [each.turn_id, { content, ...each }];
      }),
    );
    this.otherClients = Math.max(0, attached.clients.length - 1);
    if (attached.resync || (request.after_seq === undefined && attached.head_seq)) {
      this.needsReload = true;
    }
    if (attached.head_seq) this.isNew = false;
  }

  /**
   * @param {string} turnId
   * @param {string} model
   */
  begin(turnId, model) {
    this.queue = this.queue.filter((each) => each !== turnId);
    this.live = {
      turnId,
      model,
      startedAt: Date.now(),
      call: 0,
      text: "",
      reasoning: "",
      note: "",
    };
  }

  /**
   * Applies an event.
   * @param {number} type
   * @param {any} received
   * @returns {boolean} whether it changed anything
   */
  receive(type, received) {
    const event = this.cursor.take(type, received);
    if (event === null) return false;
    switch (type) {
      case code.ENTRY:
        this.addEntry(event);
        break;
      case code.TURN_STARTED:
        if (this.live?.turnId !== event.turn_id) this.begin(event.turn_id, event.model);
        break;
      case code.TEXT_DELTA:
        this.addText(event);
        break;
      case code.AGENT_THOUGHT:
        this.addThought(event);
        break;
      case code.TOOL_STARTED:
        this.updateTool(event.tool_call_id, { status: "running" });
        break;
      case code.TOOL_FINISHED:
        this.updateTool(event.tool_call_id, event);
        break;
      case code.TURN_FINISHED:
        this.finish(event);
        break;
      case code.APPROVAL_REQUEST:
        this.approvals.set(event.approval_id, event);
        break;
      case code.SESSION_EVENT:
        this.addSessionEvent(event);
        break;
      default:
        return false;
    }
    return true;
  }

  /** @param {any} event */
  addText(event) {
    const live = this.callOf(event);
    if (event.replay_from !== undefined) {
      live.text = [...live.text].slice(0, event.replay_from).join("");
    }
    live.text += event.text;
    live.note = "";
  }

  /** @param {any} event */
  addThought(event) {
    if (event.type === "reasoning") this.callOf(event).reasoning += event.text;
    else if (this.live?.turnId === event.turn_id && this.live) {
      if (event.type === "retrying") this.live.reasoning = "";
      if (["retrying", "waiting", "notice", "cut"].includes(event.type)) {
        this.live.note = event.content ?? "";
      }
    }
  }

  /**
   * @param {any} event
   * @returns {LiveTurn} the turn, in the call of the event
   */
  callOf(event) {
    if (this.live?.turnId !== event.turn_id) this.begin(event.turn_id, "");
    const live = /** @type {LiveTurn} */ (this.live);
    if (live.call !== (event.call ?? 0)) {
      Object.assign(live, { call: event.call ?? 0, text: "", reasoning: "" });
    }
    return live;
  }

  /** @param {any} event */
  addEntry({ entry, call }) {
    this.isNew = false;
    switch (entry.kind) {
      case "model_input":
        this.addPrompt(entry);
        break;
      case "model_output":
        this.addOutput(entry, call ?? 0);
        break;
      case "tool_results":
        for (const each of entry.tool_calls) this.updateTool(each.tool_call_id, each);
        break;
      case "fault":
        this.insert({ ...entry });
        this.leave(entry.turn_id);
        break;
      case "approval":
        if (entry.state !== "asked") this.approvals.delete(entry.approval_id);
        break;
      case "attachment":
        this.files.set(entry.file_id, entry);
        break;
      case "later_prompt":
        this.later.set(entry.turn_id, { ...entry, due_at: entry.not_before });
        break;
      case "later_change":
        this.changeLater(entry);
        break;
      case "rollback":
      case "clear":
        this.needsReload = true;
        break;
      default:
        break;
    }
  }

  /** @param {any} entry */
  addPrompt(entry) {
    this.later.delete(entry.turn_id);
    this.insert({
      ...entry,
      attachments: entry.attachments?.map(
        (/** @type {string} */ id) => this.files.get(id) ?? { file_id: id },
      ),
    });
    if (this.live?.turnId !== entry.turn_id && !this.queue.includes(entry.turn_id)) {
      this.queue.push(entry.turn_id);
    }
  }

  /** @param {any} entry @param {number} call */
  addOutput(entry, call) {
    const { provider, model } = entry.invocation ?? {};
    const live = this.live;
    const message = { ...entry, model: model && `${provider}/${model}` };
    if (live && live.turnId === entry.turn_id && live.call === call) {
      if (entry.truncated && codePoints(live.text) === entry.size) {
        Object.assign(message, { content: live.text, truncated: false });
      }
      Object.assign(live, { text: "", reasoning: "", call: live.call + 1 });
    }
    this.insert(message);
    if (this.endsTurn(entry)) this.leave(entry.turn_id);
  }

  /** @param {any} entry */
  changeLater({ turn_id: turnId, change }) {
    const later = this.later.get(turnId);
    if (change === "cancelled") this.later.delete(turnId);
    else if (later) this.later.set(turnId, { ...later, held: change === "held" });
  }

  /** @param {any} entry an output */
  endsTurn(entry) {
    return entry.state !== "completed" || !(entry.tool_calls?.length || entry.rejected);
  }

  /** @param {string} turnId */
  leave(turnId) {
    this.queue = this.queue.filter((each) => each !== turnId);
    if (this.live?.turnId === turnId) {
      const seconds = (Date.now() - this.live.startedAt) / 1000;
      this.lastTurn = { turnId, usage: null, seconds };
      this.live = null;
    }
    for (const [id, approval] of this.approvals) {
      if (approval.turn_id === turnId) this.approvals.delete(id);
    }
  }

  /** @param {any} event */
  finish(event) {
    this.leave(event.turn_id);
    this.later.delete(event.turn_id);
    if (this.lastTurn?.turnId === event.turn_id && this.lastTurn) this.lastTurn.usage = event.usage;
  }

  /** @param {any} event */
  addSessionEvent(event) {
    switch (event.event) {
      case "renamed":
        this.name = event.name;
        break;
      case "model":
        this.model = event.model;
        break;
      case "options":
        this.options = event.options ?? {};
        break;
      case "approval":
        this.approvals.delete(event.approval_id);
        break;
      case "presence":
        this.otherClients = Math.max(0, (event.count ?? event.clients.length) - 1);
        break;
      case "rolled_back":
        if (event.turns?.length) this.remove(event.turns);
        else this.needsReload = true;
        break;
      case "cleared":
      case "redacted":
      case "quarantined":
      case "released":
        this.needsReload = true;
        break;
      case "lagged":
        this.isAttached = false;
        break;
      case "deleted":
        this.isAttached = false;
        this.problem = "This conversation is in the trash.";
        break;
      default:
        break;
    }
  }

  /** @param {string[]} turnIds */
  remove(turnIds) {
    this.messages = this.messages.filter((each) => !turnIds.includes(each.turn_id ?? ""));
  }

  /**
   * Adds a message after the others of its turn, or at the end.
   * @param {any} added
   */
  insert(added) {
    if (this.hasAfter) return; // it will be loaded with its page
    const message = /** @type {Message} */ ({ tool_calls: [], revision: 0, ...added });
    this.arrived.add(message.seq);
    if (this.messages.some((each) => each.seq === message.seq)) return;
    const last = this.messages.findLastIndex((each) => each.turn_id === message.turn_id);
    const at = message.turn_id && last >= 0 ? last + 1 : this.messages.length;
    this.messages.splice(at, 0, message);
    if (this.messages.length > MESSAGES_MAX) this.cut("before");
  }

  /**
   * @param {string} id
   * @param {any} change
   */
  updateTool(id, change) {
    const message = this.messages.findLast((each) =>
      each.tool_calls.some((tool) => tool.tool_call_id === id),
    );
    const tool = message?.tool_calls.find((each) => each.tool_call_id === id);
    if (!message || !tool) return;
    for (const field of ["status", "result", "duration", "truncated", "size"]) {
      if (change[field] !== undefined) Object.assign(tool, { [field]: change[field] });
    }
    message.revision++;
  }

  /** A page is going to be asked for. */
  expectPage() {
    this.needsReload = false;
    this.arrived.clear();
  }

  /**
   * Replaces the window of messages by a page. Messages that came since it was asked for stay.
   * @param {any} page
   */
  showPage(page) {
    const newer = page.page.has_more_after
      ? []
      : this.messages.filter((each) => this.arrived.has(each.seq));
    const known = new Map(this.messages.map((each) => [each.seq, each]));
    this.messages = page.messages.map((/** @type {any} */ each) => this.merged(each, known));
    for (const each of newer) {
      if (!this.messages.some((held) => held.seq === each.seq)) this.messages.push(each);
    }
    this.hasBefore = page.page.has_more_before;
    this.hasAfter = page.page.has_more_after;
    this.name = page.name;
    this.isLoaded = true;
    this.endTurnsOf(page.messages);
  }

  /**
   * Turns that the page shows as ended no longer wait.
   * @param {any[]} messages
   */
  endTurnsOf(messages) {
    for (const each of messages) {
      const isAnswer = each.role === "assistant" && each.state && this.endsTurn(each);
      if (isAnswer) this.queue = this.queue.filter((turnId) => turnId !== each.turn_id);
    }
  }

  /**
   * A message that did not change stays the same object, so that it is not rendered again.
   * @param {any} message
   * @param {Map<number, Message>} known
   * @returns {Message}
   */
  merged(message, known) {
    const held = known.get(message.seq);
    if (!held) return { ...message, revision: 0 };
    const fields = ["content", "state", "cleared", "hidden", "redacted_at", "rejected", "truncated"];
    const old = /** @type {any} */ (held);
    const isSame = fields.every((field) => old[field] === message[field]);
    const statuses = (/** @type {Message} */ each) =>
      each.tool_calls.map((tool) => tool.status).join();
    if (isSame && statuses(held) === statuses(message)) return held;
    if (old.content.length > message.content.length && message.truncated) return held;
    return { reasoning: held.reasoning, ...message, revision: held.revision + 1 };
  }

  /**
   * Adds a page before or after the window.
   * @param {"before" | "after"} side
   * @param {any} page
   */
  addPage(side, page) {
    const held = new Set(this.messages.map((each) => each.seq));
    const added = page.messages
      .filter((/** @type {any} */ each) => !held.has(each.seq))
      .map((/** @type {any} */ each) => ({ ...each, revision: 0 }));
    if (side === "before") {
      this.messages = [...added, ...this.messages];
      this.hasBefore = page.page.has_more_before;
      if (this.messages.length > MESSAGES_MAX) this.cut("after");
    } else {
      this.messages = [...this.messages, ...added];
      this.hasAfter = page.page.has_more_after;
      if (this.messages.length > MESSAGES_MAX) this.cut("before");
    }
  }

  /** @param {"before" | "after"} side drops messages that are far from what is read */
  cut(side) {
    if (side === "before") {
      this.messages = this.messages.slice(-MESSAGES_MAX);
      this.hasBefore = true;
    } else {
      this.messages = this.messages.slice(0, MESSAGES_MAX);
      this.hasAfter = true;
    }
  }
}
