/** The list of conversations, and the search in them. */

import { stateWords } from "./conversations.js";
import { openMenu } from "./dialogs.js";
import { h, icon, iconButton, keep, setText, show } from "./dom.js";
import { exportConversation } from "./export.js";
import { ageGroup, futureTime, longTime, plainLine, shortTime } from "./text.js";

const SEARCH_AFTER = 200;
/**
 * @typedef {object} Line
 * @property {string} key
 * @property {string} [heading]
 * @property {import("./conversations.js").Row} [row]
 * @property {any} [hit]
 */

export class Sidebar {
  /**
   * @param {import("./client.js").Client} client
   * @param {{open: (id: string, seq?: number) => void, openNew: () => void, hide: () => void,
   *   settings: () => void, rename: (row: import("./conversations.js").Row) => void}} actions
   */
  constructor(client, actions) {
    this.client = client;
    this.actions = actions;
    this.search = h("input", {
      type: "search",
      placeholder: "Search",
      "aria-label": "Search in all conversations",
      autocomplete: "off",
      enterkeyhint: "search",
    });
    this.lines = h("div.lines");
    this.more = h("button.button.small.more", { type: "button", hidden: true }, "Show more");
    this.more.addEventListener("click", () => client.loadList(true));
    this.empty = h("p.nothing", { hidden: true });
    this.shelf = h("button.shelf", { type: "button", hidden: true });
    this.shelf.addEventListener("click", () => client.showShelf("open"));
    this.user = h("span");
    this.scroll = h("div.scroll", {}, this.shelf, this.lines, this.empty, this.more);
    this.element = h(
      "nav.sidebar",
      { "aria-label": "Conversations" },
      h(
        "div.sidebar-head",
        {},
        h("span.brand", {}, "nplt"),
        iconButton("menu", "Hide the list", actions.hide),
      ),
      h(
        "button.new-line",
        { type: "button", onclick: actions.openNew, title: "Ctrl Shift O" },
        icon("edit"),
        "New conversation",
      ),
      h("label.search", {}, icon("search"), this.search),
      this.scroll,
      h(
        "div.sidebar-foot",
        {},
        h(
          "button.account",
          { type: "button", onclick: actions.settings },
          icon("gear"),
          this.user,
        ),
        iconButton("archive", "Archive", () => this.showShelf("archived")),
        iconButton("trash", "Trash", () => this.showShelf("trash")),
      ),
    );
    this.listen();
  }

