/** The headline of a job: why it is where it is, and an estimate of its start. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Estimate, Explained, Job as Row } from "../api";
import { Button } from "../design/Button";
import { Prose } from "../design/Prose";
import { duration, moment } from "../lib/format";
import { get, part } from "../lib/http";
import { useLoad } from "../lib/load";
import { isFinal, statusOf } from "../lib/status";

const LOOK = 4; // s between two explanations of an unfinished job

/** The headline: one sentence about why the job is where it is. */
export function Why({ job }: { job: Row }): JSX.Element {
  const open = !isFinal(job.state);
  const load = useLoad<Explained>(`jobs/${part(job.id)}/explain`, open ? LOOK : 0);
  const status = statusOf(job);
  return (
    <div
      class={`why t-${job.state === "failed" ? "bad" : status === "blocked" || status === "suspect" ? "warn" : status === "running" ? "live" : job.state === "succeeded" ? "good" : "quiet"}`}
    >
      <p data-testid="why" dir="auto">
        <Prose text={load.data?.text ?? load.error?.message ?? "…"} />
      </p>
      {open && load.data?.position != null && <span class="quiet nowrap">position {load.data.position}</span>}
      {(job.state === "ready" || job.state === "waiting") && <Start id={job.id} />}
    </div>
  );
}

/** An estimate takes up to a second of the server, so it is made when somebody asks, and not again by itself. */
function Start({ id }: { id: string }): JSX.Element {
  const estimate = useSignal<Estimate | null>(null);
  if (estimate.value) {
    return (
      <span class="quiet" data-testid="estimate">
        {startIn(estimate.value)}
      </span>
    );
  }
  return (
    <Button
      slim
      kind="plain"
      onClick={async () => void (estimate.value = await get<Estimate>(`jobs/${part(id)}/eta`))}
    >
      Estimate the start
    </Button>
  );
}

function startIn({ at, start }: Estimate): string {
  if (!start) return "It does not start by itself, as far as the estimate can tell.";
  const [low, median, high] = [start.low, start.median, start.high].map((each) => duration(Math.max(0, each - at)));
  return `Estimated at ${moment(at)}: it starts in ${median} (${low} to ${high}).`;
}
