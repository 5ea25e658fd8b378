/** Logging in: the code in the address is exchanged for a cookie, or a code or token is asked for. */

import { h } from "./dom.js";

/**
 * Uses the code of `nplt web`, if the address has one, and takes it out of the address.
 * @returns {Promise<string>} why it failed, or nothing
 */
export async function useCode() {
  const code = /^#code=([A-Za-z0-9-]+)$/.exec(location.hash)?.[1];
  if (!code) return "";
  history.replaceState(null, "", "/");
  return logIn({ code });
}

/**
 * @param {{code?: string, token?: string}} credentials
 * @returns {Promise<string>} why it failed, or nothing
 */
async function logIn(credentials) {
  try {
    const response = await fetch("/login", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(credentials),
    });
    if (response.ok) return "";
    const { error } = await response.json();
    return `${error.message.charAt(0).toUpperCase()}${error.message.slice(1)}.`;
  } catch {
    return "The server can't be reached.";
  }
}

/** @returns {Promise<{user: string | null, tokens: boolean}>} */
export async function whoAmI() {
  const response = await fetch("/login", { cache: "no-store" });
  return response.json();
}

export async function logOut() {
  await fetch("/logout", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: "{}",
  });
  localStorage.clear();
  sessionStorage.clear();
  location.replace("/");
}

/** @param {string} problem @param {boolean} takesTokens */
export function loginView(problem, takesTokens) {
  const input = h("input", {
    type: takesTokens ? "password" : "text",
    "aria-label": takesTokens ? "Code or token" : "Code",
    placeholder: takesTokens ? "Code or token" : "XXXX-XXXX-XXXX",
    autocomplete: "off",
    autocapitalize: "characters",
    spellcheck: "false",
  });
  const message = h("p.problem", { role: "alert" }, problem);
  const form = h(
    "form",
    {},
    input,
    h("button.button.primary", { type: "submit" }, "Log in"),
    message,
  );
  form.addEventListener("submit", async (/** @type {Event} */ event) => {
    event.preventDefault();
    const given = input.value.trim();
    if (!given) return;
    const isCode = /^[A-Za-z0-9]{4}(-[A-Za-z0-9]{4}){2}$/.test(given);
    const failed = await logIn(isCode || !takesTokens ? { code: given } : { token: given });
    if (failed) message.textContent = failed;
    else location.reload();
  });
  addEventListener("hashchange", async () => {
    if (!location.hash.startsWith("#code=")) return;
    const failed = await useCode();
    if (failed) message.textContent = failed;
    else location.reload();
  });
  return h(
    "main.login",
    {},
    h("span.brand", {}, "nplt"),
    h("h1", {}, "Log in"),
    h(
      "p",
      {},
      "Run ",
      h("code", {}, "nplt web"),
      " in a terminal of the server's machine: it opens this page, logged in, or prints a code. " +
        "If somebody else runs the server, ask them for a code.",
    ),
    form,
  );
}
