/** Tasks, jobs, and what a job has been through. */
import type { Json, Scanned, State, Status } from "./common";

export interface Task {
  name: string;
  declared: boolean;
  queue: string | null;
  doc: string | null;
  parameters: Json;
  last_hour: { succeeded: number; failed: number; retried: number };
  run_p95: number | null;
}

export interface Job {
  id: string;
  task: string;
  queue: string;
  state: State;
  status: Status;
  priority: number;
  args: Json[];
  kwargs: Record<string, Json>;
  version: number;
  attempt: number;
  lost: number;
  suspect?: "waits" | "alone" | null;
  result: Json;
  error: string | null;
  reason: string | null;
  progress: number | null;
  note: string | null;
  key: string | null;
  lane: string | null;
  labels: string[];
  headers: Record<string, string>;
  after: string[];
  pending: number;
  workflow: string;
  parent: string | null;
  worker: string | null;
  blocked_on: string | null;
  due_at: number | null;
  created_at: number;
  started_at: number | null;
  ended_at: number | null;
  deadline_at: number | null;
  reopenings?: number;
  function_done?: boolean;
  expires_at?: number | null;
  queue_position?: number | null;
  limits?: string[];
  withheld: Partial<Record<"arguments" | "result" | "headers", Withheld>>;
  again?: Again;
  warning?: string;
}

/** Why a payload is not shown as it is stored. */
export type Withheld = "hidden" | "shape" | "offloaded" | "encrypted" | "unreadable" | "typed";

/** The request for an equal job, and what such a job does not have. */
export interface Again {
  options: JobOptions;
  without: string[];
}

/** The options of a request for a job, as far as a stored job has them. */
export interface JobOptions {
  queue?: string;
  priority?: number;
  timeout?: number | null;
  expires?: number;
  retry?: object;
  lease?: number;
  max_lost?: number;
  lane?: string;
  limits?: string[];
  cost?: number;
  aging?: number;
  keep?: number;
  keep_failed?: number;
  labels?: string[] | Record<string, string>;
  headers?: Record<string, string>;
}

export interface Page extends Scanned {
  jobs: Job[];
  total: number | null;
  warning?: string;
}

export interface Explanation {
  text: string;
  position: number | null;
}

export interface Range {
  low: number;
  median: number;
  high: number;
}

/** When a job starts; null: it has begun or ended, or does not begin by itself. */
export interface Estimate {
  at: number;
  start: Range | null;
}

export interface LogLine {
  at: number;
  level: string;
  text: string;
}

type Ending = "succeeded" | "failed" | "cancelled" | "expired" | "lost";
export type AttemptEnd = Ending | "retrying" | "deferred" | "running";

export interface Attempt {
  number: number;
  reopening: number;
  started_at: number | null; // null: it ended before a run began, or nobody stored when
  ended_at: number | null;
  worker: string | null;
  outcome: AttemptEnd;
  error: string | null;
  reason: string | null;
  delay: number | null;
  logs: LogLine[];
}

export interface Step {
  name: string;
  kind: "step" | "sleep" | "signal" | "once";
  value: Json;
  until: number | null;
  done: boolean;
}

export interface SignalRow {
  name: string;
  given: boolean;
  value: Json;
  at: number | null;
}

export interface History {
  attempts: Attempt[];
  steps: Step[];
  signals: SignalRow[];
  children: Partial<Record<State, number>>;
  children_capped: boolean;
}
