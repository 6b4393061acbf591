/** Failures, acts on many jobs, schedules, the checks of the doctor, and the audit. */
import type { Scanned, State } from "./common";
import type { Job } from "./jobs";

export interface FailureGroup {
  key: string;
  task: string;
  queue: string;
  signature: string;
  jobs: number;
  first: number;
  last: number;
  sample: string;
  error: string;
  spark: number[];
}

export interface Failures extends Scanned {
  groups: FailureGroup[];
  total: number;
  capped: boolean;
}

export type Act = "retry" | "cancel" | "run_now" | "delete";

/** The names of `GET /v1/jobs`. */
export type Filter = Partial<
  Record<"state" | "status" | "task" | "queue" | "label" | "q" | "workflow" | "parent", string>
> &
  Partial<Record<"since" | "before", number>>;

export interface OperationAsked {
  act: Act;
  ids?: string[];
  filter?: Filter;
  group?: { key: string };
  tree?: boolean;
  created_before: number;
  dry?: boolean;
}

export interface DryRun {
  matches: number;
  capped: boolean;
  samples: Job[];
  words: string;
}

export interface Operation {
  id: string;
  act: Act;
  words: string;
  state: "running" | "done" | "stopped" | "failed";
  done: number;
  passed_over: Record<string, number>;
  scanned: number;
  total: number | null;
  began_at: number;
  ended_at: number | null;
  by: string;
  error: string | null;
}

export interface Schedule {
  name: string;
  timing: string;
  task: string;
  catch_up: "one" | "all" | "skip";
  overlap: "allow" | "skip";
  paused: boolean;
  next_at: number | null;
  last: string | null;
  error: string | null;
  upcoming: number[];
  words: string;
  cron: string | null;
  every: number | null;
  /** null: the schedule has a function of the code, or counts seconds. */
  tz: string | null;
  declared: boolean;
  recent: { id: string; state: State; at: number }[];
}

export type SchedulePreview = Pick<Schedule, "words" | "upcoming">;

export interface Doctor {
  at: number;
  checks: { verdict: "ok" | "warning" | "error"; name: string; text: string; advice: string | null }[];
}

export interface AuditEntry {
  id: string;
  at: number;
  ended_at: number | null;
  by: string;
  from: "api" | "cli" | "python" | "mcp" | "server";
  act: string;
  target: string;
  filter: string | null;
  done: number | null;
  passed_over: Record<string, number> | null;
  error: string | null;
  ids: string[];
}

export type Audit = { entries: AuditEntry[]; cursor: string | null };
