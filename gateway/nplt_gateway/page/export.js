/** Saves a conversation as a file. */

import { save } from "./files.js";

/**
 * @param {import("./client.js").Client} client
 * @param {string} id
 * @param {"md" | "json"} format
 */
export async function exportConversation(client, id, format) {
  try {
    client.say("Reading the conversation …");
    const { name, messages } = await client.readAll(id);
    const text =
      format === "md" ? asMarkdown(name, messages) : JSON.stringify({ session_id: id, name, messages }, null, 2);
    save(new Blob([text]), `${fileName(name)}.${format}`);
    client.say("Saved.");
  } catch (error) {
    client.fail(error);
  }
}

/** @param {string} name */
function fileName(name) {
  return name.replace(/[^\p{L}\p{N} ._-]/gu, "_").slice(0, 80).trim() || "conversation";
}

/** @param {string} name @param {any[]} messages */
export function asMarkdown(name, messages) {
  const parts = [`# ${name}`];
  for (const message of messages) {
    const who = message.role === "user" ? "You" : message.role === "assistant" ? "Answer" : "Error";
    const model = message.model ? ` (${message.model})` : "";
    parts.push(`## ${who}${model}`);
    if (message.content) parts.push(message.content);
    for (const tool of message.tool_calls ?? []) {
      parts.push(fenced(`${tool.tool_name} ${JSON.stringify(tool.arguments)}\n${tool.result}`));
    }
  }
  return `${parts.join("\n\n")}\n`;
}

/** @param {string} text */
function fenced(text) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((found) => found[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}
