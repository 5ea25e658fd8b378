/** Where a prompt is written: text, files, the model, and what sends or stops. */

import { h, icon, iconButton, keep, setText, show } from "./dom.js";
import { modelName, size } from "./text.js";

const HEIGHT_MAX = 320;
const LONG_PASTE = 8_000;

/**
 * @typedef {object} Upload
 * @property {string} key
 * @property {File} file
 * @property {number} share
 * @property {string} [file_id]
 * @property {string} [problem]
 */

export class Composer {
  /**
   * @param {import("./client.js").Client} client
   * @param {() => void} chooseModel
   * @param {(done: (time: Date) => void) => void} askTime
   */
  constructor(client, chooseModel, askTime) {
    this.client = client;
    /** @type {Upload[]} */
    this.uploads = [];
    this.shownId = "";
    this.files = h("div.chips");
    this.area = h("textarea", {
      rows: 1,
      placeholder: "Write a prompt …",
      "aria-label": "Prompt",
      enterkeyhint: "send",
      autocomplete: "off",
    });
    this.picker = h("input", { type: "file", multiple: true, hidden: true });
    this.model = h("span");
    this.sendButton = iconButton("send", "Send", () => this.send(), ".send");
    this.stopButton = iconButton("stop", "Stop the answer", () => client.cancel(), ".stop");
    this.laterButton = iconButton("clock", "Send later", () =>
      askTime((time) => this.send(time.toISOString())),
    );
    this.hint = h("span.hint");
    const addFile = iconButton("clip", "Add files", () => this.picker.click());
    const modelButton = h(
      "button.model",
      { type: "button", title: "Choose the model", onclick: chooseModel },
      this.model,
      icon("down"),
    );
    this.box = h(
      "form.composer",
      { "aria-label": "Prompt" },
      this.files,
      this.area,
      h("div.row", {}, addFile, modelButton, this.hint, this.laterButton, this.stopButton, this.sendButton),
      this.picker,
    );
    this.element = h("footer.composer-frame", {}, this.box);
    this.listen();
  }

  listen() {
    this.box.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.send();
    });
    this.area.addEventListener("input", () => {
      this.grow();
      this.client.outbox.keepDraft(this.shownId, this.area.value);
      this.render();
    });
    this.area.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.key(event));
    this.area.addEventListener("paste", (/** @type {ClipboardEvent} */ event) => this.paste(event));
    this.picker.addEventListener("change", () => {
      this.add([...(this.picker.files ?? [])]);
      this.picker.value = "";
    });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.isComposing) return;
    const isTouch = matchMedia("(pointer: coarse)").matches && !matchMedia("(hover: hover)").matches;
    if (event.key === "Enter" && !event.shiftKey && !isTouch) {
      event.preventDefault();
      this.send();
    }
  }

  /** @param {ClipboardEvent} event */
  paste(event) {
    const files = [...(event.clipboardData?.files ?? [])];
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (files.length) this.add(files);
    else if (text.length > LONG_PASTE) {
      this.add([new File([text], "pasted.txt", { type: "text/plain" })]);
    } else return;
    event.preventDefault();
  }

  /** @param {File[]} files */
  add(files) {
    for (const file of files) {
      const upload = /** @type {Upload} */ ({ key: crypto.randomUUID?.() ?? String(Math.random()), file, share: 0 });
      const most = this.client.limits.file_bytes_max ?? Infinity;
      if (file.size > most) upload.problem = `larger than ${size(most)}`;
      this.uploads.push(upload);
      if (!upload.problem) this.upload(upload);
    }
    this.render();
  }

  /** @param {Upload} upload */
  async upload(upload) {
    try {
      const stored = await this.client.upload(upload.file, (share) => {
        upload.share = share;
        this.render();
      });
      upload.file_id = stored.file_id;
      upload.share = 1;
    } catch (error) {
      upload.problem = error instanceof Error ? error.message : String(error);
    }
    this.render();
  }

  /** @param {string} [notBefore] */
  send(notBefore) {
    const text = this.area.value.trim();
    if (this.uploads.some((each) => !each.file_id && !each.problem)) return;
    const files = this.uploads.filter((each) => each.file_id);
    if (!text) return;
    this.client.prompt(
      text,
      files.map((each) => ({
        file_id: /** @type {string} */ (each.file_id),
        filename: each.file.name,
        size: each.file.size,
      })),
      notBefore ? { not_before: notBefore } : {},
    );
    this.uploads = [];
    this.write("");
    this.area.focus();
    this.onsent();
  }

  onsent() {}

  /** @param {string} text */
  write(text) {
    this.area.value = text;
    this.client.outbox.keepDraft(this.shownId, text);
    this.grow();
    this.render();
  }

  grow() {
    this.area.style.height = "auto";
    this.area.style.height = `${Math.min(this.area.scrollHeight, HEIGHT_MAX)}px`;
  }

  render() {
    const shown = this.client.conversation;
    if (shown.id !== this.shownId) {
      const isSame = this.shownId === "" || !this.area.value;
      this.shownId = shown.id;
      const draft = this.client.outbox.draft(shown.id);
      if (isSame || draft !== this.area.value) this.area.value = draft;
      this.uploads = [];
      this.grow();
    }
    const { effort } = shown.options;
    setText(this.model, [modelName(shown.model) || "Model", effort].filter(Boolean).join(" · "));
    this.area.disabled = shown.problem !== "";
    this.area.placeholder = shown.problem ? "" : "Write a prompt …";
    const hasText = this.area.value.trim() !== "" && !shown.problem;
    const isUploading = this.uploads.some((each) => !each.file_id && !each.problem);
    show(this.stopButton, shown.isRunning);
    show(this.sendButton, hasText || !shown.isRunning);
    this.sendButton.disabled = !hasText || isUploading;
    show(this.laterButton, hasText && !isUploading && this.client.canSendLater);
    setText(this.hint, shown.isRunning && hasText ? "Waits until the answer is complete" : "");
    keep(
      this.files,
      this.uploads,
      (each) => each.key,
      (each) => this.chip(each),
      (element, each) => {
        element.classList.toggle("failed", Boolean(each.problem));
        element.querySelector("progress").hidden = Boolean(each.file_id || each.problem);
        element.querySelector("progress").value = each.share;
        setText(element.querySelector("small"), each.problem ?? size(each.file.size));
      },
    );
  }

  /** @param {Upload} upload */
  chip(upload) {
    const remove = () => {
      this.uploads = this.uploads.filter((each) => each !== upload);
      this.render();
    };
    return h(
      "div.chip",
      {},
      icon("file"),
      h("span", {}, upload.file.name || "file"),
      h("small"),
      h("progress", { max: 1, value: 0, "aria-label": "upload" }),
      iconButton("close", "Remove", remove),
    );
  }
}
