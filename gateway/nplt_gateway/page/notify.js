/** What is reported outside the page: the title, the icon, notifications, and to screen readers. */

import { read, write } from "./outbox.js";

const KEY = "nplt.notify";

export class Notifier {
  /** @param {import("./client.js").Client} client @param {(id: string) => void} open */
  constructor(client, open) {
    this.client = client;
    this.open = open;
    this.icon = /** @type {HTMLLinkElement | null} */ (document.querySelector("link[rel=icon]"));
    this.iconFolder = this.icon?.href.replace(/[^/]*$/, "") ?? "";
    this.shownIcon = "icon";
  }

  get isSupported() {
    return "Notification" in window;
  }

  get isOn() {
    return this.isSupported && Notification.permission === "granted" && read(localStorage, KEY, false);
  }

  /** The label of the button that turns notifications on and off. */
  get words() {
    if (!this.isSupported) return "This browser has no notifications";
    if (Notification.permission === "denied") return "The browser's settings forbid notifications";
    return this.isOn ? "Turn notifications off" : "Notify me when an answer is ready";
  }

  async toggle() {
    if (!this.isSupported) return;
    const isWanted = !this.isOn;
    if (isWanted) await Notification.requestPermission();
    write(localStorage, KEY, isWanted && Notification.permission === "granted");
  }

  /**
   * Whether this is a good moment to offer notifications: somebody looked away during an answer.
   */
  get shouldOffer() {
    const isOpen = this.isSupported && Notification.permission === "default";
    return isOpen && !read(localStorage, `${KEY}.offered`, false);
  }

  wasOffered() {
    write(localStorage, `${KEY}.offered`, true);
  }

  /** @param {string} title @param {string} body @param {string} id */
  notify(title, body, id) {
    if (!document.hidden || !this.isOn) return;
    try {
      const notification = new Notification(title, { body, tag: id, icon: `${this.iconFolder}icon-192.png` });
      notification.onclick = () => {
        window.focus();
        this.open(id);
        notification.close();
      };
    } catch {
      // Chrome on Android shows notifications only for service workers
    }
  }

  /** Shows in title and icon what happens. */
  render() {
    const { conversation, list, phase } = this.client;
    const { asking, running, unread } = list.counts;
    const isAsking = asking > 0 || conversation.approvals.size > 0;
    const isRunning = running > 0 || conversation.isRunning;
    const name = conversation.name && !conversation.isNew ? `${conversation.name} – nplt` : "nplt";
    const mark = isAsking ? "❓ " : isRunning ? "… " : unread && document.hidden ? `(${unread}) ` : "";
    const title = (phase === "offline" ? "⚠ " : mark) + name;
    if (document.title !== title) document.title = title;
    const wanted = isAsking ? "icon-asking" : isRunning ? "icon-running" : "icon";
    if (this.icon && wanted !== this.shownIcon) {
      this.shownIcon = wanted;
      this.icon.href = `${this.iconFolder}${wanted}.svg`;
    }
  }
}

/** A text without the end of a sentence is read out in parts of this length. */
const PART_MAX = 1_000;
const SENTENCE = /[\s\S]*[.!?:…。！？]["')\]]?(?=\s|$)/;

/** Reads answers to screen readers, by whole sentences. */
export class Announcer {
  constructor() {
    this.element = document.createElement("div");
    this.element.className = "unseen";
    this.element.setAttribute("aria-live", "polite");
    this.turnId = "";
    this.call = 0;
    this.read = 0;
  }

  /** @param {import("./conversation.js").Conversation} conversation */
  render(conversation) {
    const { live, messages } = conversation;
    if (live) {
      if (live.turnId !== this.turnId || live.call !== this.call) this.read = 0;
      this.turnId = live.turnId;
      this.call = live.call;
      const part = live.text.slice(this.read, this.read + PART_MAX);
      this.say(SENTENCE.exec(part)?.[0] ?? (part.length < PART_MAX ? "" : part));
    } else if (this.turnId) {
      const answer = messages.findLast(
        (each) => each.turn_id === this.turnId && each.role === "assistant",
      );
      this.say(answer?.content.slice(this.read, this.read + 4 * PART_MAX) ?? "");
      this.turnId = "";
      this.read = 0;
    }
  }

  /** @param {string} text */
  say(text) {
    this.read += text.length;
    if (!text.trim()) return;
    const line = document.createElement("p");
    line.textContent = text;
    this.element.append(line);
    while (this.element.childElementCount > 20) this.element.firstElementChild?.remove();
  }
}
