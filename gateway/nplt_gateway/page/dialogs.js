/** Menus and dialogs: a menu at a button, the choice of a model, a name, the settings. */

import { h, icon, iconButton, setText } from "./dom.js";
import { read, write } from "./outbox.js";
import { longTime, modelName, tokens } from "./text.js";

/** @typedef {{icon: string, label: string, act: () => void}} MenuItem */

/** @param {HTMLElement} button @param {(MenuItem | null | false)[]} items */
export function openMenu(button, items) {
  const menu = h("div.menu", { popover: "auto", role: "menu" });
  for (const item of items) {
    if (!item) continue;
    const choose = () => {
      menu.hidePopover();
      item.act();
    };
    menu.append(
      h("button", { type: "button", role: "menuitem", onclick: choose }, icon(item.icon), item.label),
    );
  }
  menu.addEventListener("toggle", (/** @type {any} */ event) => {
    if (event.newState !== "closed") return;
    menu.remove();
    if (button.isConnected && !document.querySelector("dialog[open]")) button.focus();
  });
  menu.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    const step = event.key === "ArrowDown" ? 1 : -1;
    const at = [...menu.children].indexOf(/** @type {any} */ (document.activeElement)) + step;
    /** @type {HTMLElement} */ (menu.children[(at + menu.children.length) % menu.children.length]).focus();
  });
  document.body.append(menu);
  menu.showPopover();
  const at = button.getBoundingClientRect();
  const box = menu.getBoundingClientRect();
  const left = Math.min(Math.max(8, at.right - box.width), innerWidth - box.width - 8);
  const isAbove = at.bottom + box.height + 8 > innerHeight;
  menu.style.left = `${Math.max(8, left)}px`;
  menu.style.top = `${Math.max(8, isAbove ? at.top - box.height - 4 : at.bottom + 4)}px`;
  menu.querySelector("button")?.focus();
}

/**
 * @param {string} title
 * @param {...(Node | string | null | false)} content
 * @returns {any} an open dialog, which is removed when it is closed
 */
export function openDialog(title, ...content) {
  const dialog = h("dialog", { "aria-label": title });
  const close = () => dialog.close();
  dialog.append(
    h("div.dialog-head", {}, h("h2", {}, title), iconButton("close", "Close", close)),
    h("div.dialog-body", {}, ...content),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (/** @type {Event} */ event) => {
    if (event.target === dialog) close();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** @param {string} title @param {string} name @param {(name: string) => void} done */
export function askName(title, name, done) {
  const input = h("input", { type: "text", maxlength: 200, "aria-label": "Name" });
  input.value = name;
  const form = h(
    "form.name-form",
    {},
    input,
    h("div.buttons", {}, h("button.button.primary", { type: "submit" }, "Save")),
  );
  const dialog = openDialog(title, form);
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    if (input.value.trim()) done(input.value.trim());
    dialog.close();
  });
  input.select();
}

/**
 * Shows the system message of a conversation, to be changed.
 * @param {import("./client.js").Client} client
 */
export async function editSystemMessage(client) {
  const { id } = client.conversation;
  const text = await client.readSystemMessage(id);
  if (text === null) return;
  const area = h("textarea", { "aria-label": "System message", rows: 6 });
  area.value = text;
  const form = h(
    "form.name-form",
    {},
    h("p.hint", {}, "Models read this before the conversation, from the next prompt on."),
    area,
    h("div.buttons", {}, h("button.button.primary", { type: "submit" }, "Save")),
  );
  const dialog = openDialog("System message", form);
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    if (area.value.trim() !== text) client.update(id, { system: area.value.trim() });
    dialog.close();
  });
  area.focus();
}

/** @param {import("./client.js").Client} client */
export async function chooseModel(client) {
  const filter = h("input", {
    type: "search",
    placeholder: "Filter the models",
    "aria-label": "Filter the models",
    autocomplete: "off",
  });
  const list = h("div.models", { role: "listbox", "aria-label": "Models" });
  const dialog = openDialog("Model of this conversation", filter, list, effortChoice(client));
  const fill = () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    const found = client.models.filter((model) =>
      words.every((/** @type {string} */ word) => model.toLowerCase().includes(word)),
    );
    list.replaceChildren(
      ...found.map((model) => {
        const isChosen = model === client.conversation.model;
        const choose = () => {
          dialog.close();
          client.chooseModel(model);
        };
        const attributes = { type: "button", role: "option", "aria-selected": String(isChosen) };
        return h(
          "button.model-option",
          { ...attributes, onclick: choose },
          h("span.model-name", {}, modelName(model), h("small", {}, model.split("/")[0])),
          h("span.facts", {}, ...factsOf(client.facts[model]).map((fact) => h("span", {}, fact))),
          isChosen && icon("check"),
        );
      }),
    );
    if (!found.length) list.append(h("p.nothing", {}, "No model has such a name."));
  };
  filter.addEventListener("input", fill);
  dialog.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && event.target === filter) list.querySelector("button")?.click();
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    const options = [...list.querySelectorAll("button")];
    const at = options.indexOf(/** @type {any} */ (document.activeElement));
    options[Math.max(0, at + (event.key === "ArrowDown" ? 1 : -1))]?.focus();
  });
  fill();
  filter.focus();
  await client.loadModels();
  fill();
}

