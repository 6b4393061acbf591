/** The states of jobs as words, signs and tones. */
import type { AttemptEnd, Job, State, Status } from "../api";

export type Tone = "quiet" | "live" | "good" | "bad" | "warn" | "later";

export const STATUSES: readonly Status[] = [
  "queued",
  "running",
  "scheduled",
  "blocked",
  "waiting",
  "succeeded",
  "failed",
  "cancelled",
];

const TONES: Record<string, Tone> = {
  queued: "quiet",
  ready: "quiet",
  running: "live",
  scheduled: "later",
  deferred: "later",
  blocked: "warn",
  retrying: "warn",
  lost: "warn",
  paused: "warn",
  suspect: "warn",
  warning: "warn",
  waiting: "quiet",
  succeeded: "good",
  ok: "good",
  done: "good",
  failed: "bad",
  expired: "bad",
  error: "bad",
  cancelled: "quiet",
  stopped: "quiet",
};

export function toneOf(state: string): Tone {
  return TONES[state] ?? "quiet";
}

export function statusOf(job: Job): Status | "paused" | "suspect" {
  if (job.paused_at) return "paused";
  if (job.state === "running" && job.suspect === "waits") return "suspect"; // a worker holds it until it can run alone
  if (job.status) return job.status;
  if (job.state !== "ready") return job.state;
  return job.blocked_on ? "blocked" : job.due_at ? "scheduled" : "queued";
}

export function isFinal(state: State | Status | AttemptEnd): boolean {
  return state === "succeeded" || state === "failed" || state === "cancelled";
}

/** Why a job ended as it did, from the word in its row. */
const REASONS: Record<string, string> = {
  error: "an attempt failed and no attempts are left",
  aborted: "the task ended it at once",
  lost: "its lease expired too often",
  expired: "its deadline passed",
  children: "a child failed",
  asked: "somebody cancelled it",
  upstream: "a job it waited for did not succeed",
  superseded: "a newer job with its key replaced it",
  paused: "somebody paused it, or its attempts are used up",
};

export function reasonOf(word: string): string {
  return REASONS[word] ?? word;
}