  listen() {
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    this.search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.client.search(this.search.value), SEARCH_AFTER);
    });
    this.search.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Escape" && this.search.value) {
        event.stopPropagation();
        this.clearSearch();
      } else if (event.key === "ArrowDown") {
        event.preventDefault();
        this.lines.querySelector("a")?.focus();
      }
    });
    this.lines.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
      event.preventDefault();
      const links = [...this.lines.querySelectorAll("a")];
      const at = links.indexOf(/** @type {any} */ (document.activeElement));
      links[at + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
    });
    this.scroll.addEventListener(
      "scroll",
      () => {
        const { scrollTop, scrollHeight, clientHeight } = this.scroll;
        const isNear = scrollHeight - scrollTop - clientHeight < 300;
        if (isNear && this.client.list.nextCursor && !this.client.list.hits) {
          this.client.loadList(true);
        }
      },
      { passive: true },
    );
  }

  /** @param {"archived" | "trash"} shelf */
  showShelf(shelf) {
    if (this.client.list.hits) this.clearSearch();
    this.client.showShelf(shelf);
  }

  clearSearch() {
    this.search.value = "";
    this.client.search("");
  }

  focusSearch() {
    this.search.focus();
    this.search.select();
  }

  render() {
    const { list } = this.client;
    setText(this.user, this.client.user ? `Settings · ${this.client.user}` : "Settings");
    keep(
      this.lines,
      list.hits ? this.hitLines(list.hits) : this.rowLines(),
      (line) => line.key,
      (line) => this.make(line),
      (element, line) => this.update(element, line),
    );
    show(this.more, Boolean(list.nextCursor) && !list.hits);
    const names = { open: "", archived: "Archive", trash: "Trash" };
    show(this.shelf, list.shelf !== "open" && !list.hits);
    setText(this.shelf, `← ${names[list.shelf]}`);
    const nothing = list.hits
      ? "Nothing was found."
      : list.shelf === "open"
        ? "Your conversations will be listed here."
        : "Nothing is here.";
    setText(this.empty, nothing);
    show(this.empty, !this.lines.children.length && (list.isLoaded || list.hits !== null));
  }

  /** @returns {Line[]} */
  rowLines() {
    /** @type {Line[]} */
    const lines = [];
    let heading = "";
    const isTrash = this.client.list.shelf === "trash";
    for (const row of this.client.list.sorted) {
      const group = row.pinned && !isTrash ? "Pinned" : ageGroup(row.deleted_at ?? row.updated_at);
      if (group !== heading) lines.push({ key: `heading ${group}`, heading: group });
      heading = group;
      lines.push({ key: row.session_id, row });
    }
    return lines;
  }

  /** @param {any[]} hits @returns {Line[]} */
  hitLines(hits) {
    return hits.map((hit) => ({ key: `hit ${hit.session_id} ${hit.seq}`, hit }));
  }

  /** @param {Line} line */
  make(line) {
    if (line.heading) return h("h2", {}, line.heading);
    if (line.hit) return this.makeHit(line.hit);
    const id = /** @type {any} */ (line.row).session_id;
    const link = h(
      "a",
      { href: `#/c/${id}` },
      h("span.name"),
      h("span.sub", {}, h("span.preview"), h("span.due", { hidden: true }, icon("clock")), h("time")),
    );
    const dot = h("span.dot");
    const menu = iconButton("more", "What can be done", (event) => {
      const row = this.client.list.rows.get(id);
      if (row) this.openMenu(/** @type {HTMLElement} */ (event.currentTarget), row);
    });
    return h("div.line", {}, link, dot, menu);
  }

  /** @param {any} hit */
  makeHit(hit) {
    return h(
      "div.line.hit",
      {},
      h(
        "a",
        {
          href: `#/c/${hit.session_id}/${hit.seq}`,
          onclick: (/** @type {Event} */ event) => {
            event.preventDefault();
            this.actions.open(hit.session_id, hit.seq || undefined);
          },
        },
        h("span.name", {}, hit.name),
        h("span.snippet", {}, hit.snippet),
        h("time", { datetime: hit.timestamp }, shortTime(hit.timestamp)),
      ),
    );
  }

  /** @param {HTMLElement} element @param {Line} line */
  update(element, { row }) {
    if (!row) return;
    const isCurrent = row.session_id === this.client.conversation.id;
    const link = /** @type {HTMLElement} */ (element.firstElementChild);
    link.toggleAttribute("aria-current", isCurrent);
    const unread = isCurrent && !document.hidden ? 0 : (row.unread ?? 0);
    element.classList.toggle("unread", unread > 0);
    element.dataset.state = row.state;
    setText(/** @type {Element} */ (link.querySelector(".name")), row.name);
    setText(/** @type {Element} */ (link.querySelector(".preview")), plainLine(row.preview));
    const time = /** @type {HTMLTimeElement} */ (link.querySelector("time"));
    setText(time, shortTime(row.deleted_at ?? row.updated_at));
    time.title = longTime(row.updated_at);
    const due = /** @type {HTMLElement} */ (link.querySelector(".due"));
    show(due, Boolean(row.due_at));
    due.title = row.due_at ? `A prompt runs ${futureTime(row.due_at)}` : "";
    const words = stateWords({ ...row, unread });
    const dot = /** @type {HTMLElement} */ (element.children[1]);
    dot.title = words;
    setText(dot, words);
  }

  /** @param {HTMLElement} button @param {import("./conversations.js").Row} row */
  openMenu(button, row) {
    const { client } = this;
    const id = row.session_id;
    if (client.list.shelf === "trash") {
      openMenu(button, [{ icon: "undo", label: "Restore", act: () => client.restore(id) }]);
      return;
    }
    openMenu(button, [
      { icon: "edit", label: "Rename", act: () => this.actions.rename(row) },
      {
        icon: "pin",
        label: row.pinned ? "Unpin" : "Pin",
        act: () => client.update(id, { pinned: !row.pinned }),
      },
      {
        icon: "archive",
        label: row.archived ? "Move out of the archive" : "Archive",
        act: () => client.update(id, { archived: !row.archived }),
      },
      { icon: "download", label: "Export as Markdown", act: () => exportConversation(client, id, "md") },
      { icon: "download", label: "Export as JSON", act: () => exportConversation(client, id, "json") },
      { icon: "trash", label: "Move to the trash", act: () => client.remove(id) },
    ]);
  }
}
