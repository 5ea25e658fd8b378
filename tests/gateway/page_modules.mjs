// Runs the page's modules for the tests: reads commands as JSON from stdin, writes the results.
import { Conversation } from "../../gateway/nplt_gateway/page/conversation.js";
import { Cursor, codePoints, withoutFirst } from "../../gateway/nplt_gateway/page/cursor.js";
import { FrameReader, encodeMessage } from "../../gateway/nplt_gateway/page/frames.js";
import { Outbox } from "../../gateway/nplt_gateway/page/outbox.js";
import { asMarkdown } from "../../gateway/nplt_gateway/page/export.js";
import { ageGroup, futureTime, tokens } from "../../gateway/nplt_gateway/page/text.js";

const hex = (bytes) => Buffer.from(bytes).toString("hex");
const bytes = (text) => new Uint8Array(Buffer.from(text, "hex"));

const COMMANDS = {
  decode({ pieces }) {
    const reader = new FrameReader();
    const messages = pieces.flatMap((piece) => reader.receive(bytes(piece)));
    return messages.map(({ type, seq, payload }) => [type, seq, hex(payload)]);
  },
  encode({ type, seq, payload }) {
    return hex(encodeMessage(type, seq, bytes(payload)));
  },
  points({ text, count }) {
    return [codePoints(text), withoutFirst(text, count)];
  },
  follow({ session_id, events }) {
    const cursor = new Cursor(session_id);
    return events.map(([type, event]) => {
      const taken = cursor.take(type, event);
      return [taken, cursor.attach()];
    });
  },
  conversation({ attached, request, steps }) {
    const shown = new Conversation(attached.session_id, false);
    shown.attached(attached, request);
    for (const [what, value] of steps) {
      if (what === "ask") shown.expectPage();
      else if (what === "page") shown.showPage(value);
      else if (what === "older") shown.addPage("before", value);
      else shown.receive(what, value);
    }
    return {
      messages: shown.messages.map((each) => [each.seq, each.content]),
      live: shown.live && shown.live.text,
      queue: shown.queue,
      needsReload: shown.needsReload,
      later: [...shown.later.values()].map((each) => [each.turn_id, each.due_at, each.held ?? false]),
    };
  },
  outbox({ prompts, confirmed }) {
    const kept = new Map();
    const storage = {
      getItem: (key) => kept.get(key) ?? null,
      setItem: (key, value) => kept.set(key, value),
      removeItem: (key) => kept.delete(key),
    };
    const first = new Outbox(storage);
    for (const prompt of prompts) first.add(prompt);
    for (const prompt of first.prompts) {
      if (confirmed.includes(prompt.message_id)) first.confirm(prompt, 7);
    }
    return new Outbox(storage).prompts.map((each) => [each.message_id, each.text]);
  },
  export({ name, messages }) {
    return asMarkdown(name, messages);
  },
  texts({ times, now, counts }) {
    return [times.map((time) => ageGroup(time, new Date(now))), counts.map(tokens)];
  },
  future({ times, now }) {
    return times.map((time) => futureTime(time, new Date(now)));
  },
};

let input = "";
for await (const piece of process.stdin) input += piece;
console.log(JSON.stringify(JSON.parse(input).map(([name, given]) => COMMANDS[name](given))));
