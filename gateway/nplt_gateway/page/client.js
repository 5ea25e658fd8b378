/**
 * The state of the page and everything that a person can do: the one writer of what is shown.
 *
 * Views read this object and call its methods; after each change `changed` tells them to render.
 * Events of the server pass through `received`, in their order.
 */

import { Conversation } from "./conversation.js";
import { Conversations } from "./conversations.js";
import { codePoints } from "./cursor.js";
import * as code from "./frames.js";
import { Outbox } from "./outbox.js";
import { ConnectionLost, Refused, Wire } from "./wire.js";

const PAGE_MESSAGES = 30;
const PAGE_BYTES = 400_000;
const ROWS = 50;
const REFRESH_EVERY = 20_000;
const SEEN_AFTER = 400;
const PIECE_BYTES = 48 * 1024;
const BUFFERED_BYTES = 512 * 1024;
const REASONING_BYTES = 900_000;
const IN_TRASH = "This conversation is in the trash. Restore it to go on.";

/** @typedef {"connecting" | "online" | "offline" | "logged out"} Phase */

/** @typedef {import("./wire.js").Listener} Listener */

/** @implements {Listener} */
export class Client {
  /**
   * @param {string} url
   * @param {() => void} changed is called after each change of the state
   * @param {Storage} storage
   */
  constructor(url, changed, storage) {
    this.changed = changed;
    this.wire = new Wire(url, this);
    this.list = new Conversations();
    this.outbox = new Outbox(storage);
    /** @type {Phase} */
    this.phase = "connecting";
    this.wasOnline = false;
    this.user = "";
    this.server = "";
    this.limits = /** @type {any} */ ({});
    /** @type {string[]} */
    this.models = [];
    /** @type {any} what is known of each model */
    this.facts = {};
    this.canSendLater = false;
    /** @type {Conversation} */
    this.conversation = new Conversation(newId(), true);
    /** @type {{text: string, isError: boolean, undo?: () => void} | null} */
    this.notice = null;
    /** @type {{sessionId: string, seq: number} | null} where the answer ends that is being replaced */
    this.replaced = null;
    this.knowsSeen = true;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.seenTimer = undefined;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.refreshTimer = undefined;
    this.reloading = false;
    /** @type {(turn: {state: string, sessionId: string}) => void} */
    this.turnFinished = () => {};
    /** @type {(approval: any) => void} */
    this.asked = () => {};
    this.searches = 0;
  }

  // The listener of the connection

  /** @param {any} welcome */
  welcomed(welcome) {
    this.phase = "online";
    this.wasOnline = true;
    this.user = welcome.user;
    this.server = welcome.server;
    this.limits = welcome.limits;
    this.models = welcome.models;
    this.canSendLater = Boolean(welcome.features?.includes("later"));
    if (!this.conversation.model) this.conversation.model = welcome.model;
    this.attach().then(() => this.flush());
    this.watch();
    this.changed();
  }

  lost() {
    if (this.phase === "logged out") return;
    this.phase = this.wasOnline ? "offline" : "connecting";
    this.conversation.isAttached = false;
    for (const each of this.outbox.prompts) each.isSending = false;
    this.changed();
  }

  loggedOut() {
    this.phase = "logged out";
    this.changed();
  }

  /** @param {number} type @param {any} event */
  received(type, event) {
    if (type === code.SESSION_CHANGED) {
      this.rowChanged(event);
    } else if (type === code.SESSION_EVENT && event.event === "lagged" && event.watch) {
      this.watch();
    } else if (this.conversation.receive(type, event)) {
      if (type === code.ENTRY) this.settle(event.entry);
      if (type === code.TURN_FINISHED) {
        this.turnFinished({ state: event.state, sessionId: event.session_id });
        this.offerReplaced(event);
        if (!this.list.isWatching) this.loadList();
      }
      if (type === code.APPROVAL_REQUEST) this.asked(event);
      if (event.event === "lagged") this.attach();
      if (this.conversation.needsReload) this.reload();
      this.seen();
    } else {
      return;
    }
    this.changed();
  }

