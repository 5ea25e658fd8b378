/** The card that asks whether a tool may run. */

import { h, icon } from "./dom.js";

/**
 * @param {import("./client.js").Client} client
 * @param {import("./conversation.js").Approval} approval
 * @returns {HTMLElement}
 */
export function approvalCard(client, approval) {
  const remember = h("input", { type: "checkbox" });
  /** @param {"allow" | "deny"} decision */
  const decide = (decision) =>
    client.decide(approval.approval_id, decision, decision === "allow" && remember.checked);
  const given = JSON.stringify(approval.arguments, null, 2);
  return h(
    "section.approval",
    { role: "alertdialog", "aria-label": `May ${approval.tool_name} run?` },
    h("h3", {}, icon("tool"), h("span", {}, "May ", h("strong", {}, approval.tool_name), " run?")),
    given !== "{}" && h("pre", { tabindex: 0 }, given),
    h(
      "div.decide",
      {},
      h("label", {}, remember, "Always allow it in this conversation"),
      h("button.button", { type: "button", onclick: () => decide("deny") }, "Deny"),
      h("button.button.primary", { type: "button", onclick: () => decide("allow") }, "Allow"),
    ),
  );
}
