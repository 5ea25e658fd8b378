/**
 * The list of conversations: the rows of the server, and what a search found. No DOM and no I/O.
 */

/**
 * @typedef {object} Row
 * @property {string} session_id
 * @property {string} name
 * @property {string} updated_at
 * @property {string} model
 * @property {string} preview
 * @property {string} state idle, running, waiting, asking or failed
 * @property {boolean} pinned
 * @property {boolean} archived
 * @property {boolean} damaged
 * @property {number} [unread]
 * @property {number} [seen_seq]
 * @property {number} [head_seq]
 * @property {string} [running_since]
 * @property {string} [deleted_at]
 * @property {string} [due_at] when the first prompt for later runs
 * @property {string} [warning]
 */

/** @typedef {"open" | "archived" | "trash"} Shelf */

const STATES = /** @type {Record<string, string>} */ ({
  running: "is answering",
  waiting: "waits",
  asking: "asks for your permission",
  failed: "failed",
});
/** The more urgent ones last. */
const URGENT = ["waiting", "running", "unread", "failed", "asking"];
const RECENT_MAX = 3;

/** @param {Row} row */
export function stateWords(row) {
  return [STATES[row.state], row.unread ? `${row.unread} unread` : ""].filter(Boolean).join(", ");
}

/** @param {Row} row */
function urgency(row) {
  return Math.max(URGENT.indexOf(row.state), row.unread ? URGENT.indexOf("unread") : -1);
}

export class Conversations {
  constructor() {
    /** @type {Map<string, Row>} */
    this.rows = new Map();
    /** @type {string | null} the cursor of the next page */
    this.nextCursor = null;
    this.isLoaded = false;
    this.isLoading = false;
    /** @type {Shelf} */
    this.shelf = "open";
    this.query = "";
    /** @type {any[] | null} what a search found; `null` without a query */
    this.hits = null;
    this.isWatching = false;
  }

  /**
   * @param {Shelf} shelf
   */
  show(shelf) {
    this.shelf = shelf;
    this.rows.clear();
    this.nextCursor = null;
    this.isLoaded = false;
  }

  /**
   * @param {any} page the reply to SESSION_LIST
   * @param {boolean} isFirst
   */
  addPage(page, isFirst) {
    if (isFirst) this.rows.clear();
    for (const row of page.sessions) this.rows.set(row.session_id, row);
    this.nextCursor = page.next_cursor;
    this.isLoaded = true;
  }

  /** @param {any} event SESSION_CHANGED */
  changed({ session_id: id, row }) {
    if (this.shelf === "trash") return;
    const belongs = row && Boolean(row.archived) === (this.shelf === "archived");
    if (belongs) this.rows.set(id, row);
    else this.rows.delete(id);
  }

  /** @param {string} id a conversation that was put in the trash */
  remove(id) {
    this.rows.delete(id);
    this.hits = this.hits?.filter((hit) => hit.session_id !== id) ?? null;
  }

  /** @param {Row} row */
  update(row) {
    this.changed({ session_id: row.session_id, row });
  }

  /** @returns {Row[]} pinned ones first, then the newest */
  get sorted() {
    return [...this.rows.values()].sort(
      (a, b) =>
        Number(b.pinned) - Number(a.pinned) || (b.updated_at ?? "").localeCompare(a.updated_at),
    );
  }

  /** @returns {Row[]} where one may want to go on: what asks or has news, then the newest */
  get recent() {
    if (this.shelf !== "open") return [];
    return [...this.rows.values()]
      .sort((a, b) => urgency(b) - urgency(a) || (b.updated_at ?? "").localeCompare(a.updated_at))
      .slice(0, RECENT_MAX);
  }

  /** How many conversations of the list ask for something, and how many run. */
  get counts() {
    const rows = [...this.rows.values()];
    return {
      asking: rows.filter((row) => row.state === "asking").length,
      running: rows.filter((row) => row.state === "running" || row.state === "waiting").length,
      unread: rows.filter((row) => row.unread).length,
    };
  }
}
