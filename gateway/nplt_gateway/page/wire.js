/**
 * The connection to the server: HELLO, requests and their replies, events, and reconnecting.
 *
 * A lost connection is opened again at once when the page wakes up or the network is back, and
 * otherwise after a growing pause. Requests that have no reply when the connection is lost fail with
 * `ConnectionLost`; whoever sent them decides whether to send them again.
 */

import * as code from "./frames.js";

const PAUSE_MIN = 400;
const PAUSE_MAX = 5_000;
const WELCOME_MAX = 8_000;
const PING_EVERY = 20_000;
const PONG_MAX = 8_000;
const PONG_MAX_AWAKE = 2_500;
const KEEPALIVE_SECONDS = 150;

/** The server refused a request. */
export class Refused extends Error {
  /** @param {any} report the payload of ERROR */
  constructor(report) {
    super(report.message);
    this.code = String(report.code);
    this.field = report.field;
    this.retryable = Boolean(report.retryable);
    this.retryAfter = report.retry_after;
    this.details = report;
  }
}

export class ConnectionLost extends Error {
  constructor() {
    super("the connection to the server was lost");
  }
}

/**
 * @typedef {object} Listener
 * @property {(welcome: any) => void} welcomed
 * @property {() => void} lost the connection ended, or could not be opened
 * @property {() => void} loggedOut the server does not know this browser
 * @property {(type: number, event: any) => void} received an event
 */

/**
 * @typedef {object} Waiting
 * @property {(reply: any) => void} resolve
 * @property {(error: Error) => void} reject
 * @property {(reply: any) => void} apply is called before the events that follow the reply
 * @property {boolean} isRaw
 */

export class Wire {
  /**
   * @param {string} url
   * @param {Listener} listener
   */
  constructor(url, listener) {
    this.url = url;
    this.listener = listener;
    /** @type {WebSocket | null} */
    this.socket = null;
    this.isOnline = false;
    this.isStopped = false;
    /** @type {string | undefined} */
    this.token = undefined;
    this.seq = 0;
    this.pause = PAUSE_MIN;
    /** When the next attempt begins, as milliseconds since the epoch; 0 during one. */
    this.retryAt = 0;
    /** @type {Map<number, Waiting>} */
    this.waiting = new Map();
    this.reader = new code.FrameReader();
    this.heardAt = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.pongTimer = undefined;
  }

  connect() {
    clearTimeout(this.timer);
    this.isStopped = false;
    this.retryAt = 0;
    const socket = new WebSocket(this.url);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.reader = new code.FrameReader();
    this.waiting.clear();
    this.seq = 0;
    this.timer = setTimeout(() => this.end(socket), WELCOME_MAX);
    socket.onopen = () => this.greet(socket);
    socket.onmessage = (message) => this.receive(socket, message.data);
    socket.onclose = () => this.end(socket);
  }

  /** @param {WebSocket} socket */
  async greet(socket) {
    const hello = {
      versions: [3],
      client: "nplt-page/1",
      keepalive: KEEPALIVE_SECONDS,
      token: this.token,
      features: ["later"],
    };
    try {
      await this.request(code.HELLO, hello, (welcome) => {
        clearTimeout(this.timer);
        this.isOnline = true;
        this.pause = PAUSE_MIN;
        this.reader.bytesMax = 4 * (welcome.limits?.message_bytes_max ?? 1 << 20);
        this.watchSilence();
        this.listener.welcomed(welcome);
      });
    } catch (error) {
      if (!(error instanceof Refused) || error.code !== "unauthorized") {
        this.end(socket);
        return;
      }
      this.stop();
      this.listener.loggedOut();
    }
  }

  /** Ends the connection and opens no other one. */
  stop() {
    this.isStopped = true;
    if (this.socket) this.end(this.socket);
    clearTimeout(this.timer);
  }

