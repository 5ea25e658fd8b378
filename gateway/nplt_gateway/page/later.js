/** Prompts for later: the dialog that asks for a time, and how they are shown until it has come. */

import { openDialog } from "./dialogs.js";
import { h, icon, setText, show } from "./dom.js";
import { futureTime } from "./text.js";

const HOUR = 3600 * 1000;

/** @returns {[string, Date][]} times that people often mean */
function suggestions(now = new Date()) {
  /** @param {number} days @param {number} hour */
  const on = (days, hour) =>
    new Date(now.getFullYear(), now.getMonth(), now.getDate() + days, hour);
  const evening = on(0, 18);
  /** @type {[string, Date][]} */
  const times = [
    ["In an hour", new Date(now.getTime() + HOUR)],
    ["Tomorrow morning", on(1, 9)],
    ["Monday morning", on(((8 - now.getDay()) % 7) || 7, 9)],
  ];
  if (evening.getTime() - now.getTime() > HOUR) times.splice(1, 0, ["This evening", evening]);
  return times;
}

/** @param {(time: Date) => void} done */
export function askTime(done) {
  const input = h("input", { type: "datetime-local", "aria-label": "Time", required: true });
  const soon = new Date(Date.now() + HOUR - new Date().getTimezoneOffset() * 60_000);
  input.value = soon.toISOString().slice(0, 16);
  const problem = h("p.problem", { role: "alert" });
  const form = h(
    "form.name-form",
    {},
    input,
    problem,
    h("div.buttons", {}, h("button.button.primary", { type: "submit" }, "Send then")),
  );
  /** @param {Date} time */
  const choose = (time) => {
    dialog.close();
    done(time);
  };
  const quick = suggestions().map(([label, time]) =>
    h(
      "button.choice",
      { type: "button", onclick: () => choose(time) },
      h("span", {}, label),
      h("span.facts", {}, futureTime(time)),
    ),
  );
  const dialog = openDialog("Send this prompt later", h("div.choices", {}, ...quick), form);
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    const time = new Date(input.value);
    if (time.getTime() > Date.now()) choose(time);
    else setText(problem, "This time has passed.");
  });
}

export class LaterView {
  /** @param {import("./client.js").Client} client */
  constructor(client) {
    this.when = h("span");
    this.text = h("p.text");
    this.release = h(
      "button.button.small",
      { type: "button", title: "Lets the prompts of this copy run", onclick: () => client.releaseLater() },
      "Let it run",
    );
    const cancel = () => client.cancelLater(this.turnId);
    this.turnId = "";
    this.element = h(
      "article.later",
      { "aria-label": "A prompt for later" },
      h("div.head", {}, icon("clock"), this.when),
      this.text,
      h(
        "div.buttons",
        {},
        this.release,
        h("button.button.small", { type: "button", onclick: cancel }, "Cancel"),
      ),
    );
  }

  /** @param {{value: import("./conversation.js").Later}} item */
  update({ value: later }) {
    this.turnId = later.turn_id;
    const when = futureTime(later.due_at);
    setText(this.when, later.held ? `Held, because this is a copy; meant for ${when}` : `Runs ${when}`);
    setText(this.text, later.content ?? later.preview ?? "…");
    show(this.release, Boolean(later.held));
  }
}
