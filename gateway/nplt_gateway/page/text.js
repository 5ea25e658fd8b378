/** Times, sizes and counts as people read them. */

const DAY = 24 * 3600 * 1000;
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const dayOfYear = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const dayAndYear = new Intl.DateTimeFormat(undefined, {
  day: "numeric",
  month: "short",
  year: "numeric",
});
const monthAndYear = new Intl.DateTimeFormat(undefined, { month: "long", year: "numeric" });

/** @param {Date} date */
function startOfDay(date) {
  return new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
}

/** @param {string} time @param {Date} now */
export function ageGroup(time, now = new Date()) {
  const date = new Date(time);
  const days = Math.round((startOfDay(now) - startOfDay(date)) / DAY);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days < 7) return "Previous 7 days";
  if (days < 30) return "Previous 30 days";
  return monthAndYear.format(date);
}

/** @param {string | number} time @param {Date} now */
export function shortTime(time, now = new Date()) {
  const date = new Date(time);
  if (startOfDay(date) === startOfDay(now)) return clock.format(date);
  const isThisYear = date.getFullYear() === now.getFullYear();
  return (isThisYear ? dayOfYear : dayAndYear).format(date);
}

const weekday = new Intl.DateTimeFormat(undefined, { weekday: "long" });

/**
 * @param {string | Date} time that is still to come
 * @param {Date} now
 */
export function futureTime(time, now = new Date()) {
  const date = new Date(time);
  const days = Math.round((startOfDay(date) - startOfDay(now)) / DAY);
  const isThisYear = date.getFullYear() === now.getFullYear();
  let day = `on ${(isThisYear ? dayOfYear : dayAndYear).format(date)}`;
  if (days <= 0) day = "today";
  else if (days === 1) day = "tomorrow";
  else if (days < 7) day = `on ${weekday.format(date)}`;
  return `${day} at ${clock.format(date)}`;
}

/** @param {string | number} time */
export function longTime(time) {
  return new Date(time).toLocaleString();
}

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 * 1024) return `${Math.round(bytes / 1024)} KB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MB`;
}

/** @param {number} count */
export function tokens(count) {
  if (count >= 1_000_000) return `${trimmed(count / 1_000_000)}M`;
  return count >= 1_000 ? `${trimmed(count / 1_000)}k` : String(count);
}

/** @param {number} value */
function trimmed(value) {
  return value >= 100 ? String(Math.round(value)) : String(Number(value.toFixed(1)));
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 1) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 60) return `${trimmed(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** @param {string} model the name without the provider */
export function modelName(model) {
  return model.slice(model.indexOf("/") + 1);
}

/** @param {unknown} value arguments of a tool, on one line if they are short */
export function compactJson(value) {
  const entries = Object.entries(/** @type {any} */ (value ?? {}));
  return entries
    .map(([name, each]) => `${name}: ${typeof each === "string" ? each : JSON.stringify(each)}`)
    .join(", ");
}

/** @param {string} markdown the beginning of a message, to be shown in one line */
export function plainLine(markdown) {
  return markdown
    .replace(/^#{1,6} |\*\*|`+/g, "")
    .replace(/(?<!\S|\w)\*(?=\S)([^*]*[^*\s])\*(?!\w)/g, "$1");
}