const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/** @param {import("./client.js").Client} client */
function effortChoice(client) {
  const chosen = client.conversation.options.effort ?? "";
  const select = h("select", {}, h("option", { value: "" }, "as the model chooses"));
  for (const effort of EFFORTS) {
    select.append(h("option", { value: effort, selected: effort === chosen }, effort));
  }
  select.addEventListener("change", () => client.chooseEffort(select.value || null));
  return h("label.setting", {}, h("span", {}, "Thinking"), select);
}

/** @param {any} facts @returns {string[]} */
function factsOf(facts) {
  if (!facts) return [];
  const parts = [];
  if (facts.context_tokens) parts.push(`${tokens(facts.context_tokens)} window`);
  if (facts.images) parts.push("pictures");
  if (facts.tools === false) parts.push("no tools");
  if (facts.price_in !== undefined && facts.price_out !== undefined) {
    parts.push(`$${facts.price_in} in, $${facts.price_out} out per million`);
  }
  return parts;
}

/** @param {import("./client.js").Client} client */
export async function showUsage(client) {
  const body = h("div", {}, h("p.nothing", {}, "Loading …"));
  openDialog("Tokens and cost", body);
  const usage = await client.usage();
  if (!usage) return;
  const rows = [
    ["Tokens read", tokens(usage.billed.input_tokens ?? 0)],
    ["of these from the cache", tokens(usage.billed.cached_tokens ?? 0)],
    ["Tokens written", tokens(usage.billed.output_tokens ?? 0)],
    ["Calls", String(usage.billed.calls ?? 0)],
  ];
  if (usage.cost) {
    const partly = usage.cost.partial ? " (some models have no price)" : "";
    rows.push(["Cost", `${usage.cost.amount} ${usage.cost.currency}${partly}`]);
  } else rows.push(["Cost", "not known: no price is set"]);
  const taken = usage.occupancy;
  if (taken?.context_tokens) {
    const share = `${tokens(taken.tokens)} of ${tokens(taken.context_tokens)} (${taken.percent} %)`;
    rows.push(["Window used by the last call", share]);
  }
  const table = h("table.facts-table");
  for (const [name, value] of rows) table.append(h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value)));
  body.replaceChildren(table);
}

const THEMES = /** @type {const} */ ([
  ["", "System"],
  ["light", "Light"],
  ["dark", "Dark"],
]);

/** @param {string} theme */
function applyTheme(theme) {
  write(localStorage, "nplt.theme", theme);
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

/**
 * @param {import("./client.js").Client} client
 * @param {import("./notify.js").Notifier} notifier
 * @param {() => void} logOut
 */
export function showSettings(client, notifier, logOut) {
  const chosen = read(localStorage, "nplt.theme", "");
  const themes = h("div.segments", { role: "radiogroup", "aria-label": "Theme" });
  for (const [value, label] of THEMES) {
    const input = h("input", { type: "radio", name: "theme", value });
    input.checked = value === chosen;
    input.addEventListener("change", () => applyTheme(value));
    themes.append(h("label", {}, input, h("span", {}, label)));
  }
  const notify = h("button.button.small", { type: "button" });
  const showNotify = () => setText(notify, notifier.words);
  notify.addEventListener("click", async () => {
    await notifier.toggle();
    showNotify();
  });
  showNotify();
  const logins = h("div.logins", {}, h("p.nothing", {}, "Loading …"));
  openDialog(
    "Settings",
    h("section", {}, h("h3", {}, "Theme"), themes),
    h("section", {}, h("h3", {}, "Notifications"), notify),
    h("section", {}, h("h3", {}, "Browsers that are logged in"), logins),
    h("section", {}, h("h3", {}, "Keys"), keys()),
    h(
      "section.about",
      {},
      h("p", {}, `${client.server} · ${location.host}`),
      h("button.button.small", { type: "button", onclick: logOut }, "Log out"),
    ),
  );
  fillLogins(logins);
}

/** @param {HTMLElement} element */
async function fillLogins(element) {
  const response = await fetch("/logins");
  if (!response.ok) return;
  const { logins } = await response.json();
  element.replaceChildren(
    ...logins.map((/** @type {any} */ login) => {
      const revoke = async () => {
        await fetch(`/logins/${login.id}`, { method: "DELETE" });
        fillLogins(element);
      };
      return h(
        "div.login-row",
        {},
        h(
          "span",
          {},
          login.device,
          h("small", {}, login.is_this ? "this browser" : `last used ${longTime(login.used_at * 1000)}`),
        ),
        !login.is_this && h("button.button.small", { type: "button", onclick: revoke }, "Log out"),
      );
    }),
  );
}

function keys() {
  const rows = [
    ["Ctrl K", "search"],
    ["Ctrl Shift O", "new conversation"],
    ["Enter", "send; Shift Enter: new line"],
    ["Esc", "stop the answer"],
    ["↑ in an empty prompt", "edit the last one"],
    ["Ctrl B", "show or hide the list"],
    ["Esc in the list", "back to the prompt"],
    ["Ctrl /", "these keys"],
  ];
  const list = h("dl.keys");
  for (const [key, what] of rows) list.append(h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)));
  return list;
}
