/** One event stream for the whole page: the overview, and the progress of operations.
 *
 * A hidden tab closes its stream, because a browser opens six connections to a host at most. After two failures in a
 * row the page polls instead: some proxies hold streams back.
 */
import { computed, signal } from "@preact/signals";
import type { Operation, Overview } from "../api";
import { now } from "./clock";
import { get, Problem, urlOf } from "./http";
import { access, epoch, may, readMe } from "./session";

export type Link = "connecting" | "live" | "polling" | "paused" | "lost";

const POLL = 5_000; // ms between two reads without a stream
const STREAM_AGAIN = 60_000; // ms until a stream is tried again
const PATIENCE = 8_000; // ms until a stream without an event counts as failed

export const overview = signal<Overview | null>(null);
export const operations = signal<ReadonlyMap<string, Operation>>(new Map());
export const link = signal<Link>("connecting");
export const paused = signal(false);
/** Seconds since the figures on the page were read. */
export const age = computed(() => (overview.value ? Math.max(0, now.value - overview.value.at) : 0));

let source: EventSource | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;
let failures = 0;
let pollUntil = 0;
let session = 0; // grows at each stop, so that a late answer of before changes nothing

export function take(answer: Overview): void {
  overview.value = answer;
}

/** The answer to a request may arrive after the event that the operation has ended. */
export function noteOperation(operation: Operation): void {
  const known = operations.value.get(operation.id);
  if (known && known.state !== "running" && operation.state === "running") return;
  operations.value = new Map(operations.value).set(operation.id, operation);
}

function open(): void {
  close();
  if (paused.value || document.hidden || access.value !== "in" || !may("read")) return;
  if (failures >= 2 && Date.now() < pollUntil) return void poll(session);
  link.value = link.value === "lost" ? "lost" : "connecting";
  source = new EventSource(urlOf("overview/events"));
  source.addEventListener("overview", (event) => {
    failures = 0;
    clearTimeout(timer);
    link.value = "live";
    take(JSON.parse((event as MessageEvent<string>).data) as Overview);
  });
  source.addEventListener("operation", (event) =>
    noteOperation(JSON.parse((event as MessageEvent<string>).data) as Operation),
  );
  source.addEventListener("bye", () => {
    close();
    link.value = "connecting";
    timer = setTimeout(open, 2_000 + Math.random() * 3_000); // spread, so that all tabs do not return at once
  });
  source.onerror = fail;
  timer = setTimeout(fail, PATIENCE);
}

function fail(): void {
  close();
  failures += 1;
  if (failures === 2) pollUntil = Date.now() + STREAM_AGAIN;
  if (failures >= 2) void poll(session);
  else timer = setTimeout(open, 1_000);
}

async function poll(of: number): Promise<void> {
  try {
    const answer = await get<Overview>("overview");
    if (of !== session) return;
    take(answer);
    link.value = "polling";
  } catch (error) {
    if (of !== session) return;
    link.value = "lost";
    if (error instanceof Problem && error.status === 403) return;
  }
  timer = setTimeout(() => {
    if (Date.now() >= pollUntil) {
      failures = 1; // one more failure returns to polling
      open();
    } else void poll(of);
  }, POLL);
}

function close(): void {
  session += 1;
  clearTimeout(timer);
  source?.close();
  source = null;
}

/** Begin, and begin anew after a sign-in. */
export function start(): void {
  failures = 0;
  open();
}

export function pause(on = !paused.value): void {
  paused.value = on;
  if (on) {
    close();
    link.value = "paused";
  } else {
    link.value = "connecting";
    start();
    epoch.value += 1;
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) close();
  else if (!paused.value) {
    void readMe();
    start();
  }
});
addEventListener("online", start);
addEventListener("pagehide", close);
