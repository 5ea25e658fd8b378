/**
 * The frames of NPLT: messages to bytes, and bytes to messages (protocol/SPEC.md, chapter 2).
 *
 * A frame is a type, a number that connects a reply with its request, a length and a payload. A
 * message that is longer than one frame is sent as several; all but the last have the bit `MORE`.
 */

export const CHAT_TEXT = 0x01;
export const HELLO = 0x02;
export const ERROR = 0x03;
export const PING = 0x04;
export const PONG = 0x05;
export const CANCEL = 0x06;
export const PROMPT = 0x07;
export const ATTACH = 0x08;
export const DETACH = 0x09;
export const AGENT_THOUGHT = 0x0a;
export const FILE_DATA = 0x0d;
export const FILE_METADATA = 0x0e;
export const MODEL_SWITCH = 0x0f;
export const HISTORY_REQUEST = 0x10;
export const CLEAR_REQUEST = 0x11;
export const SESSION_LIST = 0x14;
export const SESSION_DELETE = 0x17;
export const SESSION_UPDATE = 0x19;
export const SESSION_FORK = 0x1a;
export const SEARCH = 0x1b;
export const APPROVAL = 0x1d;
export const TURN_STARTED = 0x20;
export const TEXT_DELTA = 0x21;
export const TOOL_STARTED = 0x23;
export const TOOL_FINISHED = 0x24;
export const TURN_FINISHED = 0x25;
export const SESSION_EVENT = 0x26;
export const APPROVAL_REQUEST = 0x27;
export const ENTRY = 0x28;
export const SESSION_CHANGED = 0x29;
export const USAGE = 0x32;
export const FILE_GET = 0x33;
export const ROLLBACK = 0x35;
export const REDACT = 0x36;
export const WATCH = 0x38;
export const SEEN = 0x39;

export const MORE = 0x80;
export const FRAME_PAYLOAD_BYTES_MAX = 65_535;
const HEADER_BYTES = 5;

/** @typedef {{type: number, seq: number, payload: Uint8Array}} Message */

/**
 * @param {number} type
 * @param {number} seq
 * @param {Uint8Array} payload
 * @returns {Uint8Array} one frame, or several if the payload is long
 */
export function encodeMessage(type, seq, payload) {
  const count = Math.max(1, Math.ceil(payload.length / FRAME_PAYLOAD_BYTES_MAX));
  const bytes = new Uint8Array(payload.length + count * HEADER_BYTES);
  const view = new DataView(bytes.buffer);
  let at = 0;
  for (let number = 0; number < count; number++) {
    const start = number * FRAME_PAYLOAD_BYTES_MAX;
    const part = payload.subarray(start, start + FRAME_PAYLOAD_BYTES_MAX);
    view.setUint8(at, number < count - 1 ? type | MORE : type);
    view.setUint16(at + 1, seq);
    view.setUint16(at + 3, part.length);
    bytes.set(part, at + HEADER_BYTES);
    at += HEADER_BYTES + part.length;
  }
  return bytes;
}

/** Splits received bytes into frames, and joins the frames of long messages. */
export class FrameReader {
  /** @param {number} bytesMax the longest message that is joined */
  constructor(bytesMax = Infinity) {
    this.bytesMax = bytesMax;
    this.buffered = new Uint8Array(0);
    /** @type {Uint8Array[]} */
    this.parts = [];
    this.partBytes = 0;
    /** @type {{type: number, seq: number} | null} the message whose parts are joined */
    this.open = null;
  }

  /**
   * @param {Uint8Array} data
   * @returns {Message[]} the messages that are whole now
   */
  receive(data) {
    const bytes = this.buffered.length ? concatenate([this.buffered, data]) : data;
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    /** @type {Message[]} */
    const messages = [];
    let at = 0;
    while (bytes.length - at >= HEADER_BYTES) {
      const end = at + HEADER_BYTES + view.getUint16(at + 3);
      if (end > bytes.length) break;
      const payload = bytes.slice(at + HEADER_BYTES, end);
      const message = this.join(view.getUint8(at), view.getUint16(at + 1), payload);
      if (message) messages.push(message);
      at = end;
    }
    this.buffered = bytes.slice(at);
    return messages;
  }

  /**
   * A frame of another message between the parts of one drops what was joined.
   * @param {number} type
   * @param {number} seq
   * @param {Uint8Array} payload
   * @returns {Message | null}
   */
  join(type, seq, payload) {
    const code = type & ~MORE;
    if (this.open && (this.open.type !== code || this.open.seq !== seq)) this.drop();
    if (type & MORE) {
      this.open = { type: code, seq };
      this.parts.push(payload);
      this.partBytes += payload.length;
      if (this.partBytes > this.bytesMax) throw new RangeError("a message is too long");
      return null;
    }
    const whole = this.open ? concatenate([...this.parts, payload]) : payload;
    this.drop();
    return { type: code, seq, payload: whole };
  }

  drop() {
    this.open = null;
    this.parts = [];
    this.partBytes = 0;
  }
}

/** @param {Uint8Array[]} parts */
function concatenate(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** @param {unknown} value */
export function encodeJson(value) {
  return encoder.encode(JSON.stringify(value));
}

/**
 * @param {Uint8Array} payload
 * @returns {any}
 */
export function decodeJson(payload) {
  return payload.length ? JSON.parse(decoder.decode(payload)) : {};
}
