/**
 * The page: builds the views, renders them after each change, and handles keys, addresses and the
 * moments at which the page wakes up.
 */

import { Client } from "./client.js";
import { Composer } from "./composer.js";
import { stateWords } from "./conversations.js";
import { askName, chooseModel, editSystemMessage, openMenu, showSettings, showUsage } from "./dialogs.js";
import { h, iconButton, setText, show } from "./dom.js";
import { exportConversation } from "./export.js";
import { askTime } from "./later.js";
import { logOut, loginView, useCode, whoAmI } from "./login.js";
import { renderer } from "./markdown.js";
import { Announcer, Notifier } from "./notify.js";
import { Sidebar } from "./sidebar.js";
import { Transcript } from "./transcript.js";

const NOTICE_SECONDS = 6;
const ERROR_SECONDS = 12;
const UNDO_SECONDS = 30;
const REVEAL_MAX = 500;

class Page {
  constructor() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    this.client = new Client(`${scheme}//${location.host}/ws`, () => this.changed(), localStorage);
    const { client } = this;
    this.isWaiting = false;
    this.transcript = new Transcript(client);
    this.composer = new Composer(client, () => chooseModel(client), askTime);
    this.transcript.onedited = () => this.focusPrompt();
    this.composer.onsent = () => {
      this.transcript.isAtEnd = true;
      client.showEnd();
    };
    this.notifier = new Notifier(client, (id) => this.open(id));
    this.announcer = new Announcer();
    this.sidebar = new Sidebar(client, {
      open: (id, seq) => this.open(id, seq),
      openNew: () => this.openNew(),
      hide: () => {
        this.toggleList();
        this.menuButton.focus();
      },
      settings: () => showSettings(client, this.notifier, logOut),
      rename: (row) =>
        askName("Rename", row.name, (name) => client.update(row.session_id, { name })),
    });
    this.menuButton = iconButton("menu", "Conversations", () => this.toggleList(), ".menu-button");
    this.title = h("h1.title");
    this.status = h("div.status", { role: "status", hidden: true });
    this.statusText = h("span");
    const retry = h("button.button.small", { type: "button", onclick: () => client.wake() }, "Try now");
    this.status.append(this.statusText, retry);
    this.notice = h("div.notice", { role: "status", hidden: true });
    this.people = h("span.people");
    this.main = h(
      "main",
      {},
      h(
        "header.bar",
        {},
        this.menuButton,
        this.title,
        this.people,
        iconButton("edit", "New conversation", () => this.openNew(), ".new"),
        iconButton("more", "What can be done", (event) =>
          this.openMenu(/** @type {HTMLElement} */ (event.currentTarget)),
        ),
      ),
      this.status,
      this.transcript.element,
      h("div.to-end-frame", {}, this.transcript.endButton),
      this.composer.element,
    );
    const scrim = h("div.scrim", { onclick: () => this.closeList() });
    document.body.append(this.sidebar.element, scrim, this.main, this.notice, this.announcer.element);
    this.shownNotice = /** @type {any} */ (null);
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.noticeTimer = undefined;
    this.revealedId = "";
    this.wasHiddenWhileRunning = false;
    client.turnFinished = (turn) => this.turnFinished(turn);
    client.asked = (asked) => this.asked(asked);
  }

  start() {
    this.listen();
    this.route();
    this.client.wire.connect();
    this.changed();
    this.focusPrompt();
  }

  /** Not with a finger alone, because that would bring up the keyboard. */
  focusPrompt() {
    if (matchMedia("(hover: hover)").matches) this.composer.area.focus();
  }

  // Rendering

  /** Renders once per frame, or without frames while the page is hidden. */
  changed() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    const render = () => {
      if (!this.isWaiting) return;
      this.isWaiting = false;
      this.render();
    };
    if (document.hidden) setTimeout(render, 50);
    else requestAnimationFrame(render);
  }

  render() {
    const { client } = this;
    if (client.phase === "logged out") {
      location.reload();
      return;
    }
    const { conversation } = client;
    const name = client.list.rows.get(conversation.id)?.name || conversation.name;
    setText(this.title, conversation.isNew ? "New conversation" : name);
    setText(this.people, conversation.otherClients ? "open elsewhere" : "");
    this.people.title = `Other windows and terminals in this conversation: ${conversation.otherClients}`;
    const elsewhere = client.list.recent.find((row) => row.session_id !== conversation.id);
    const news = elsewhere && elsewhere.state !== "running" ? stateWords(elsewhere) : "";
    this.menuButton.classList.toggle("marked", news !== "");
    this.menuButton.title = news ? `Conversations: one ${news}` : "Conversations";
    this.sidebar.render();
    this.transcript.render();
    this.composer.render();
    this.notifier.render();
    this.announcer.render(conversation);
    this.main.classList.toggle("is-empty", this.transcript.isEmpty);
    this.renderStatus();
    this.renderNotice();
    this.reveal();
    this.keepAddress();
  }

  /** Shows a conversation once its first messages are rendered, so that they do not flicker. */
  reveal() {
    const { conversation } = this.client;
    if (this.revealedId === conversation.id) return;
    const { element } = this.transcript;
    element.classList.add("hidden");
    if (!conversation.isLoaded && !conversation.problem) return;
    this.revealedId = conversation.id;
    const began = performance.now();
    const wait = () => {
      if (!renderer.isIdle && performance.now() - began < REVEAL_MAX) setTimeout(wait, 20);
      else {
        element.classList.remove("hidden");
        this.transcript.settle();
      }
    };
    setTimeout(wait, 0);
  }

  renderStatus() {
    const { phase, wire } = this.client;
    const isLost = phase === "offline" || (phase === "connecting" && wire.retryAt > 0);
    const isShown = isLost || !navigator.onLine;
    show(this.status, isShown);
    if (!isShown) return;
    const words = navigator.onLine
      ? "The server can't be reached. This page tries again by itself; what you write is kept."
      : "There is no network. What you write is kept.";
    setText(this.statusText, words);
  }

  renderNotice() {
    const { notice } = this.client;
    if (notice === this.shownNotice) return;
    this.shownNotice = notice;
    clearTimeout(this.noticeTimer);
    show(this.notice, notice !== null);
    if (!notice) return;
    const close = () => {
      this.client.notice = null;
      this.changed();
    };
    const undo = () => {
      notice.undo?.();
      close();
    };
    this.notice.classList.toggle("error", notice.isError);
    this.notice.replaceChildren(
      h("span", {}, notice.text),
      ...(notice.undo ? [h("button.button.small", { type: "button", onclick: undo }, "Undo")] : []),
      iconButton("close", "Close", close),
    );
    const seconds = notice.undo ? UNDO_SECONDS : notice.isError ? ERROR_SECONDS : NOTICE_SECONDS;
    this.noticeTimer = setTimeout(close, seconds * 1000);
  }

  // Addresses

  /** Opens the conversation that the address names. */
  route() {
    const [, id, seq] = /^#\/c\/([^/]+)(?:\/(\d+))?$/.exec(location.hash) ?? [];
    if (id) this.open(decodeURIComponent(id), Number(seq) || undefined);
    else if (!location.hash && !this.client.conversation.isNew) this.openNew();
  }

  keepAddress() {
    const { conversation } = this.client;
    const hash = conversation.isNew ? "" : `#/c/${conversation.id}`;
    if (location.hash.replace(/\/\d+$/, "") === hash || (!hash && !location.hash)) return;
    history.replaceState(null, "", hash || "/");
  }

  /** @param {string} id @param {number} [seq] */
  async open(id, seq) {
    this.closeList();
    if (id !== this.client.conversation.id) history.pushState(null, "", `#/c/${id}`);
    this.focusPrompt();
    await this.client.open(id, seq);
    if (seq) requestAnimationFrame(() => requestAnimationFrame(() => this.transcript.showMessage(seq)));
  }

  openNew() {
    this.closeList();
    if (!this.client.conversation.isNew) history.pushState(null, "", "/");
    this.client.openNew();
    this.composer.area.focus();
  }

  // The list on a small screen

  toggleList() {
    const isWide = matchMedia("(min-width: 900px)").matches;
    document.body.classList.toggle(isWide ? "list-closed" : "list-open");
  }

  closeList() {
    document.body.classList.remove("list-open");
  }

  // Menus

  /** @param {HTMLElement} button */
  openMenu(button) {
    const { client } = this;
    const { id, name, isNew } = client.conversation;
    const row = client.list.rows.get(id);
    if (isNew || client.conversation.problem) {
      const isInTrash = !isNew && client.isInTrash(id);
      openMenu(button, [
        isInTrash && { icon: "undo", label: "Restore", act: () => client.restore(id) },
        { icon: "gear", label: "Settings", act: () => showSettings(client, this.notifier, logOut) },
      ]);
      return;
    }
    openMenu(button, [
      { icon: "edit", label: "Rename", act: () => askName("Rename", name, (each) => client.update(id, { name: each })) },
      {
        icon: "pin",
        label: row?.pinned ? "Unpin" : "Pin",
        act: () => client.update(id, { pinned: !row?.pinned }),
      },
      { icon: "fork", label: "Continue in a copy", act: () => client.fork() },
      { icon: "undo", label: "Take the last turn back", act: () => client.undo() },
      { icon: "clear", label: "Let models forget the above", act: () => client.clear() },
      { icon: "system", label: "System message", act: () => editSystemMessage(client) },
      { icon: "chart", label: "Tokens and cost", act: () => showUsage(client) },
      { icon: "download", label: "Export as Markdown", act: () => exportConversation(client, id, "md") },
      { icon: "download", label: "Export as JSON", act: () => exportConversation(client, id, "json") },
      {
        icon: "archive",
        label: row?.archived ? "Move out of the archive" : "Archive",
        act: () => client.update(id, { archived: !row?.archived }),
      },
      { icon: "trash", label: "Move to the trash", act: () => client.remove(id) },
    ]);
  }

  // Keys, and waking up

  listen() {
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("popstate", () => this.route());
    addEventListener("hashchange", () => this.route());
    const wake = () => {
      if (document.hidden) this.wasHiddenWhileRunning ||= this.client.conversation.isRunning;
      else {
        this.client.wake();
        this.offerNotifications();
      }
      this.changed();
    };
    document.addEventListener("visibilitychange", wake);
    addEventListener("online", wake);
    addEventListener("offline", () => this.changed());
    addEventListener("pageshow", wake);
    addEventListener("focus", () => this.client.wake());
    document.addEventListener("resume", wake);
    const { main } = this;
    main.addEventListener("dragover", (/** @type {DragEvent} */ event) => {
      if (event.dataTransfer?.types.includes("Files")) {
        event.preventDefault();
        main.classList.add("drop");
      }
    });
    main.addEventListener("dragleave", () => main.classList.remove("drop"));
    main.addEventListener("drop", (/** @type {DragEvent} */ event) => {
      main.classList.remove("drop");
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.composer.add([...event.dataTransfer.files]);
    });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { area } = this.composer;
    if (event.ctrlKey || event.metaKey) {
      if (this.shortcut(event.key.toLowerCase(), event.shiftKey)) event.preventDefault();
    } else if (event.key === "Escape" && !document.querySelector("dialog[open], .menu")) {
      this.escape();
    } else if (event.key === "ArrowUp" && event.target === area && !area.value) {
      const last = this.client.conversation.lastPrompt;
      if (last && !this.client.conversation.isRunning) {
        event.preventDefault();
        this.transcript.edit(last.seq);
      }
    }
  }

  /**
   * @param {string} key pressed together with Ctrl or Command
   * @param {boolean} isShift
   * @returns {boolean} whether it is a key of the page
   */
  shortcut(key, isShift) {
    const isNew = isShift && key === "o";
    if (isNew) this.openNew();
    else if (isShift && key !== "/") return false;
    else if (key === "k") {
      document.body.classList.remove("list-closed");
      document.body.classList.add("list-open");
      this.sidebar.focusSearch();
    } else if (key === "b") this.toggleList();
    else if (key === "/") showSettings(this.client, this.notifier, logOut);
    else return false;
    return true;
  }

  escape() {
    const isInList = this.sidebar.element.contains(document.activeElement);
    if (isInList || document.body.classList.contains("list-open")) {
      this.closeList();
      this.focusPrompt();
    } else if (this.client.conversation.isRunning) this.client.cancel();
  }

  // Reports

  /** @param {{state: string, sessionId: string}} turn */
  turnFinished({ state, sessionId }) {
    const name = this.nameOf(sessionId);
    this.notifier.notify(name, state === "failed" ? "The turn failed." : "The answer is ready.", sessionId);
  }

  /** @param {any} asked */
  asked(asked) {
    const id = asked.session_id ?? this.client.conversation.id;
    const what = asked.tool_name ? `May ${asked.tool_name} run?` : "A tool asks for your permission.";
    this.notifier.notify(this.nameOf(id), what, id);
  }

  /** @param {string} id */
  nameOf(id) {
    const { conversation, list } = this.client;
    return (id === conversation.id ? conversation.name : list.rows.get(id)?.name) || "nplt";
  }

  offerNotifications() {
    if (!this.wasHiddenWhileRunning || !this.notifier.shouldOffer) return;
    this.notifier.wasOffered();
    const allow = async () => {
      await this.notifier.toggle();
      this.client.notice = null;
      this.changed();
    };
    this.client.say("Shall this browser notify you when an answer is ready?");
    this.render();
    this.notice.prepend(h("button.button.small.primary", { type: "button", onclick: allow }, "Yes"));
  }
}

const problem = await useCode();
const { user, tokens } = await whoAmI().catch(() => ({ user: "", tokens: false }));
if (user === null) document.body.append(loginView(problem, tokens));
else {
  const page = new Page();
  /** @type {any} */ (globalThis).nplt = page; // for tests and for the browser's console
  page.start();
}
