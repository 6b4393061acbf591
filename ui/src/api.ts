/** The types of the HTTP API, from its OpenAPI document. Written by `python -m tools.apitypes`.
 *
 * Durations are in seconds, instants in seconds since 1970. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

export type Act = "cancel" | "delete" | "retry" | "run_now";

export type AttemptEnd = "cancelled" | "deferred" | "expired" | "failed" | "lost" | "retrying" | "running" | "succeeded";

export type Counted = "blocked" | "failed" | "queued" | "running" | "scheduled" | "waiting";

export type Scope = "enqueue" | "operate" | "read" | "work";

export type Status = "blocked" | "cancelled" | "failed" | "queued" | "running" | "scheduled" | "succeeded" | "waiting";

export type WhenFull = "drop_lowest" | "drop_oldest" | "refuse";

export type Withheld = "encrypted" | "hidden" | "offloaded" | "shape" | "typed" | "unreadable";

export interface Acted {
  jobs: number;
  warning?: string;
}

export interface Again {
  options: JobOptions;
  without: string[];
}

export interface Answered {
  value: Json;
}

export interface ApprovalsAsked {
  by?: string | null;
  queue?: string | null;
  job?: string | null;
  mine?: boolean;
  cursor?: string | null;
  limit?: number;
}

export interface ApprovalsShown {
  requests: RequestShown[];
  cursor: string | null;
}

export interface Arrow {
  from: string;
  to: string;
  path: [number, number][];
}

export interface AskSent {
  name: string;
  value?: Json;
  key?: string | null;
  timeout?: number;
}

export interface AuditAsked {
  cursor?: string | null;
  limit?: number;
}

export interface AuditEntry {
  id: string;
  at: number;
  ended_at: number | null;
  by: string;
  from: "api" | "cli" | "mcp" | "python" | "server";
  act: string;
  target: string;
  filter: string | null;
  done: number | null;
  passed_over: { [name: string]: number } | null;
  error: string | null;
  ids: string[];
}

export interface AuditPage {
  entries: AuditEntry[];
  cursor: string | null;
}

export interface Cancel {
  tree?: boolean;
  force?: boolean;
}

export interface Change {
  what: string;
  when: ModelRange | null;
  command: string | null;
}

export interface Check {
  verdict: "error" | "ok" | "warning";
  name: string;
  text: string;
  advice: string | null;
}

export interface Count {
  queue: string;
  task: string;
  state: State;
  jobs: number;
  queued: number;
  blocked: number;
  oldest: number | null;
}

export interface Counts {
  succeeded: number;
  failed: number;
  retried: number;
}

export interface Decided {
  approved: boolean;
  by: string;
  reason: string;
  at: number;
}

export interface DecisionMade {
  approved: boolean;
  reason?: string;
}

export interface Estimate {
  id: string;
  at: number;
  explanation: string;
  start: ModelRange | null;
  end: ModelRange | null;
  ahead: number;
  left_out: number;
  simulations: number;
  changes: Change[];
  assumptions: string[];
}

export interface Examined {
  at: number;
  checks: Check[];
}

export interface Explained {
  text: string;
  position: number | null;
}

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

export interface FailureGroups {
  groups: FailureGroup[];
  total: number;
  capped: boolean;
  scanned: number;
  scanned_to: number | null;
  cursor: string | null;
  since: number | null;
  until: number | null;
}

export interface FailuresAsked {
  scan?: number;
  queue?: string | null;
  task?: string | null;
  cursor?: string | null;
}

export interface Features {
  logs: boolean;
  metrics: boolean;
}

export interface FilterAsked {
  state?: string | null;
  status?: Status | null;
  q?: string | null;
  task?: string | null;
  queue?: string | null;
  workflow?: string | null;
  parent?: string | null;
  label?: string | null;
  since?: number | null;
  before?: number | null;
}

export interface Fork {
  from_step?: string | null;
  args?: Json[] | null;
  kwargs?: { [name: string]: Json } | null;
}

export interface Graph {
  width: number;
  height: number;
  nodes: Node[];
  edges: Arrow[];
  total: number;
  shown: number;
  capped: boolean;
}

export interface GraphAsked {
  fold?: number;
  open?: string | null;
}

export interface GroupAsked {
  key: string;
}

export interface JobAsked {
  task: string;
  args?: Json[];
  kwargs?: { [name: string]: Json };
  queue?: string;
  priority?: number;
  delay?: number;
  run_at?: number;
  deadline?: number;
  expires?: number;
  timeout?: number | null;
  retry?: RetryAsked;
  lease?: number;
  max_lost?: number;
  key?: string | KeyAsked;
  lane?: string;
  limits?: string[] | { [name: string]: number };
  cost?: number;
  aging?: number;
  keep?: number;
  keep_failed?: number;
  after?: string[];
  when?: WhenAsked;
  wait_timeout?: number;
  pass_result?: boolean;
  labels?: string[] | { [name: string]: string };
  headers?: { [name: string]: string };
  id?: string;
}

export interface JobAttempt {
  number: number;
  reopening: number;
  started_at: number | null;
  ended_at: number | null;
  worker: string | null;
  outcome: AttemptEnd;
  error: string | null;
  reason: string | null;
  delay: number | null;
}

export interface JobHistory {
  attempts: JobAttempt[];
  steps: Step[];
  signals: Signal[];
  values: { [name: string]: Json };
  streams: string[];
  children: { [name: string]: number };
  children_capped: boolean;
}

export interface JobOptions {
  queue?: string;
  priority?: number;
  delay?: number;
  run_at?: number;
  deadline?: number;
  expires?: number;
  timeout?: number | null;
  retry?: RetryAsked;
  lease?: number;
  max_lost?: number;
  key?: string | KeyAsked;
  lane?: string;
  limits?: string[] | { [name: string]: number };
  cost?: number;
  aging?: number;
  keep?: number;
  keep_failed?: number;
  after?: string[];
  when?: WhenAsked;
  wait_timeout?: number;
  pass_result?: boolean;
  labels?: string[] | { [name: string]: string };
  headers?: { [name: string]: string };
  id?: string;
}

export interface Job {
  id: string;
  task: string;
  queue: string;
  state: State;
  status: Status;
  priority: number;
  args: Json[];
  kwargs: { [name: string]: Json };
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
  headers: { [name: string]: string };
  after: string[];
  pending: number;
  workflow: string;
  parent: string | null;
  worker: string | null;
  blocked_on: string | null;
  due_at: number | null;
  paused_at: number | null;
  created_at: number;
  started_at: number | null;
  ended_at: number | null;
  deadline_at: number | null;
  expires_at: number | null;
  reopenings: number;
  function_done: boolean;
  queue_position: number | null;
  limits: string[];
  suspect: "alone" | "shares" | "waits" | null;
  withheld: { [name: string]: Withheld };
  again?: Again;
  warning?: string;
}

export interface JobViews {
  jobs: Job[];
  warning?: string;
}

export interface JobsAsked {
  jobs: JobAsked[];
}

export interface KeyAsked {
  key: string;
  conflict?: "keep" | "raise" | "replace";
  window?: number | null;
  until?: "ended" | "started";
  shared?: boolean;
}

export interface LastJob {
  id: string;
  state: State;
  at: number;
}

export interface Limit {
  name: string;
  slots: number | null;
  rate: number | null;
  per: number;
  how: "bucket" | "window";
  burst: number | null;
  hold: "ended" | "running";
  max_waiting: number | null;
  when_full: WhenFull;
}

export interface LimitAsked {
  slots?: number | null;
  rate?: number | null;
  per?: number;
  how?: "bucket" | "window";
  burst?: number | null;
  hold?: "ended" | "running";
  max_waiting?: number | null;
  when_full?: WhenFull;
}

export interface LimitUse {
  key: string;
  rule: Limit;
  used: number;
  blocked: number;
  starts: number;
  next_start: number | null;
  opens: number | null;
  pauses: Pause[];
  behind: Limit | null;
  declared: boolean;
}

export interface LimitViews {
  limits: LimitUse[];
}

export interface LinkAsked {
  to: string;
  expires?: number;
}

export interface LinkMade {
  url: string;
  expires_at: number;
}

export interface Listing {
  state?: string | null;
  status?: Status | null;
  q?: string | null;
  task?: string | null;
  queue?: string | null;
  workflow?: string | null;
  parent?: string | null;
  label?: string | null;
  since?: number | null;
  before?: number | null;
  worker?: string | null;
  scan?: number | null;
  order?: "due" | "ended" | "newest" | "oldest" | "queue" | "started";
  cursor?: string | null;
  limit?: number;
  count?: boolean;
}

export interface Me {
  name: string;
  scopes: Scope[];
  queues: string[];
  payloads: boolean;
  auth: "host" | "none" | "session" | "token";
  version: string;
  storage: string;
  app: string | null;
  program: string;
  now: number;
  features: Features;
}

export interface MessageSent {
  name: string;
  value?: Json;
  key?: string | null;
}

export interface Metrics {
  from: number;
  to: number;
  step: number;
  at: number[];
  succeeded: number[];
  failed: number[];
  retried: number[];
  other: number[];
  run: QuantileSeries;
  wait: QuantileSeries;
  sampled: number;
  since: number | null;
  unreadable: number;
}

export interface Needs {
  task: string;
  requires: [string, string[]][];
  uses: [string, number][];
}

export interface Node {
  id: string;
  task: string;
  state: State;
  x: number;
  y: number;
  width: number;
  height: number;
  kind: "fold" | "job" | "joint";
  jobs: number;
  states: { [name: string]: number };
  note: string | null;
  workflow_value: boolean;
}

export interface Noted {
  warning?: string;
}

export interface Nothing {
}

export interface Notice {
  level: "error" | "info" | "warning";
  text: string;
  advice: string;
  href: string;
}

export interface Operation {
  id: string;
  act: Act;
  words: string;
  state: "done" | "failed" | "running" | "stopped";
  done: number;
  passed_over: { [name: string]: number };
  scanned: number;
  total: number | null;
  more: boolean;
  began_at: number;
  ended_at: number | null;
  by: string;
  error: string | null;
}

export interface OperationAsked {
  act: Act;
  ids?: string[];
  filter?: FilterAsked;
  group?: GroupAsked;
  tree?: boolean;
  at_most?: number | null;
  created_before: number;
  dry?: boolean;
}

export interface Overview {
  at: number;
  cost_ms: number;
  every: number;
  totals: Totals;
  queues: QueueOverview[];
  workers: Worker[];
  limits: LimitUse[];
  leader: string | null;
  health: number | null;
  rates: Rates;
  notices: Notice[];
}

export interface Page {
  jobs: Job[];
  cursor: string | null;
  total: number | null;
  scanned: number | null;
  scanned_to: number | null;
  warning?: string;
}

export interface Patience {
  timeout?: number;
}

export interface Pause {
  type: "pause";
  name: string;
  why: "held" | "paused";
  until: number | null;
}

export interface PauseView {
  why: "held" | "paused";
  until: number | null;
}

export interface Presence {
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
  versions: string[];
  labels: [string, string][];
  resources: [string, number, number][];
  needs: Needs[];
  reserved: string;
}

export interface Preview {
  matches: number;
  capped: boolean;
  samples: Job[];
  words: string;
  warning?: string;
}

export interface Problem {
  error: string;
  message: string;
  details?: { [name: string]: Json };
}

export interface ProgressList {
  operations: Operation[];
}

export interface QuantileSeries {
  p50: (number | null)[];
  p95: (number | null)[];
  p99: (number | null)[];
}

export interface QueueOverview {
  name: string;
  paused: boolean;
  paused_by: string | null;
  pauses: PauseView[];
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
  unplaced: number;
  workers: number;
  ended_rate: number | null;
  spark: number[];
}

export interface QueuePlan {
  queue: string;
  at: number;
  queued: number;
  running: number;
  blocked: number;
  scheduled: number;
  workers: number;
  slots: number;
  arriving: number;
  leaving: number | null;
  utilisation: number | null;
  empty: ModelRange | null;
  bottleneck: string | null;
  left_out: number;
  simulations: number;
  changes: Change[];
  assumptions: string[];
}

export interface Queue {
  name: string;
  paused: boolean;
  waiting: number;
  ready: number;
  queued: number;
  blocked: number;
  running: number;
  succeeded: number;
  failed: number;
  cancelled: number;
  oldest: number | null;
  max_waiting: number | null;
  when_full: WhenFull | null;
}

export interface QueueViews {
  queues: Queue[];
}

export interface Rates {
  succeeded: number | null;
  failed: number | null;
  retried: number | null;
  run_p50: number | null;
  run_p95: number | null;
  wait_p50: number | null;
  wait_p95: number | null;
}

export interface RequestShown {
  id: string;
  job: string;
  name: string;
  task: string;
  queue: string;
  by: string;
  show: Json;
  asked_at: number;
  until: number | null;
  state: string;
  decision: Decided | null;
  may_decide: boolean;
}

export interface Rerun {
  from_step?: string | null;
}

export interface RetryAsked {
  attempts?: number | null;
  base?: number;
  factor?: number;
  max?: number;
  jitter?: number;
  then?: "fail" | "pause";
}

export interface Scale {
  load: number;
  queued: number;
  running: number;
  due_soon: number;
  blocked: number;
  oldest: number;
  slots: number;
  workers: number;
  capped: boolean;
  age: number;
}

export interface ScaleQuery {
  queue?: string[];
}

export interface ScheduleAsked {
  job?: JobAsked | null;
  cron?: string | null;
  every?: number | null;
  tz?: string;
  catch_up?: "all" | "one" | "skip" | null;
  overlap?: "allow" | "skip" | null;
}

export interface Schedule {
  name: string;
  timing: string;
  words: string;
  cron: string | null;
  tz: string | null;
  every: number | null;
  declared: boolean;
  upcoming: number[];
  recent: LastJob[];
  task: string;
  catch_up: "all" | "one" | "skip";
  overlap: "allow" | "skip";
  paused: boolean;
  next_at: number | null;
  last: string | null;
  error: string | null;
}

export interface ScheduleViews {
  schedules: Schedule[];
}

export interface SignIn {
  token: string;
}

export interface Signal {
  name: string;
  given: boolean;
  value: Json;
  at: number | null;
}

export interface SignalAsked {
  name: string;
  value?: Json;
}

export type State = "cancelled" | "failed" | "ready" | "running" | "succeeded" | "waiting";

export interface Stats {
  counts: Count[];
  workers: Presence[];
  limits: LimitUse[];
}

export interface Step {
  name: string;
  kind: "approval" | "child" | "lock" | "patch" | "signal" | "sleep" | "step" | "timeout" | "once";
  value: Json;
  until: number | null;
  done: boolean;
  failed: boolean;
}

export interface StreamEntry {
  offset: number;
  step: string;
  value?: Json;
  to?: number;
}

export interface StreamNames {
  names: string[];
}

export interface StreamPage {
  entries: StreamEntry[];
  next: number;
  ended: boolean;
}

export interface StreamRead {
  from?: number;
  limit?: number;
  wait?: number;
}

export interface Task {
  name: string;
  declared: boolean;
  queue: string | null;
  doc: string | null;
  parameters: { [name: string]: Json } | null;
  last_hour: Counts;
  run_p95: number | null;
}

export interface TaskViews {
  tasks: Task[];
}

export interface TimingAsked {
  cron?: string | null;
  every?: number | null;
  tz?: string;
}

export interface Timing {
  words: string;
  upcoming: number[];
}

export interface Totals {
  queued: number;
  running: number;
  scheduled: number;
  blocked: number;
  waiting: number;
  failed: number;
  slots: number;
  capped: Counted[];
}

export interface ValueRead {
  name: string;
  timeout?: number;
}

export interface WhenAsked {
  required?: number | null;
  of?: "done" | "succeeded";
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
  versions: string[];
  labels: [string, string][];
  resources: [string, number, number][];
  needs: Needs[];
  reserved: string;
  leader: boolean;
}

export interface Workers {
  workers: Presence[];
}

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

export interface WorkflowPage {
  workflows: Workflow[];
  cursor: string | null;
  scanned: number;
  scanned_to: number | null;
}

export interface WorkflowsAsked {
  state?: string | null;
  queue?: string | null;
  scan?: number | null;
  cursor?: string | null;
  limit?: number;
}

export interface ModelRange {
  low: number;
  median: number;
  high: number;
}

export interface MetricsRange {
  from?: number | null;
  to?: number | null;
  step?: number | null;
  queue?: string | null;
  task?: string | null;
}

export interface Answers {
  "DELETE /v1/jobs/{id}": Acted;
  "DELETE /v1/limits/{name}": Noted;
  "DELETE /v1/operations/{id}": Operation;
  "DELETE /v1/schedules/{name}": Nothing;
  "GET /v1/approvals": ApprovalsShown;
  "GET /v1/approvals/{id}": RequestShown;
  "GET /v1/audit": AuditPage;
  "GET /v1/doctor": Examined;
  "GET /v1/failures": FailureGroups;
  "GET /v1/jobs": Page;
  "GET /v1/jobs/{id}": Job;
  "GET /v1/jobs/{id}/eta": Estimate;
  "GET /v1/jobs/{id}/explain": Explained;
  "GET /v1/jobs/{id}/history": JobHistory;
  "GET /v1/jobs/{id}/streams": StreamNames;
  "GET /v1/jobs/{id}/streams/{name}": StreamPage;
  "GET /v1/jobs/{id}/value": Answered;
  "GET /v1/jobs/{id}/wait": Job;
  "GET /v1/limits": LimitViews;
  "GET /v1/me": Me;
  "GET /v1/metrics": Metrics;
  "GET /v1/operations": ProgressList;
  "GET /v1/operations/{id}": Operation;
  "GET /v1/overview": Overview;
  "GET /v1/queues": QueueViews;
  "GET /v1/queues/{name}/plan": QueuePlan;
  "GET /v1/scale": Scale;
  "GET /v1/schedules": ScheduleViews;
  "GET /v1/schedules/{name}": Schedule;
  "GET /v1/stats": Stats;
  "GET /v1/tasks": TaskViews;
  "GET /v1/workers": Workers;
  "GET /v1/workflows": WorkflowPage;
  "GET /v1/workflows/{id}/graph": Graph;
  "POST /v1/approvals/{id}/decide": Decided;
  "POST /v1/approvals/{id}/link": LinkMade;
  "POST /v1/jobs": Job;
  "POST /v1/jobs/batch": JobViews;
  "POST /v1/jobs/{id}/ask": Answered;
  "POST /v1/jobs/{id}/cancel": Acted;
  "POST /v1/jobs/{id}/fork": Job;
  "POST /v1/jobs/{id}/pause": Acted;
  "POST /v1/jobs/{id}/rerun": Acted;
  "POST /v1/jobs/{id}/resume": Acted;
  "POST /v1/jobs/{id}/retry": Acted;
  "POST /v1/jobs/{id}/run_now": Acted;
  "POST /v1/jobs/{id}/send": Acted;
  "POST /v1/jobs/{id}/signal": Acted;
  "POST /v1/limits/{name}/pause": Noted;
  "POST /v1/limits/{name}/resume": Noted;
  "POST /v1/operations": Operation;
  "POST /v1/queues/{name}/pause": Noted;
  "POST /v1/queues/{name}/resume": Noted;
  "POST /v1/schedules/preview": Timing;
  "POST /v1/schedules/{name}/pause": Nothing;
  "POST /v1/schedules/{name}/resume": Nothing;
  "POST /v1/schedules/{name}/trigger": Job;
  "PUT /v1/limits/{name}": Noted;
  "PUT /v1/schedules/{name}": Schedule;
}

export interface Bodies {
  "POST /v1/approvals/{id}/decide": DecisionMade;
  "POST /v1/approvals/{id}/link": LinkAsked;
  "POST /v1/jobs": JobAsked;
  "POST /v1/jobs/batch": JobsAsked;
  "POST /v1/jobs/{id}/ask": AskSent;
  "POST /v1/jobs/{id}/cancel": Cancel;
  "POST /v1/jobs/{id}/fork": Fork;
  "POST /v1/jobs/{id}/rerun": Rerun;
  "POST /v1/jobs/{id}/send": MessageSent;
  "POST /v1/jobs/{id}/signal": SignalAsked;
  "POST /v1/operations": OperationAsked;
  "POST /v1/schedules/preview": TimingAsked;
  "POST /v1/session": SignIn;
  "PUT /v1/limits/{name}": LimitAsked;
  "PUT /v1/schedules/{name}": ScheduleAsked;
}
