/**
 * How far this page has followed a conversation, so that it can resume after a gap without losing
 * or repeating anything (protocol/SPEC.md, 5.3). Offsets count code points, not the units of a
 * JavaScript string.
 */

import * as code from "./frames.js";

/** @param {string} text */
export function codePoints(text) {
  let count = text.length;
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    if (unit >= 0xd800 && unit < 0xdc00 && at + 1 < text.length) {
      const next = text.charCodeAt(at + 1);
      if (next >= 0xdc00 && next < 0xe000) {
        count--;
        at++;
      }
    }
  }
  return count;
}

/**
 * @param {string} text
 * @param {number} count
 * @returns {string} the text without its first code points
 */
export function withoutFirst(text, count) {
  let at = 0;
  for (; count > 0 && at < text.length; count--) {
    at += /** @type {number} */ (text.codePointAt(at)) > 0xffff ? 2 : 1;
  }
  return text.slice(at);
}

export class Cursor {
  /**
   * @param {string} sessionId
   * @param {number} seq the newest entry that this page has
   */
  constructor(sessionId, seq = 0) {
    this.sessionId = sessionId;
    this.seq = seq;
    /** @type {string | null} the turn whose text is being received */
    this.turnId = null;
    this.call = 0;
    this.textLength = 0;
    this.reasoningLength = 0;
  }

  /** The fields of ATTACH that say what this page already has. */
  attach() {
    /** @type {Record<string, unknown>} */
    const fields = { session_id: this.sessionId, after_seq: this.seq };
    if (this.turnId !== null) {
      Object.assign(fields, { turn_id: this.turnId, call: this.call, offset: this.textLength });
    }
    return fields;
  }

  /**
   * @param {number} type
   * @param {any} event
   * @returns {any} the event, cut to what is new; `null` if all of it was received before, or if it
   *   begins beyond a gap, which the stored entry will fill
   */
  take(type, event) {
    if (event.session_id !== undefined && event.session_id !== this.sessionId) return null;
    if (type === code.TEXT_DELTA) {
      this.beginCall(event.turn_id, event.call);
      if (event.replay_from !== undefined) this.textLength = event.replay_from;
      const text = this.newPart(event, this.textLength);
      this.textLength += codePoints(text);
      return text || event.replay_from !== undefined ? { ...event, text } : null;
    }
    if (type === code.AGENT_THOUGHT && event.type === "reasoning") {
      this.beginCall(event.turn_id, event.call ?? 0);
      const text = this.newPart(event, this.reasoningLength);
      this.reasoningLength += codePoints(text);
      return text ? { ...event, text } : null;
    }
    if (type === code.AGENT_THOUGHT && event.type === "retrying") this.reasoningLength = 0;
    if (type === code.ENTRY) {
      if (event.entry.seq <= this.seq) return null;
      this.seq = event.entry.seq;
    }
    if (type === code.TURN_FINISHED && event.turn_id === this.turnId) this.turnId = null;
    return event;
  }

  /**
   * @param {{offset: number, text: string}} event
   * @param {number} held
   */
  newPart(event, held) {
    return event.offset > held ? "" : withoutFirst(event.text, held - event.offset);
  }

  /**
   * @param {string} turnId
   * @param {number} call
   */
  beginCall(turnId, call) {
    if (turnId === this.turnId && call === this.call) return;
    this.turnId = turnId;
    this.call = call;
    this.textLength = 0;
    this.reasoningLength = 0;
  }
}
