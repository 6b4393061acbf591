/** Commands for a terminal that act on the storage of this dashboard. */
import { me } from "../lib/session";

/** "jobs show", "1" -> "treadle jobs show 1 --url sqlite:///shop.db". With the app instead, if the server has one.
 *  An id may begin with a dash, as in "treadle jobs show --url sqlite:///shop.db -- -1". A program such as manage.py
 *  knows both. */
export function targeted(command: string, id: string): string {
  const { app, storage } = me.value ?? {};
  const target = isOwn() ? [] : app ? ["--app", app] : storage?.includes("://") ? ["--url", storage] : [];
  const parts = id.startsWith("-") ? [...target, "--", id] : [id, ...target];
  return [program(), command, ...parts.map(quoted)].join(" ");
}

/** The command that starts a worker for a queue. */
export function workerFor(queue: string): string {
  return `${worker()} --queues${queue.startsWith("-") ? "=" : " "}${quoted(queue)}`;
}

/** The command that starts a worker. */
export function worker(): string {
  return [program(), "worker", ...(isOwn() ? [] : [quoted(me.value?.app ?? "your_module:app")])].join(" ");
}

function program(): string {
  return me.value?.program ?? "treadle";
}

/** Whether the user types a program of the project, which knows its app. */
function isOwn(): boolean {
  return program() !== "treadle";
}

/** A word for a POSIX shell. */
function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}
