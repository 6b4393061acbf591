/** The rows of jobs, with the columns that their status needs. */
import type { JSX } from "preact";
import type { Job, Status } from "../api";
import { Badge, Since, Time } from "../design/Badge";
import { Bar } from "../design/Chart";
import { Table, type Column } from "../design/Table";
import { callText, count, duration, errorLine } from "../lib/format";
import { now } from "../lib/clock";
import type { Selection } from "../lib/list";
import { href } from "../lib/route";
import { statusOf } from "../lib/status";

export type View = Status | "all";

/** The column that says when: its heading, and the moment of a job. */
const WHEN: Record<View, [words: string, moment: (job: Job) => number | null]> = {
  all: ["created", (job) => job.created_at],
  queued: ["created", (job) => job.created_at],
  waiting: ["created", (job) => job.created_at],
  blocked: ["created", (job) => job.created_at],
  running: ["started", (job) => job.started_at],
  scheduled: ["due", (job) => job.due_at],
  succeeded: ["ended", (job) => job.ended_at],
  failed: ["ended", (job) => job.ended_at],
  cancelled: ["ended", (job) => job.ended_at],
};

function columnsOf(view: View): (Column | false)[] {
  const ended = view === "succeeded" || view === "failed" || view === "cancelled" || view === "all";
  return [
    { words: "status" },
    { words: "task" },
    { words: view === "failed" ? "error" : "arguments", class: "wide" },
    { words: "queue", class: "mid" },
    { words: "attempt", class: "num mid" },
    view === "running" && { words: "progress", class: "mid" },
    view === "running" && { words: "worker", class: "wide" },
    view === "blocked" && { words: "blocked by", class: "mid" },
    view === "waiting" && { words: "waits for", class: "num mid" },
    ended && { words: "run time", class: "num mid" },
    { words: "labels", class: "extra" },
    { words: WHEN[view][0], class: "num" },
  ];
}

interface Props {
  jobs: readonly Job[];
  view: View;
  caption: string;
  selection?: Selection | undefined;
}

export function JobTable({ jobs, view, caption, selection }: Props): JSX.Element {
  const ids = jobs.map((job) => job.id);
  const chosen = selection?.ids.value;
  const all = ids.length > 0 && ids.every((id) => chosen?.has(id));
  return (
    <Table
      caption={caption}
      columns={columnsOf(view)}
      head={
        selection && (
          <th scope="col" class="pick">
            <label>
              <span class="hidden">Select all rows</span>
              <input type="checkbox" checked={all} onChange={() => selection.all(ids, !all)} />
            </label>
          </th>
        )
      }
    >
      {jobs.map((job) => (
        <Row key={job.id} job={job} view={view} selection={selection} chosen={chosen?.has(job.id) ?? false} />
      ))}
    </Table>
  );
}

function Row({
  job,
  view,
  selection,
  chosen,
}: {
  job: Job;
  view: View;
  selection: Selection | undefined;
  chosen: boolean;
}): JSX.Element {
  const ended = view === "succeeded" || view === "failed" || view === "cancelled" || view === "all";
  const call = callText(job.args, job.kwargs);
  const second = view === "failed" && job.error ? errorLine(job.error) : call;
  return (
    <tr data-row={job.id} class={chosen ? "chosen" : undefined}>
      {selection && (
        <td class="pick">
          <label>
            <span class="hidden">
              Select {job.task} {job.id}
            </span>
            <input type="checkbox" checked={chosen} onChange={() => selection.toggle(job.id)} />
          </label>
        </td>
      )}
      <td>
        <Badge of={statusOf(job)} />
      </td>
      <th scope="row" class="task">
        <a href={href(["jobs", job.id])} data-main title={job.id}>
          {job.task}
        </a>
        <code class="below clip" dir="auto">
          {second}
        </code>
      </th>
      <td class="wide grow">
        <code class={view === "failed" ? "clip t-bad toned" : "clip quiet"} dir="auto" title={call}>
          {second}
        </code>
      </td>
      <td class="mid">
        <a href={href(["queues", job.queue])} class="plain-link clip list-of" title={job.queue}>
          {job.queue}
        </a>
      </td>
      <td class="num mid">{job.attempt || <span class="zero">0</span>}</td>
      {view === "running" && (
        <td class="mid">
          <Progress job={job} />
        </td>
      )}
      {view === "running" && (
        <td class="wide">
          <span class="clip list-of">{job.worker}</span>
        </td>
      )}
      {view === "blocked" && (
        <td class="mid">
          <code class="clip">{job.blocked_on}</code>
        </td>
      )}
      {view === "waiting" && <td class="num mid">{count(job.pending)}</td>}
      {ended && <td class="num mid">{runTime(job)}</td>}
      <td class="extra labels">
        {job.labels.slice(0, 3).map((label) => (
          <a key={label} class="chip" href={href(["jobs"], { label })}>
            {label}
          </a>
        ))}
        {job.labels.length > 3 && <span class="quiet small"> +{job.labels.length - 3}</span>}
      </td>
      <td class="num">
        {view === "running" && job.started_at ? <Since at={job.started_at} /> : <Time at={WHEN[view][1](job)} />}
      </td>
    </tr>
  );
}

function Progress({ job }: { job: Job }): JSX.Element {
  if (job.progress === null) return <span class="clip quiet">{job.note ?? ""}</span>;
  return (
    <span class="progress">
      <Bar share={job.progress} />
      <span class="small">{Math.round(job.progress * 100)} %</span>
    </span>
  );
}

/** Nobody knows the run time of a job without both ends; a running one has run until now. */
function runTime(job: Job): JSX.Element | string {
  if (job.started_at === null) return <span class="zero">–</span>;
  if (job.ended_at !== null) return duration(job.ended_at - job.started_at);
  return job.state === "running" ? duration(now.value - job.started_at) : <span class="zero">–</span>;
}
