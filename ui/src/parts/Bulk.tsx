/** An act on many jobs: a dry run first, then the number and five samples, then the act, which can be stopped. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { Act, FilterAsked, Operation, OperationAsked, Preview } from "../api";
import { Badge, Note, Time } from "../design/Badge";
import { Button } from "../design/Button";
import { closeDialog, Dialog } from "../design/Dialog";
import { CheckField, TextField } from "../design/Field";
import { failed } from "../design/toasts";
import { present } from "../lib/clock";
import { callText, count, plural } from "../lib/format";
import { send, wordsOf } from "../lib/http";
import { statusOf } from "../lib/status";
import { watchOperation } from "../shell/Tray";

const DAY = 86_400; // s
const TYPED = 1_000; // jobs above which the number is typed

export interface Target {
  ids?: string[];
  filter?: FilterAsked;
  group?: { key: string };
}

const VERBS: Record<Act, string> = { retry: "Retry", cancel: "Cancel", run_now: "Run now", delete: "Delete" };

const HINTS: Record<Act, string> = {
  retry:
    "Each job is queued again and counts its attempts from 0. Jobs that are neither failed nor cancelled are passed over.",
  cancel: "There is no undo: a retry queues a job anew and counts its attempts from 0. Ended jobs are passed over.",
  run_now: "Scheduled jobs are queued now. All others are passed over.",
  delete: "The rows are removed with their results and errors. There is no undo. Unfinished jobs are passed over.",
};

export function Bulk({ act, target, done }: { act: Act; target: Target; done: (() => void) | undefined }): JSX.Element {
  const dry = useSignal<Preview | null>(null);
  const wrong = useSignal<string | null>(null);
  const typed = useSignal("");
  const tree = useSignal(true);
  const began = useSignal(present());
  const request = useSignal(`${Date.now()}-${Math.random()}`); // of this dialog: sent again, it begins nothing new
  const operation = (): OperationAsked => ({
    act,
    ...target,
    // rows that the reader has chosen are never too new, also where the clocks of page and server differ
    created_before: target.ids ? began.value + DAY : began.value,
    ...(act === "cancel" && { tree: tree.value }),
  });
  useEffect(() => {
    send<Preview>("POST", "operations", { ...operation(), dry: true }).then(
      (preview) => (dry.value = preview),
      (error: unknown) => (wrong.value = wordsOf(error)),
    );
  }, []);
  const preview = dry.value;
  const many = preview !== null && (preview.matches > TYPED || preview.capped);
  const entered = Number(typed.value.replace(/[^0-9]/g, ""));
  const agreed = !many || (preview.capped ? entered > 0 : entered === preview.matches);
  const run = async (): Promise<void> => {
    if (!preview) return;
    try {
      const body = { ...operation(), at_most: preview.capped ? entered : preview.matches };
      const headers = { "Idempotency-Key": request.value };
      watchOperation(await send<Operation>("POST", "operations", body, { headers }));
      done?.();
      closeDialog();
    } catch (error) {
      failed(error);
    }
  };
  const which = target.ids ? "" : (preview?.words ?? ""); // the ids of a selection say nothing to a person
  const number = preview && plural(preview.matches, "job", preview.capped);
  return (
    <Dialog
      title={`${VERBS[act]} ${number ?? "jobs"}`}
      wide
      onSubmit={run}
      footer={
        <>
          <Button onClick={closeDialog}>Close</Button>
          <Button
            kind={act === "cancel" || act === "delete" ? "danger primary" : "primary"}
            type="submit"
            disabled={!preview?.matches || !agreed}
          >
            {VERBS[act]} {preview?.capped && entered > 0 ? `at most ${plural(entered, "job")}` : number}
          </Button>
        </>
      }
    >
      {wrong.value && (
        <Note tone="bad" sign="error">
          {wrong.value}
        </Note>
      )}
      {!preview && !wrong.value && <p role="status">Counting…</p>}
      {preview && (
        <>
          <p>
            {inWords(preview, which)} {which && <b class="any">{which}</b>}
            {which && "."}
          </p>
          <p class="quiet">{HINTS[act]}</p>
          {preview.samples.length > 0 && (
            <Samples jobs={preview.samples} more={preview.matches - preview.samples.length} capped={preview.capped} />
          )}
          {act === "cancel" && (
            <CheckField label="Their children too" value={tree.value} onChange={(value) => (tree.value = value)} />
          )}
          {many && (
            <TextField
              label={preview.capped ? "How many at most?" : `Type ${preview.matches} to confirm`}
              first
              value={typed.value}
              onInput={(value) => (typed.value = value)}
              hint={
                preview.capped
                  ? `Counting stopped at ${count(preview.matches)}; more jobs match. The oldest come first.`
                  : undefined
              }
            />
          )}
        </>
      )}
    </Dialog>
  );
}

function inWords(preview: Preview, words: string): string {
  if (!preview.matches) return words ? "No job matches:" : "No job can be acted on.";
  const verb = preview.matches === 1 && !preview.capped ? "matches" : "match";
  const more = preview.capped ? "At least " : "";
  return words
    ? `${more}${plural(preview.matches, "job")} ${verb}:`
    : `${plural(preview.matches, "job")} will be acted on.`;
}

function Samples({ jobs, more, capped }: { jobs: Preview["samples"]; more: number; capped: boolean }): JSX.Element {
  return (
    <div class="panel">
      <ul class="samples">
        {jobs.map((job) => (
          <li key={job.id}>
            <Badge of={statusOf(job)} />
            <b class="clip">{job.task}</b>
            <code class="clip quiet">{callText(job.args, job.kwargs, 80)}</code>
            <span class="quiet small">
              <Time at={job.created_at} />
            </span>
          </li>
        ))}
        {more > 0 && <li class="quiet">and {count(more, capped)} more</li>}
      </ul>
    </div>
  );
}
