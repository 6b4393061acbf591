/** The types that several answers have, and those of their reader. */

export type State = "waiting" | "ready" | "running" | "succeeded" | "failed" | "cancelled";
/** The state as a reader sees it: a ready job is queued, scheduled or blocked. */
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

/** A page of a look that a bound may end early: it then has a cursor, and says how far it looked. */
export interface Scanned {
  cursor: string | null;
  scanned: number | null;
  scanned_to: number | null;
}
