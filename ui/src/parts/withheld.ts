/** Payloads that are not shown as they are stored: the sentences about them, and what "send again" makes of it. */
import type { Job, Withheld } from "../api";

const REASONS: Partial<Record<Withheld, string>> = {
  offloaded: "their text is in the blob store, which did not return it",
  encrypted: "they are encrypted, and the server does not have the key",
  shape: "your token shows only their shape",
  unreadable: "the server cannot decode them",
};

/** A sentence about a payload of which nothing is shown as it is stored; null if it is shown. */
export function notShown(what: "arguments" | "result", why: Withheld | undefined): string | null {
  const reason = why && REASONS[why];
  if (!reason) return null;
  if (what === "arguments") return `The arguments are not shown: ${reason}.`;
  return `The result is not shown: ${reason.replace("their", "its").replace("they are", "it is").replace("them", "it")}.`;
}

/** Why no equal job can be enqueued from what the page has of this one; null: it can. */
export function noCopy(job: Job): string | null {
  return notShown("arguments", job.withheld.arguments) && "The job cannot be sent again from here: a new one would get the words above.";
}

const LOST: Record<string, string> = {
  key: "its key",
  after: "the jobs that it waits for",
  workflow: "its place in the workflow",
  headers: "its headers, which the server hides",
  "lane weight": "the weight of its lane",
};

/** "It has the same limits (smtp), timeout." and "It does not have its key." for the job that "send again" makes. */
export function copyWords({ again }: Job): string[] {
  if (!again) return [];
  const { limits = [], headers = {}, cost = 1, timeout, retry, lease, expires, max_lost, aging } = again.options;
  const named = Array.isArray(limits)
    ? limits
    : Object.entries(limits).map(([name, each]) => `${name} at a cost of ${each}`);
  const same = [
    named.length && `limits (${named.join(", ")}${cost > 1 ? `, at a cost of ${cost}` : ""})`,
    retry && "retry policy",
    timeout != null && "timeout",
    expires != null && "time in which it must end",
    lease != null && "lease",
    max_lost != null && "number of leases that may expire",
    aging && "aging",
    Object.keys(headers).length && "headers",
    "retention",
  ].filter(Boolean);
  const lost = again.without.map((each) => LOST[each] ?? each);
  return [
    `The new job has the same ${same.join(", ")}.`,
    ...(lost.length ? [`It does not have ${lost.join(", ")}.`] : []),
  ];
}
