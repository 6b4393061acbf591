/** The overview and the metrics. */

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