  /** @param {any} event */
  rowChanged(event) {
    const held = this.list.rows.get(event.session_id);
    this.list.changed(event);
    const row = event.row;
    if (!row || event.session_id === this.conversation.id) return;
    if (row.state === "asking" && held?.state !== "asking") this.asked(row);
    else if (held?.state === "running" && row.state !== "running" && row.unread) {
      this.turnFinished({ state: "completed", sessionId: row.session_id });
    }
  }

  // Requests

  /**
   * Sends a request for a person: a failure becomes a notice.
   * @param {number} type
   * @param {Record<string, unknown>} fields
   * @returns {Promise<any>} the reply, or `null`
   */
  async ask(type, fields) {
    try {
      return await this.wire.request(type, fields);
    } catch (error) {
      this.fail(error);
      return null;
    }
  }

  /** @param {unknown} error */
  fail(error) {
    if (error instanceof ConnectionLost) {
      this.say("There is no connection to the server. Try again when it is back.", true);
    } else if (error instanceof Refused) {
      this.say(sentence(error.message), true);
    } else {
      console.error(error);
      this.say(String(error), true);
    }
  }

  /** @param {string} text @param {boolean} isError @param {() => void} [undo] */
  say(text, isError = false, undo) {
    this.notice = { text, isError, undo };
    this.changed();
  }

  wake() {
    this.wire.wake();
    this.seen();
  }

  // The open conversation

  /** Attaches to the conversation that is shown, from where the page's copy ends. */
  async attach() {
    const shown = this.conversation;
    /** @type {Record<string, unknown>} */
    let fields = shown.cursor.attach();
    if (shown.isNew) fields = { session_id: shown.id, create: true, after_seq: 0 };
    else if (!shown.isLoaded) fields = { session_id: shown.id };
    const oldId = shown.id;
    try {
      await this.wire.request(code.ATTACH, fields, (reply) => {
        if (this.conversation !== shown) return;
        shown.attached(reply, fields);
        if (shown.id !== oldId) this.outbox.rename(oldId, shown.id);
        if (shown.needsReload || !shown.isLoaded) this.reload();
        for (const each of shown.approvals.values()) this.asked(each);
      });
      this.readLater(shown);
      this.readOptions(shown);
      this.seen();
    } catch (error) {
      if (!(error instanceof Refused) || this.conversation !== shown) return;
      if (error.retryable) setTimeout(() => this.phase === "online" && this.attach(), 1_000);
      else if (this.isInTrash(shown.id)) shown.problem = IN_TRASH;
      else if (error.code === "not_found") shown.problem = "This conversation is not here (any more).";
      else shown.problem = sentence(error.message);
    }
    this.changed();
  }

  /** Loads the newest page again, because the record changed before its end. */
  async reload() {
    if (this.reloading) return;
    this.reloading = true;
    const shown = this.conversation;
    const limit = Math.min(200, Math.max(PAGE_MESSAGES, shown.messages.length));
    try {
      do {
        shown.expectPage();
        const page = await this.page({ limit: shown.isLoaded ? limit : PAGE_MESSAGES });
        if (this.conversation !== shown) break;
        shown.showPage(page);
      } while (shown.needsReload);
      this.dropStored();
    } catch (error) {
      shown.needsReload = true; // attaching again loads it
      if (!(error instanceof ConnectionLost)) this.fail(error);
    } finally {
      this.reloading = false;
      this.changed();
    }
    if (this.conversation !== shown && this.conversation.needsReload) this.reload();
  }

