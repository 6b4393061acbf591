/** Commands for a terminal that act on the storage of this dashboard. */
import { me } from "../lib/session";

/** "jobs show 1" -> "treadle jobs show 1 --url sqlite:///shop.db". With the app instead, if the server has one. */
export function targeted(words: string): string {
  const { app, storage } = me.value ?? {};
  if (app) return `treadle ${words} --app ${quoted(app)}`;
  return storage?.includes("://") ? `treadle ${words} --url ${quoted(storage)}` : `treadle ${words}`;
}

/** The command that starts a worker for a queue. */
export function workerFor(queue: string): string {
  return `treadle worker ${quoted(me.value?.app ?? "your_module:app")} --queues ${quoted(queue)}`;
}

/** A word for a POSIX shell. */
function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}
