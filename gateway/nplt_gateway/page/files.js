/** Files of prompts: chips, pictures and downloads. Nothing that was uploaded is ever rendered as a
 * document: pictures are recognized by their first bytes, all else can only be saved. */

import { h, icon } from "./dom.js";
import { size } from "./text.js";

const PICTURE_BYTES_MAX = 20 * 1024 * 1024;
/** @type {[string, number[]][]} */
const PICTURES = [
  ["image/png", [0x89, 0x50, 0x4e, 0x47]],
  ["image/jpeg", [0xff, 0xd8, 0xff]],
  ["image/gif", [0x47, 0x49, 0x46, 0x38]],
  ["image/webp", [0x52, 0x49, 0x46, 0x46]],
];

/** @param {Blob} blob @returns {Promise<string | null>} the type of a picture */
async function pictureType(blob) {
  const head = new Uint8Array(await blob.slice(0, 12).arrayBuffer());
  const found = PICTURES.find(([, mark]) => mark.every((byte, at) => head[at] === byte));
  if (found?.[0] === "image/webp" && head[8] !== 0x57) return null;
  return found?.[0] ?? null;
}

/** @param {Blob} blob @param {string} name */
export function save(blob, name) {
  const url = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/**
 * @param {import("./client.js").Client} client
 * @param {any} file
 * @returns {HTMLElement}
 */
export function attachmentChip(client, file) {
  const name = file.filename ?? "file";
  const sessionId = client.conversation.id;
  const download = async () => {
    try {
      save(await client.download(file.file_id, sessionId), name);
    } catch (error) {
      client.fail(error);
    }
  };
  const chip = h(
    "button.chip",
    { type: "button", onclick: download, title: `Save ${name}` },
    icon("file"),
    h("span", {}, name),
    file.size !== undefined && h("small", {}, size(file.size)),
  );
  const mayBePicture = /\.(png|jpe?g|gif|webp)$/i.test(name) || /^image\//.test(file.content_type);
  if (mayBePicture && (file.size ?? 0) <= PICTURE_BYTES_MAX) showPicture(client, file, chip);
  return chip;
}

/**
 * @param {import("./client.js").Client} client
 * @param {any} file
 * @param {HTMLElement} chip is replaced by the picture
 */
async function showPicture(client, file, chip) {
  try {
    const blob = await client.download(file.file_id);
    const type = await pictureType(blob);
    if (!type) return;
    const image = h("img", { alt: file.filename ?? "picture" });
    image.src = URL.createObjectURL(new Blob([blob], { type }));
    chip.classList.add("picture");
    chip.replaceChildren(image);
  } catch {
    // the chip stays, and can be used to try again
  }
}
