/** Erasing a message for good, and what is said about the places that may still hold its text. */

import { openDialog } from "./dialogs.js";
import { h, icon } from "./dom.js";

/**
 * @param {import("./client.js").Client} client
 * @param {number} seq
 */
export function askToErase(client, seq) {
  const sessionId = client.conversation.id;
  const erase = async () => {
    button.disabled = true;
    const reply = await client.erase(seq, sessionId);
    dialog.close();
    if (reply) showErased(client, reply);
  };
  const button = h("button.button.danger", { type: "button", onclick: erase }, "Erase it");
  const dialog = openDialog(
    "Erase this message for good?",
    h(
      "p",
      {},
      "Its text is taken out of the record, and out of all summaries of it. It can't be restored. " +
        "Use this for a password that was pasted by mistake.",
    ),
    h(
      "div.buttons",
      {},
      h("button.button", { type: "button", onclick: () => dialog.close() }, "Keep it"),
      button,
    ),
  );
}

/** @param {import("./client.js").Client} client @param {any} reply */
function showErased(client, reply) {
  const copies = reply.copies ?? [];
  const remains = reply.remains ?? [];
  if (!copies.length && !remains.length) {
    client.say("The message was erased.");
    return;
  }
  const more = reply.searched_all === false && h("p.hint", {}, "There may be more.");
  const found = copies.length > 0 && [
    h("h3", {}, "The same text is also here"),
    h("div.copies", {}, ...copies.map((/** @type {any} */ each) => copyRow(client, each))),
    more,
  ];
  const left = remains.length > 0 && [
    h("h3", {}, "The server can't erase it from"),
    h("ul", {}, ...remains.map((/** @type {any} */ each) => h("li", {}, each.message))),
  ];
  openDialog(
    "The message was erased",
    found && h("section", {}, ...found),
    left && h("section", {}, ...left),
  );
}

/** @param {import("./client.js").Client} client @param {any} copy */
function copyRow(client, copy) {
  const erase = async () => {
    button.disabled = true;
    const reply = await client.erase(copy.seq, copy.session_id);
    if (reply) button.replaceWith(h("span.done", {}, icon("check"), "erased"));
    else button.disabled = false;
  };
  const button = h("button.button.small", { type: "button", onclick: erase }, "Erase");
  const href = `#/c/${copy.session_id}/${copy.seq}`;
  return h("div.login-row", {}, h("a", { href }, copy.name || "conversation"), button);
}
