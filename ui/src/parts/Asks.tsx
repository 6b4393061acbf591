/** The dialogs of acts without an inverse, and of signals: they say what will happen, and ask. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Job } from "../api";
import { Button } from "../design/Button";
import { closeDialog, Dialog } from "../design/Dialog";
import { CheckField, TextField } from "../design/Field";
import { failed } from "../design/toasts";
import { shortName } from "../lib/format";
import { part, send } from "../lib/http";
import { forkJob, reported, type Noted } from "./acts";

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
      onSubmit={submit}
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

export function CancelJob({ job }: { job: Job }): JSX.Element {
  const tree = useSignal(true);
  const cleanup = useSignal(true);
  return (
    <Ask
      title="Cancel this job?"
      words={`${job.task} will be cancelled${job.state === "running" ? ", and its run is interrupted" : ""}. This cannot be undone: a retry queues it anew and counts its attempts from 0.`}
      act="Cancel the job"
      run={async () => {
        const { jobs } = await send<{ jobs: number }>("POST", `jobs/${part(job.id)}/cancel`, {
          tree: tree.value,
          force: !cleanup.value,
        });
        reported(jobs === 1 ? "1 job cancelled." : `${jobs} jobs cancelled.`, null);
      }}
    >
      <>
        <CheckField label="Its children too" value={tree.value} onChange={(value) => (tree.value = value)} />
        <CheckField
          label="Run the undos and the cleanup of a durable job"
          value={cleanup.value}
          onChange={(value) => (cleanup.value = value)}
        />
      </>
    </Ask>
  );
}

export function RerunJob({ job, step }: { job: Job; step: string }): JSX.Element {
  const fork = useSignal(false);
  return (
    <Ask
      title={`Run again from ${step}?`}
      words={`The steps before ${step} keep their results. ${step} and all steps that were stored later are deleted and run again, and open children are cancelled.`}
      act="Run again"
      run={async () => {
        if (fork.value) return forkJob(job, step);
        await send("POST", `jobs/${part(job.id)}/rerun`, { from_step: step });
        reported(`${shortName(job.task)} runs again.`, null);
      }}
    >
      <CheckField
        label="As a new job, which leaves this one as it is"
        value={fork.value}
        onChange={(value) => (fork.value = value)}
      />
    </Ask>
  );
}

export function DeleteJob({ job, after }: { job: Job; after: (() => void) | undefined }): JSX.Element {
  return (
    <Ask
      title="Delete this job?"
      words={`The row of ${job.task} is removed, with its result, error and attempts. This cannot be undone.`}
      act="Delete the job"
      run={async () => {
        await send("DELETE", `jobs/${part(job.id)}`);
        reported("Job deleted.", null);
        after?.();
      }}
    />
  );
}

export function RemoveLimit({ name }: { name: string }): JSX.Element {
  return (
    <Ask
      title={`Remove the limit ${name}?`}
      words="The rule is removed and jobs that it blocks may start at once. A limit that code declares applies again."
      act="Remove the limit"
      run={async () => reported(`Limit ${name} removed.`, await send<Noted | null>("DELETE", `limits/${part(name)}`))}
    />
  );
}

export function DeleteSchedule({ name, after }: { name: string; after: (() => void) | undefined }): JSX.Element {
  return (
    <Ask
      title={`Delete the schedule ${name}?`}
      words="It creates no more jobs. The jobs that it has created stay."
      act="Delete the schedule"
      run={async () => {
        await send("DELETE", `schedules/${part(name)}`);
        reported(`Schedule ${name} deleted.`, null);
        after?.();
      }}
    />
  );
}

export function SendSignal({ job, name: given }: { job: Job; name: string }): JSX.Element {
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
      onSubmit={submit}
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
