/** The types of the HTTP API. Durations are in seconds, instants in seconds since 1970. */

export type State = "waiting" | "ready" | "running" | "succeeded" | "failed" | "cancelled";
/** What a reader sees: a ready job is queued, scheduled or blocked. */
export type Status = "queued" | "scheduled" | "blocked" | Exclude<State, "ready">;
export type Scope = "enqueue" | "read" | "operate" | "work";
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

export interface ProblemBody {
  error: string;
  message: string;
  details?: Record<string, Json>;
}

export interface Me {
  name: string;
  scopes: Scope[];
  queues: string[];
  payloads: boolean;
  auth: "none" | "token" | "session" | "host";
  version: string;
  storage: string;
  app: string | null;
  now: number;
  features: { logs: boolean; metrics: boolean };
}

// --- overview

export interface Pause {
  name?: string;
  why: string;
  until: number | null;
}

export interface QueueRow {
  name: string;
  paused: boolean;
  paused_by: string | null;
  pauses: Pause[];
  queued: number;
  queued_capped: boolean;
  oldest: number | null;
  running: number;
  scheduled: number;
  blocked: number;
  waiting: number;
  failed: number;
  max_waiting: number | null;
  when_full: WhenFull | null;
  filled: number | null;
  filled_capped: boolean;
  full: boolean;
  workers: number;
  ended_rate: number | null;
  spark: number[];
}

export interface Worker {
  worker: string;
  host: string;
  pid: number;
  queues: string[];
  tasks: string[];
  slots: number;
  running: number;
  uptime: number;
  ttl: number;
  gone: boolean;
  paused: number;
  gathering: [string, number, number][];
  draining: string;
  age: number;
  labels: [string, string][];
  resources: [string, number, number][]; // name, what it has, what its running jobs use
  reserved: string;
  leader: boolean;
}

export interface Rule {
  name: string;
  slots: number | null;
  rate: number | null;
  per: number;
  how: "window" | "bucket";
  burst: number | null;
  hold: "running" | "ended";
  max_waiting: number | null;
  when_full: WhenFull;
}

export type WhenFull = "refuse" | "drop_oldest" | "drop_lowest";

export interface LimitUse {
  key: string;
  rule: Rule;
  used: number;
  blocked: number;
  starts: number;
  next_start: number | null;
  pauses: Pause[];
  behind: Rule | null;
  declared: boolean;
}

export interface Notice {
  level: "info" | "warning" | "error";
  text: string;
  advice: string | null;
  href: string | null;
}

export type Count = "queued" | "running" | "scheduled" | "blocked" | "waiting" | "failed";

export interface Overview {
  at: number;
  cost_ms: number;
  every: number;
  totals: Record<Count, number> & { slots: number; capped: Count[] };
  queues: QueueRow[];
  workers: Worker[];
  limits: LimitUse[];
  leader: string | null;
  health: number | null;
  rates: Record<"succeeded" | "failed" | "retried" | "run_p50" | "run_p95" | "wait_p50" | "wait_p95", number | null>;
  notices: Notice[];
}

export interface Quantiles {
  p50: (number | null)[];
  p95: (number | null)[];
  p99: (number | null)[];
}

export interface Metrics {
  from: number;
  to: number;
  step: number;
  at: number[];
  succeeded: (number | null)[];
  failed: (number | null)[];
  retried: (number | null)[];
  other: (number | null)[];
  run: Quantiles;
  wait: Quantiles;
  sampled: number;
  since: number | null;
}

// --- tasks and jobs

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
  timeout?: number | null;
  warning?: string;
}

/** A page of a look that a bound may end early: it then has a cursor, and says how far it looked. */
interface Scanned {
  cursor: string | null;
  scanned: number | null;
  scanned_to: number | null;
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

// --- workflows

export interface Workflow {
  id: string;
  task: string;
  queue: string;
  state: State;
  created_at: number;
  ended_at: number | null;
  jobs: number;
  done: number;
  failed: number;
  running: number;
  capped: boolean;
}

export interface Workflows extends Scanned {
  workflows: Workflow[];
}

export interface GraphNode {
  id: string;
  task: string;
  state: State;
  x: number;
  y: number;
  width: number;
  height: number;
  kind: "job" | "joint" | "fold";
  jobs: number;
  states: Partial<Record<State, number>>;
  note: string | null;
}

export interface Graph {
  width: number;
  height: number;
  nodes: GraphNode[];
  edges: { from: string; to: string; path: [number, number][] }[];
  total: number;
  shown: number;
  capped: boolean;
}

// --- failures, operations, schedules, health, activity

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
