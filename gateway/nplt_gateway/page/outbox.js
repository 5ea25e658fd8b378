/**
 * What the browser keeps until the server has it: prompts that were sent and not confirmed, and
 * drafts. A prompt keeps its `message_id` when it is sent again, so that it runs once.
 */

/**
 * @typedef {object} Unsent
 * @property {string} message_id
 * @property {string} session_id
 * @property {boolean} create whether the conversation was not stored yet
 * @property {string} text
 * @property {{file_id: string, filename: string, size: number}[]} attachments
 * @property {number} [replace_from]
 * @property {boolean} [continue] whether the model is to go on with its last answer
 * @property {string} [not_before] when it is to run, if that is not now
 * @property {string} [problem] why the server refused it
 * @property {boolean} [isSending]
 * @property {number} [seq] the entry that it became
 */

const PROMPTS = "nplt.unsent";
const DRAFT = "nplt.draft.";
const DRAFTS_MAX = 100;

export class Outbox {
  /** @param {Storage} storage */
  constructor(storage) {
    this.storage = storage;
    /** @type {Unsent[]} */
    this.prompts = read(storage, PROMPTS, []);
    for (const each of this.prompts) {
      each.isSending = false;
      each.create ??= true; // kept by an older page
    }
  }

  /** @param {Unsent} prompt */
  add(prompt) {
    this.prompts.push(prompt);
    this.save();
  }

  /** @param {Unsent} prompt */
  remove(prompt) {
    this.prompts = this.prompts.filter((each) => each.message_id !== prompt.message_id);
    this.save();
  }

  /**
   * The server has it: it is shown until its entry comes, but not sent again.
   * @param {Unsent} prompt
   * @param {number} seq
   */
  confirm(prompt, seq) {
    prompt.seq = seq;
    prompt.isSending = false;
    this.save();
  }

  /** @param {string} sessionId */
  of(sessionId) {
    return this.prompts.filter((each) => each.session_id === sessionId);
  }

  /** @param {string} oldId @param {string} newId */
  rename(oldId, newId) {
    for (const each of this.prompts) if (each.session_id === oldId) each.session_id = newId;
    this.save();
    this.keepDraft(newId, this.draft(oldId));
    this.keepDraft(oldId, "");
  }

  save() {
    write(this.storage, PROMPTS, this.prompts.filter((each) => each.seq === undefined));
  }

  /** @param {string} sessionId */
  draft(sessionId) {
    return String(read(this.storage, DRAFT + sessionId, ""));
  }

  /** @param {string} sessionId @param {string} text */
  keepDraft(sessionId, text) {
    if (text) write(this.storage, DRAFT + sessionId, text);
    else this.storage.removeItem(DRAFT + sessionId);
    const keys = Object.keys(this.storage).filter((key) => key.startsWith(DRAFT));
    for (const key of keys.slice(0, -DRAFTS_MAX)) this.storage.removeItem(key);
  }
}

/** @param {Storage} storage @param {string} key @param {any} otherwise */
export function read(storage, key, otherwise) {
  try {
    return JSON.parse(storage.getItem(key) ?? "null") ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** @param {Storage} storage @param {string} key @param {any} value */
export function write(storage, key, value) {
  try {
    storage.setItem(key, JSON.stringify(value));
  } catch (error) {
    console.warn("the browser's storage is full", error);
  }
}