  /**
   * @param {Record<string, unknown>} fields
   * @returns {Promise<any>} a page of the history, with the system's messages about failed turns
   */
  async page(fields, sessionId = this.conversation.id) {
    const page = await this.wire.request(code.HISTORY_REQUEST, {
      session_id: sessionId,
      max_bytes: PAGE_BYTES,
      roles: ["user", "assistant", "system"],
      ...fields,
    });
    page.messages = page.messages.filter(
      (/** @type {any} */ each) => each.role !== "system" || each.state,
    );
    return page;
  }

  /** @param {"before" | "after"} side */
  async loadMore(side) {
    const shown = this.conversation;
    const has = side === "before" ? shown.hasBefore : shown.hasAfter;
    const edge = side === "before" ? shown.messages[0] : shown.messages.at(-1);
    if (!has || shown.loading || !edge || this.phase !== "online") return;
    shown.loading = side;
    try {
      const page = await this.page({ [side]: edge.seq, limit: PAGE_MESSAGES });
      shown.addPage(side, page);
    } catch (error) {
      if (!(error instanceof ConnectionLost)) this.fail(error);
    } finally {
      shown.loading = null;
      this.changed();
    }
  }

  /** Shows the end of the conversation after older parts were read. */
  async showEnd() {
    const shown = this.conversation;
    if (!shown.hasAfter) return;
    shown.messages = [];
    shown.needsReload = true;
    await this.reload();
  }

  /** @param {string} sessionId @param {number} [seq] a message to begin at */
  async open(sessionId, seq) {
    const isShown = sessionId === this.conversation.id && !this.conversation.problem;
    if (isShown && !seq) return;
    if (!isShown) {
      this.conversation = new Conversation(sessionId, false);
      const row = this.list.rows.get(sessionId);
      if (row) Object.assign(this.conversation, { name: row.name, model: row.model });
      this.changed();
      if (this.phase === "online") await this.attach();
    }
    if (seq) await this.showAround(seq);
  }

  /** @param {number} seq */
  async showAround(seq) {
    const shown = this.conversation;
    shown.expectPage();
    const page = await this.page({ around: seq, limit: PAGE_MESSAGES }).catch(() => null);
    if (page && this.conversation === shown) shown.showPage(page);
    this.changed();
  }

  openNew() {
    if (this.conversation.isNew && !this.conversation.messages.length) return;
    const model = this.conversation.model;
    this.conversation = new Conversation(newId(), true);
    this.conversation.model = model;
    this.changed();
    if (this.phase === "online") this.attach();
  }

  /** Tells the server what was read, once the page has shown it for a moment. */
  seen() {
    clearTimeout(this.seenTimer);
    const shown = this.conversation;
    if (!this.knowsSeen || document.hidden || !shown.headSeq || shown.hasAfter) return;
    this.seenTimer = setTimeout(async () => {
      if (this.phase !== "online" || document.hidden || this.conversation !== shown) return;
      const row = this.list.rows.get(shown.id);
      if (row && row.unread === 0 && row.state !== "failed") return;
      try {
        await this.wire.request(code.SEEN, { session_id: shown.id, seq: shown.headSeq });
      } catch (error) {
        if (error instanceof Refused && error.code === "malformed") this.knowsSeen = false;
        if (error instanceof Refused && error.code === "unsupported") this.knowsSeen = false;
      }
    }, SEEN_AFTER);
  }

  // Prompts

  /**
   * @param {string} text
   * @param {any[]} attachments
   * @param {{replace_from?: number, not_before?: string, continue?: boolean}} [how] instead of which
   *   message, when, or to go on with the last answer
   */
  prompt(text, attachments = [], how = {}) {
    const { id, headSeq } = this.conversation;
    this.replaced = how.replace_from === undefined ? null : { sessionId: id, seq: headSeq };
    this.outbox.add({
      message_id: newId(),
      session_id: this.conversation.id,
      create: this.conversation.isNew,
      text,
      attachments,
      ...how,
    });
    this.flush();
    this.changed();
  }

