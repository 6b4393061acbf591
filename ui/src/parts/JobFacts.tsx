/** The facts of a job at the side of its page, and the commands that do the same from a terminal. */
import type { JSX } from "preact";
import type { Job as Row } from "../api";
import { Time } from "../design/Badge";
import { Copy } from "../design/Button";
import { Facts } from "../design/Table";
import { duration, plural, shortId, shortName } from "../lib/format";
import { href } from "../lib/route";
import { isFinal, reasonOf } from "../lib/status";
import { targeted } from "./terminal";

/** The state of a job that may have killed its worker. */
const SUSPECT = {
  waits: ": a suspect, will be tried alone",
  alone: ": a suspect, runs alone now",
  shares: ": a suspect, runs next to other jobs",
};

export function FactsOf({ job }: { job: Row }): JSX.Element {
  const worker = job.worker?.replace(/#[^#]*$/, "");
  const timeout = job.again?.options.timeout;
  return (
    <Facts
      rows={[
        ["queue", <a href={href(["queues", job.queue])}>{job.queue}</a>],
        ["task", <a href={href(["jobs"], { task: job.task })}>{job.task}</a>],
        ["created", <Time at={job.created_at} />],
        job.due_at !== null && job.state === "ready" && ["due", <Time at={job.due_at} />],
        job.paused_at !== null && ["paused", <Time at={job.paused_at} />],
        job.started_at !== null && ["started", <Time at={job.started_at} />],
        job.ended_at !== null && ["ended", <Time at={job.ended_at} />],
        job.reason !== null && ["reason", reasonOf(job.reason)],
        [
          "attempts",
          `${job.attempt}${job.lost ? `, and ${plural(job.lost, "expired lease")}` : ""}${job.suspect ? SUSPECT[job.suspect] : ""}${job.reopenings ? `, reopened ${plural(job.reopenings, "time")}` : ""}`,
        ],
        worker && job.state === "running" && ["worker", <a href={href(["workers", worker])}>{job.worker}</a>],
        job.priority !== 0 && ["priority", job.priority],
        job.blocked_on && ["blocked by", <code>{job.blocked_on}</code>],
        job.limits?.length && ["limits", job.limits.map((each) => <code class="chip">{each}</code>)],
        job.key && ["key", <code>{job.key}</code>],
        job.lane && ["lane", <code>{job.lane}</code>],
        job.labels.length > 0 && [
          "labels",
          job.labels.map((label) => (
            <a key={label} class="chip" href={href(["jobs"], { label })}>
              {label}
            </a>
          )),
        ],
        timeout != null && ["timeout", duration(timeout)],
        job.deadline_at !== null && ["deadline", <Time at={job.deadline_at} />],
        job.expires_at != null && ["kept until", <Time at={job.expires_at} />],
        job.pending > 0 && ["pending", `${plural(job.pending, "ending")} still needed`],
        job.after.length > 0 && [
          "after",
          <span class="id-list">
            {job.after.slice(0, 20).map((each) => (
              <a key={each} class="mono" href={href(["jobs", each])}>
                {shortId(each)}
              </a>
            ))}
            {job.after.length > 20 && <span class="quiet">and {job.after.length - 20} more</span>}
          </span>,
        ],
        ...Object.entries(job.headers).map(
          ([name, value]) => [`header ${name}`, <code dir="auto">{value}</code>] as const,
        ),
      ]}
    />
  );
}

export function Commands({ job }: { job: Row }): JSX.Element {
  const lines = [
    targeted("jobs show", job.id),
    ...(isFinal(job.state) && job.state !== "succeeded" ? [targeted("jobs retry", job.id)] : []),
    ...(isFinal(job.state) ? [] : [targeted("jobs cancel", job.id)]),
  ];
  return (
    <div class="stack commands">
      {lines.map((line) => (
        <div key={line} class="row">
          <code class="any">{line}</code>
          <Copy text={line} what={`the command for ${shortName(job.task)}`} />
        </div>
      ))}
    </div>
  );
}