  /**
   * Handles the end of a connection, and plans the next one.
   * @param {WebSocket} socket
   */
  end(socket) {
    if (this.socket !== socket) return;
    this.socket = null;
    this.isOnline = false;
    clearTimeout(this.timer);
    clearTimeout(this.pongTimer);
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
    const waiting = [...this.waiting.values()];
    this.waiting.clear();
    for (const each of waiting) each.reject(new ConnectionLost());
    if (!this.isStopped) {
      const pause = this.pause * (0.5 + Math.random() / 2);
      this.pause = Math.min(this.pause * 2, PAUSE_MAX);
      this.retryAt = Date.now() + pause;
      this.timer = setTimeout(() => this.connect(), pause);
    }
    this.listener.lost();
  }

  /**
   * The page is shown again, or the network is back: connects at once, or finds out at once whether
   * the connection still exists.
   */
  wake() {
    if (this.isStopped) return;
    if (this.isOnline) this.ping(PONG_MAX_AWAKE);
    else if (!this.socket || this.retryAt) {
      this.pause = PAUSE_MIN;
      this.connect();
    }
  }

  watchSilence() {
    const socket = this.socket;
    this.timer = setTimeout(() => {
      if (!this.isOnline || this.socket !== socket) return;
      this.ping(PONG_MAX);
      this.watchSilence();
    }, PING_EVERY);
  }

  /** @param {number} patience milliseconds until a connection without an answer counts as lost */
  ping(patience) {
    const socket = this.socket;
    if (!socket) return;
    const sentAt = performance.now();
    this.send(code.PING, 0xffff, new Uint8Array(0));
    clearTimeout(this.pongTimer);
    this.pongTimer = setTimeout(() => {
      if (this.socket === socket && this.heardAt < sentAt) this.end(socket);
    }, patience);
  }

  /**
   * @param {number} type
   * @param {Record<string, unknown>} fields
   * @param {(reply: any) => void} apply is called before the events that follow the reply
   * @returns {Promise<any>} the reply, or a `Refused` or `ConnectionLost`
   */
  request(type, fields = {}, apply = () => {}) {
    return this.requestBytes(type, code.encodeJson(fields), { apply }).reply;
  }

  /**
   * @param {number} type
   * @param {Uint8Array} payload
   * @param {{isRaw?: boolean, apply?: (reply: any) => void}} options `isRaw`: the reply is bytes
   * @returns {{seq: number, reply: Promise<any>}}
   */
  requestBytes(type, payload, { isRaw = false, apply = () => {} } = {}) {
    const isHello = type === code.HELLO;
    if (!this.socket || (!this.isOnline && !isHello)) {
      return { seq: 0, reply: Promise.reject(new ConnectionLost()) };
    }
    const seq = this.nextSeq();
    const reply = new Promise((resolve, reject) => {
      this.waiting.set(seq, { resolve, reject, apply, isRaw });
    });
    this.send(type, seq, payload);
    return { seq, reply };
  }

  nextSeq() {
    do {
      this.seq = (this.seq % 0xfffe) + 1;
    } while (this.waiting.has(this.seq));
    return this.seq;
  }

  /**
   * @param {number} type
   * @param {number} seq
   * @param {Uint8Array} payload
   */
  send(type, seq, payload) {
    if (this.socket?.readyState === WebSocket.OPEN) {
      this.socket.send(/** @type {any} */ (code.encodeMessage(type, seq, payload)));
    }
  }

  /**
   * @param {WebSocket} socket
   * @param {ArrayBuffer} data
   */
  receive(socket, data) {
    if (this.socket !== socket) return;
    this.heardAt = performance.now();
    try {
      for (const message of this.reader.receive(new Uint8Array(data))) this.handle(message);
    } catch (error) {
      console.error(error);
      this.end(socket);
    }
  }

  /** @param {code.Message} message */
  handle({ type, seq, payload }) {
    if (type === code.PING) {
      this.send(code.PONG, seq, payload);
      return;
    }
    if (type === code.PONG || type === code.CHAT_TEXT) return;
    const waiting = seq ? this.waiting.get(seq) : undefined;
    if (waiting) {
      this.waiting.delete(seq);
      if (type === code.ERROR) {
        waiting.reject(new Refused(code.decodeJson(payload)));
        return;
      }
      const reply = waiting.isRaw ? payload : code.decodeJson(payload);
      waiting.apply(reply);
      waiting.resolve(reply);
    } else if (!seq && this.isOnline) {
      this.listener.received(type, code.decodeJson(payload));
    }
  }
}