  /** Sends the prompts that the server has not confirmed, in their order. */
  async flush() {
    for (const prompt of [...this.outbox.prompts]) {
      if (this.phase !== "online" || prompt.isSending) continue;
      if (prompt.seq !== undefined || prompt.problem) continue;
      await this.send(prompt);
    }
  }

  /** @param {import("./outbox.js").Unsent} prompt */
  async send(prompt) {
    const shown = this.conversation;
    const isHere = shown.id === prompt.session_id;
    prompt.isSending = true;
    try {
      const fields = {
        text: prompt.text,
        message_id: prompt.message_id,
        session_id: prompt.session_id,
        create: prompt.create,
        attachments: prompt.attachments.map((each) => each.file_id),
        replace_from: prompt.replace_from,
        not_before: prompt.not_before,
        continue: prompt.continue,
      };
      const receipt = await this.wire.request(code.PROMPT, fields, (reply) => {
        this.outbox.confirm(prompt, reply.seq);
        if (isHere) shown.isNew = false;
      });
      const isElsewhere = receipt.duplicate || receipt.state === "later" || !isHere;
      if (isElsewhere) this.outbox.remove(prompt);
    } catch (error) {
      prompt.isSending = false;
      if (error instanceof Refused) {
        if (error.retryable) setTimeout(() => this.flush(), 1_000 * (error.retryAfter ?? 1));
        else prompt.problem = this.isInTrash(prompt.session_id) ? IN_TRASH : sentence(error.message);
        this.outbox.save();
      }
    }
    this.dropStored();
    this.changed();
  }

  /** @param {any} entry an entry that came: its prompt is no longer shown as unsent */
  settle(entry) {
    for (const prompt of this.outbox.prompts) {
      const isPrompt = entry.kind === "model_input" || entry.kind === "later_prompt";
      if (isPrompt && entry.message_id === prompt.message_id) this.outbox.remove(prompt);
    }
  }

  dropStored() {
    for (const prompt of this.outbox.of(this.conversation.id)) {
      const isStored = this.conversation.messages.some((each) => each.seq === prompt.seq);
      if (prompt.seq !== undefined && isStored) this.outbox.remove(prompt);
    }
  }

  /** @param {import("./outbox.js").Unsent} prompt */
  retry(prompt) {
    delete prompt.problem;
    this.flush();
    this.changed();
  }

  cancel() {
    const turnId = this.conversation.live?.turnId ?? this.conversation.queue[0];
    if (turnId) this.ask(code.CANCEL, { turn_id: turnId });
  }

  /** @param {string} approvalId @param {"allow" | "deny"} decision @param {boolean} remember */
  async decide(approvalId, decision, remember = false) {
    const reply = await this.ask(code.APPROVAL, { approval_id: approvalId, decision, remember });
    if (reply) this.conversation.approvals.delete(approvalId);
    this.changed();
  }

  /** Asks the last prompt again. What goes on with an answer is taken back first: the answer before
   * it is then the last one. */
  async regenerate() {
    const prompt = this.conversation.lastPrompt;
    if (!prompt) return;
    if (prompt.continues) {
      if (await this.ask(code.ROLLBACK, { turns: [prompt.turn_id] })) this.goOn();
      return;
    }
    this.prompt(prompt.content, prompt.attachments ?? [], { replace_from: prompt.seq });
  }

  /**
   * Offers to bring back what an answer has replaced.
   * @param {any} finished
   */
  offerReplaced({ session_id: sessionId, state }) {
    const old = this.replaced;
    if (!old || old.sessionId !== sessionId) return;
    this.replaced = null;
    const undo = () => this.ask(code.ROLLBACK, { to_seq: old.seq, session_id: sessionId });
    const words = state === "completed" ? "The earlier answer was replaced." : "There is no new answer.";
    this.say(words, false, undo);
  }

  /** Has the model go on with its last answer, which was cut. */
  goOn() {
    this.prompt("", [], { continue: true });
  }

