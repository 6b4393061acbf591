/** What a reader can do to one thing. Acts with an exact inverse offer "Undo"; those without one ask first. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Job, Overview } from "../api";
import { Button } from "../design/Button";
import { closeDialog, Dialog, openDialog } from "../design/Dialog";
import { CheckField, TextField } from "../design/Field";
import { failed, toast } from "../design/toasts";
import { shortName } from "../lib/format";
import { get, part, send } from "../lib/http";
import { take } from "../lib/live";
import { go } from "../lib/route";
import { reloadAll } from "../lib/session";

interface Noted {
  warning?: string;
}

/** Read everything again after an act; the overview too, where no stream brings it. */
export function refreshAll(): void {
  reloadAll();
  void get<Overview>("overview").then(take, () => undefined);
}

function reported(text: string, answer: Noted | null, undo?: () => unknown): void {
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

// --- acts that ask

interface AskProps {
  title: string;
  words: string;
  act: string;
  children?: JSX.Element | undefined;
  run: () => Promise<void>;
}

function Ask({ title, words, act, children, run }: AskProps): JSX.Element {
  const busy = useSignal(false);
  const submit = async (): Promise<void> => {
    busy.value = true;
    try {
      await run();
      closeDialog();
    } catch (error) {
      failed(error);
    }
    busy.value = false;
  };
  return (
    <Dialog
      title={title}
      onSubmit={() => void submit()}
      footer={
        <>
          <Button onClick={closeDialog}>Keep it</Button>
          <Button kind="danger primary" type="submit" disabled={busy.value}>
            {act}
          </Button>
        </>
      }
    >
      <p>{words}</p>
      {children}
    </Dialog>
  );
}

function Cancel({ job }: { job: Job }): JSX.Element {
  const tree = useSignal(true);
  return (
    <Ask
      title="Cancel this job?"
      words={`${job.task} will be cancelled${job.state === "running" ? ", and its run is interrupted" : ""}. This cannot be undone: a retry queues it anew and counts its attempts from 0.`}
      act="Cancel the job"
      run={async () => {
        const { jobs } = await send<{ jobs: number }>("POST", `jobs/${part(job.id)}/cancel`, { tree: tree.value });
        reported(jobs === 1 ? "1 job cancelled." : `${jobs} jobs cancelled.`, null);
      }}
    >
      <CheckField label="Its children too" value={tree.value} onChange={(value) => (tree.value = value)} />
    </Ask>
  );
}

export function askCancel(job: Job): void {
  openDialog(<Cancel job={job} />);
}

export function askDelete(job: Job, after?: () => void): void {
  openDialog(
    <Ask
      title="Delete this job?"
      words={`The row of ${job.task} is removed, with its result, error and attempts. This cannot be undone.`}
      act="Delete the job"
      run={async () => {
        await send("DELETE", `jobs/${part(job.id)}`);
        reported("Job deleted.", null);
        after?.();
      }}
    />,
  );
}

export function askRemoveLimit(name: string): void {
  openDialog(
    <Ask
      title={`Remove the limit ${name}?`}
      words="The rule is removed and jobs that it blocks may start at once. A limit that code declares applies again."
      act="Remove the limit"
      run={async () => reported(`Limit ${name} removed.`, await send<Noted | null>("DELETE", `limits/${part(name)}`))}
    />,
  );
}

export function askDeleteSchedule(name: string, after?: () => void): void {
  openDialog(
    <Ask
      title={`Delete the schedule ${name}?`}
      words="It creates no more jobs. The jobs that it has created stay."
      act="Delete the schedule"
      run={async () => {
        await send("DELETE", `schedules/${part(name)}`);
        reported(`Schedule ${name} deleted.`, null);
        after?.();
      }}
    />,
  );
}

function SendSignal({ job, name: given }: { job: Job; name: string }): JSX.Element {
  const name = useSignal(given);
  const value = useSignal("null");
  const wrong = useSignal<string | null>(null);
  const submit = async (): Promise<void> => {
    try {
      const sent: unknown = value.value.trim() ? JSON.parse(value.value) : null;
      reported(
        `Signal ${name.value} sent.`,
        await send<Noted>("POST", `jobs/${part(job.id)}/signal`, { name: name.value.trim(), value: sent }),
      );
      closeDialog();
    } catch (error) {
      if (error instanceof SyntaxError) wrong.value = `Expected JSON: ${error.message}`;
      else failed(error);
    }
  };
  return (
    <Dialog
      title="Send a signal"
      onSubmit={() => void submit()}
      footer={
        <>
          <Button onClick={closeDialog}>Close</Button>
          <Button kind="primary" type="submit" disabled={!name.value.trim()}>
            Send the signal
          </Button>
        </>
      }
    >
      <TextField
        label="Name"
        value={name.value}
        first={!given}
        onInput={(text) => (name.value = text)}
        hint="The job may wait for it now or later. It receives a signal of one name once."
      />
      <TextField
        label="Value"
        value={value.value}
        first={Boolean(given)}
        rows={4}
        onInput={(text) => (value.value = text)}
        wrong={wrong.value}
        hint="Any JSON."
      />
    </Dialog>
  );
}

export function askSignal(job: Job, name = ""): void {
  openDialog(<SendSignal job={job} name={name} />);
}
