/** The acts on one thing. Acts with an exact inverse offer "Undo"; those that ask first are in Asks.tsx. */
import type { Job, Overview } from "../api";
import { toast } from "../design/toasts";
import { shortName } from "../lib/format";
import { get, part, send } from "../lib/http";
import { take } from "../lib/live";
import { go } from "../lib/route";
import { reloadAll } from "../lib/session";

export interface Noted {
  warning?: string;
}

/** Read everything again after an act; the overview too, where no stream brings it. */
export function refreshAll(): void {
  reloadAll();
  void get<Overview>("overview").then(take, () => undefined);
}

export function reported(text: string, answer: Noted | null, undo?: () => unknown): void {
  toast(answer?.warning ? `${text} ${answer.warning}` : text, {
    tone: answer?.warning ? "warn" : "good",
    action: undo && { words: "Undo", run: undo },
  });
  refreshAll();
}

export async function pauseQueue(name: string, on: boolean): Promise<void> {
  const answer = await send<Noted | null>("POST", `queues/${part(name)}/${on ? "pause" : "resume"}`);
  reported(`Queue ${name} ${on ? "paused" : "resumed"}.`, answer, () => pauseQueue(name, !on));
}

export async function pauseLimit(name: string, on: boolean): Promise<void> {
  const answer = await send<Noted | null>("POST", `limits/${part(name)}/${on ? "pause" : "resume"}`);
  reported(`Limit ${name} ${on ? "paused" : "resumed"}.`, answer, () => pauseLimit(name, !on));
}

export async function pauseSchedule(name: string, on: boolean): Promise<void> {
  await send("POST", `schedules/${part(name)}/${on ? "pause" : "resume"}`);
  reported(`Schedule ${name} ${on ? "paused" : "resumed"}.`, null, () => pauseSchedule(name, !on));
}

export async function triggerSchedule(name: string): Promise<void> {
  const job = await send<Job>("POST", `schedules/${part(name)}/trigger`);
  toast(`Schedule ${name} triggered.`, { action: { words: "Open the job", run: () => go(`jobs/${part(job.id)}`) } });
  refreshAll();
}

export async function retryJob(job: Pick<Job, "id" | "task">): Promise<void> {
  await send("POST", `jobs/${part(job.id)}/retry`);
  reported(`${shortName(job.task)} is queued again.`, null);
}

export async function runJobNow(job: Pick<Job, "id" | "task">): Promise<void> {
  await send("POST", `jobs/${part(job.id)}/run_now`);
  reported(`${shortName(job.task)} is queued now.`, null);
}

export async function pauseJob(job: Pick<Job, "id" | "task">, on: boolean): Promise<void> {
  await send("POST", `jobs/${part(job.id)}/${on ? "pause" : "resume"}`);
  reported(`${shortName(job.task)} ${on ? "paused" : "resumed"}.`, null, () => pauseJob(job, !on));
}

export async function forkJob(job: Pick<Job, "id">, step: string): Promise<void> {
  const fork = await send<Job>("POST", `jobs/${part(job.id)}/fork`, { from_step: step });
  toast(`A new job continues from ${step}.`, { action: { words: "Open it", run: () => go(`jobs/${part(fork.id)}`) } });
  refreshAll();
}