  /** Takes the last turn back. */
  async undo() {
    const turnId = this.conversation.lastPrompt?.turn_id;
    if (!turnId) return;
    const sessionId = this.conversation.id;
    const reply = await this.ask(code.ROLLBACK, { turns: [turnId] });
    const redo = () => this.ask(code.ROLLBACK, { redo: true, session_id: sessionId });
    if (reply) this.say("The last turn was taken back.", false, redo);
  }

  /** From here on, models are no longer shown what was said before. */
  async clear() {
    const shown = this.conversation;
    const reply = await this.ask(code.CLEAR_REQUEST, {});
    if (!reply) return;
    const seq = reply.cleared_through_seq;
    const undo = () => {
      const isLast = (shown.messages.at(-1)?.seq ?? 0) <= seq && !shown.isRunning;
      if (isLast) this.ask(code.ROLLBACK, { to_seq: seq, session_id: shown.id });
      else this.say("There are newer messages, so this can't be undone any more.", true);
    };
    this.say("Models are no longer shown what is above.", false, undo);
  }

  /**
   * Erases a message for good.
   * @param {number} seq
   * @returns {Promise<any>} where else the text was found, or `null`
   */
  erase(seq, sessionId = this.conversation.id) {
    return this.ask(code.REDACT, { seq, session_id: sessionId });
  }

  // Prompts for later

  /**
   * Reads the texts of the prompts for later; the reply to ATTACH has only their times.
   * @param {Conversation} shown
   */
  async readLater(shown) {
    for (const each of shown.later.values()) {
      if (each.content !== undefined) continue;
      try {
        const part = await this.wire.request(code.HISTORY_REQUEST, {
          session_id: shown.id,
          seq: each.seq,
          offset: 0,
        });
        each.content = part.content;
      } catch (error) {
        if (!(error instanceof Refused)) return; // attaching again reads it
        each.content = "";
      }
      this.changed();
    }
  }

  /** @param {string} turnId */
  async cancelLater(turnId) {
    const reply = await this.ask(code.CANCEL, { turn_id: turnId });
    if (reply) this.conversation.later.delete(turnId);
    this.changed();
  }

  /** In a copy, prompts for later wait until somebody lets them run there too. */
  async releaseLater() {
    const shown = this.conversation;
    const row = await this.ask(code.SESSION_UPDATE, { session_id: shown.id, release: true });
    if (row) for (const each of shown.later.values()) each.held = undefined;
    this.changed();
  }

  // The list

  async watch() {
    this.loadList();
    try {
      const watched = await this.wire.request(code.WATCH, { watch: true });
      this.list.isWatching = watched.watching;
    } catch (error) {
      if (error instanceof Refused) this.list.isWatching = false;
    }
    clearTimeout(this.refreshTimer);
    if (!this.list.isWatching) this.refresh();
  }

  /** Reads the list again from time to time, where the server does not report its changes. */
  refresh() {
    this.refreshTimer = setTimeout(() => {
      if (this.phase !== "online" || this.list.isWatching) return;
      if (!document.hidden) this.loadList();
      this.refresh();
    }, REFRESH_EVERY);
  }

  async loadList(more = false) {
    const list = this.list;
    if (list.isLoading) return;
    list.isLoading = true;
    const shelf = list.shelf;
    try {
      const page = await this.wire.request(code.SESSION_LIST, {
        limit: ROWS,
        cursor: more ? list.nextCursor : undefined,
        archived: shelf === "archived",
        trash: shelf === "trash",
      });
      if (list.shelf === shelf) list.addPage(page, !more);
    } catch (error) {
      if (error instanceof Refused) this.fail(error);
    } finally {
      list.isLoading = false;
    }
    if (list.shelf !== shelf) this.loadList();
    this.changed();
  }

  /** @param {import("./conversations.js").Shelf} shelf */
  showShelf(shelf) {
    this.list.show(shelf);
    this.loadList();
    this.changed();
  }

  /** @param {string} query */
  async search(query) {
    const number = ++this.searches;
    this.list.query = query;
    if (!query.trim()) {
      this.list.hits = null;
      this.changed();
      return;
    }
    const found = await this.ask(code.SEARCH, { query, limit: 40 });
    if (found && number === this.searches) {
      this.list.hits = found.hits;
      this.changed();
    }
  }

  /** @param {string} id @param {Record<string, unknown>} change */
  async update(id, change) {
    const row = await this.ask(code.SESSION_UPDATE, { session_id: id, ...change });
    if (!row) return;
    this.list.update(row);
    if (id === this.conversation.id && change.name) this.conversation.name = row.name;
    if ("archived" in change) {
      const undo = () => this.update(id, { archived: !change.archived });
      this.say(change.archived ? "Moved to the archive." : "Moved out of the archive.", false, undo);
    }
    if ("pinned" in change) this.say(change.pinned ? "Pinned to the top of the list." : "Not pinned any more.");
    this.changed();
  }

  /**
   * @param {string} id
   * @returns {Promise<string | null>} the system message, "" if there is none
   */
  async readSystemMessage(id) {
    for (let before; ; ) {
      const fields = { session_id: id, roles: ["system"], limit: 200, before };
      const reply = await this.ask(code.HISTORY_REQUEST, fields);
      if (!reply) return null;
      // The others say why turns failed.
      const found = reply.messages.findLast((/** @type {any} */ each) => !each.state);
      if (found?.truncated) await this.readWhole(found, id);
      if (found || !reply.page.has_more_before) return found?.content ?? "";
      before = reply.page.before;
    }
  }

  /** @param {string} id */
  async remove(id) {
    const reply = await this.ask(code.SESSION_DELETE, { session_id: id });
    if (!reply) return;
    this.list.remove(id);
    if (id === this.conversation.id) this.openNew();
    this.say("Moved to the trash.", false, () => this.restore(id));
  }

  /** @param {string} id */
  async restore(id) {
    const row = await this.ask(code.SESSION_UPDATE, { session_id: id, deleted: false });
    if (!row) return;
    if (this.list.shelf === "trash") this.list.rows.delete(id);
    else this.list.update(row);
    if (id === this.conversation.id) {
      if (this.list.shelf === "trash") this.showShelf("open");
      await this.open(id);
    }
    this.changed();
  }

  /** @param {string} id */
  isInTrash(id) {
    return this.list.shelf === "trash" && this.list.rows.has(id);
  }

  /** @param {number} [seq] */
  async fork(seq) {
    const fields = { session_id: this.conversation.id, at_seq: seq };
    const made = await this.ask(code.SESSION_FORK, fields);
    if (made) await this.open(made.session_id);
    if (made) this.say("This is a copy. The original is unchanged.");
    if (!this.list.isWatching) this.loadList();
  }

  // Models and tokens

  async loadModels() {
    const choice = await this.ask(code.MODEL_SWITCH, { listed: true });
    if (!choice) return;
    this.models = choice.models;
    this.facts = choice.facts ?? {};
    this.conversation.options = choice.options ?? {};
    this.changed();
  }

  /** @param {Conversation} shown what its prompts ask for, which the reply to ATTACH does not say */
  async readOptions(shown) {
    if (shown.isNew) return;
    try {
      const choice = await this.wire.request(code.MODEL_SWITCH, {});
      if (this.conversation === shown) shown.options = choice.options ?? {};
      this.changed();
    } catch (error) {
      if (!(error instanceof ConnectionLost || error instanceof Refused)) throw error;
    }
  }

  /** @param {string | null} effort how much the model should think; `null`: as it does by itself */
  async chooseEffort(effort) {
    const choice = await this.ask(code.MODEL_SWITCH, { options: { effort } });
    if (choice) this.conversation.options = choice.options ?? {};
    this.changed();
  }

  /** @param {string} model */
  async chooseModel(model) {
    const choice = await this.ask(code.MODEL_SWITCH, { model });
    if (choice) this.conversation.model = choice.model;
    this.changed();
  }

  usage() {
    return this.ask(code.USAGE, { session_id: this.conversation.id });
  }

  // Files and long messages

  /**
   * @param {File} file
   * @param {(share: number) => void} progress
   * @returns {Promise<any>} the reply, with the `file_id`
   */
  async upload(file, progress) {
    const described = { filename: file.name || "file", size: file.size, content_type: file.type };
    const { seq, reply } = this.wire.requestBytes(
      code.FILE_METADATA,
      code.encodeJson({ ...described, content_type: file.type || undefined }),
    );
    let isOver = false;
    reply.then(
      () => (isOver = true),
      () => (isOver = true),
    );
    for (let at = 0; at < file.size && !isOver; at += PIECE_BYTES) {
      const piece = await file.slice(at, at + PIECE_BYTES).arrayBuffer();
      while ((this.wire.socket?.bufferedAmount ?? 0) > BUFFERED_BYTES) await pause(20);
      this.wire.send(code.FILE_DATA, seq, new Uint8Array(piece));
      progress(Math.min(1, (at + PIECE_BYTES) / file.size));
    }
    return { ...(await reply), filename: described.filename };
  }

  /**
   * @param {string} fileId
   * @returns {Promise<Blob>}
   */
  async download(fileId, sessionId = this.conversation.id) {
    /** @type {BlobPart[]} */
    const parts = [];
    for (let offset = 0; ; ) {
      const fields = { file_id: fileId, session_id: sessionId, offset };
      const { reply } = this.wire.requestBytes(code.FILE_GET, code.encodeJson(fields), {
        isRaw: true,
      });
      const piece = /** @type {Uint8Array} */ (await reply);
      if (!piece.length) return new Blob(parts);
      parts.push(/** @type {any} */ (piece));
      offset += piece.length;
    }
  }

  /**
   * Reads the rest of a message that was sent cut.
   * @param {import("./conversation.js").Message} message
   */
  async readWhole(message, sessionId = this.conversation.id) {
    let text = "";
    for (let offset = 0; ; ) {
      const part = await this.wire.request(code.HISTORY_REQUEST, {
        session_id: sessionId,
        seq: message.seq,
        offset,
      });
      text += part.content;
      offset += codePoints(part.content);
      if (!part.content || offset >= part.size) break;
    }
    message.content = text;
    message.truncated = false;
    message.revision++;
    this.changed();
  }

  /**
   * Reads the thoughts before an answer. Messages only say how long they are.
   * @param {import("./conversation.js").Message} message
   */
  async readReasoning(message) {
    const page = await this.wire.request(code.HISTORY_REQUEST, {
      session_id: this.conversation.id,
      view: "entries",
      after: message.seq - 1,
      limit: 1,
      max_bytes: REASONING_BYTES,
    });
    message.reasoning = page.messages[0]?.reasoning || "(erased)";
    message.revision++;
    this.changed();
  }

  /**
   * Reads all messages of a conversation, page by page.
   * @param {string} sessionId
   * @returns {Promise<{name: string, messages: any[]}>}
   */
  async readAll(sessionId) {
    const messages = [];
    for (let after = 0; ; ) {
      const page = await this.page({ after, limit: 200 }, sessionId);
      for (const each of page.messages) {
        if (each.truncated) await this.readWhole(each, sessionId);
        messages.push(each);
      }
      if (!page.page.has_more_after) return { name: page.name, messages };
      after = page.page.after;
    }
  }
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {string} text which may begin with a small letter, and perhaps with the name of a model */
export function sentence(text) {
  const first = text.replace(/^[a-z]+(?=[ ,:.]|$)/, (word) => word[0].toUpperCase() + word.slice(1));
  return /[.!?…]$/.test(first) ? first : `${first}.`;
}

/** @param {number} milliseconds */
function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
