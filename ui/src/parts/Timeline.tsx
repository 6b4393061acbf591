/** The life of a job as one picture: when it was created, each attempt as a bar, and the waits between them. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Job, JobAttempt } from "../api";
import { now } from "../lib/clock";
import { duration, moment, plural } from "../lib/format";
import { isFinal, toneOf } from "../lib/status";

const ROW = 26; // px a line of the picture
const TOP = 22;
const LEFT = 76;
const MARGIN = 124; // room for the words behind the last bar
const LABELS = 240; // px of the axis that both of its labels need
const LEAST = 3; // px of the shortest bar

interface Wait {
  from: number;
  to: number;
  row: number;
}

/** When the bar of an attempt begins: without a stored start it is as short as its end. */
function beginOf(attempt: JobAttempt, job: Job): number {
  return attempt.started_at ?? attempt.ended_at ?? job.created_at;
}

/** The waits before each attempt: from the creation, or from the end of the attempt before. */
function waitsOf(job: Job, attempts: readonly JobAttempt[], end: number): Wait[] {
  const waits: Wait[] = [];
  let from = job.created_at;
  attempts.forEach((each, row) => {
    const begin = beginOf(each, job);
    if (begin > from) waits.push({ from, to: begin, row });
    from = each.ended_at ?? end;
  });
  if (!isFinal(job.state) && attempts.at(-1)?.ended_at !== null && end > from)
    waits.push({ from, to: end, row: attempts.length });
  return waits;
}

export function Timeline({ job, attempts }: { job: Job; attempts: readonly JobAttempt[] }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const measured = useSignal(720);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => (measured.value = Math.floor(entry!.contentRect.width)));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  const width = Math.max(280, measured.value);
  const open = !isFinal(job.state);
  const last = Math.max(
    job.ended_at ?? 0,
    ...attempts.map((each) => each.ended_at ?? 0),
    ...attempts.map((each) => beginOf(each, job)),
    job.created_at,
  );
  const end = open ? Math.max(now.value, last) : last;
  const due = open && job.due_at !== null && job.state === "ready" && job.due_at > end ? job.due_at : null;
  const to = due ?? end;
  const whole = Math.max(to - job.created_at, 1e-6);
  const x = (at: number): number =>
    LEFT + (width - LEFT - MARGIN) * Math.min(1, Math.max(0, (at - job.created_at) / whole));
  const waits = waitsOf(job, attempts, to);
  const lines = Math.max(1, attempts.length, ...waits.map((each) => each.row + 1));
  const height = TOP + lines * ROW + 4;
  const y = (row: number): number => TOP + row * ROW;
  const label = `Timeline over ${duration(whole)}: ${plural(attempts.length, "attempt")}${attempts.length ? `, the last ${attempts.at(-1)!.outcome}` : ""}.`;
  return (
    <div class="timeline" ref={box}>
      <svg width={width} height={height} role="img" aria-label={label}>
        <line class="axis" x1={LEFT} x2={width - MARGIN} y1={TOP - 6} y2={TOP - 6} />
        <text x={LEFT} y={10}>
          {moment(job.created_at)}
        </text>
        {width - LEFT - MARGIN > LABELS && (
          <text x={width - MARGIN} y={10} text-anchor="end">
            {due ? `due ${moment(due)}` : open ? "now" : `+ ${duration(whole)}`}
          </text>
        )}
        {waits.map((each) => (
          <g key={`w${each.row}`}>
            {each.row >= attempts.length && (
              <text x={0} y={y(each.row) + 14} class="label">
                {job.status === "scheduled" ? "due" : "waits"}
              </text>
            )}
            <line class="wait" x1={x(each.from)} x2={x(each.to)} y1={y(each.row) + 10} y2={y(each.row) + 10} />
            {x(each.to) - x(each.from) > 96 && (
              <text class="in-wait" x={(x(each.from) + x(each.to)) / 2} y={y(each.row) + 6} text-anchor="middle">
                {duration(each.to - each.from)}
              </text>
            )}
          </g>
        ))}
        {attempts.map((each, row) => (
          <Bar
            key={`${each.reopening}.${each.number}.${each.started_at}`}
            attempt={each}
            y={y(row)}
            from={x(beginOf(each, job))}
            to={x(each.ended_at ?? end)}
            end={end}
          />
        ))}
      </svg>
    </div>
  );
}

interface BarProps {
  attempt: JobAttempt;
  y: number; // px
  from: number; // px
  to: number; // px
  end: number; // the instant at which the picture ends
}

function Bar({ attempt, y, from, to, end }: BarProps): JSX.Element {
  const { started_at: started, worker, outcome, number } = attempt;
  const when = started === null ? "" : `, ${moment(started)}`;
  const lasted = started === null ? "" : `${duration((attempt.ended_at ?? end) - started)} · `;
  const long = Math.max(LEAST, to - from);
  return (
    <g class={`t-${toneOf(outcome)}`}>
      <text x={0} y={y + 14} class="label">
        attempt {number}
      </text>
      <rect
        class={attempt.ended_at === null ? "attempt open" : "attempt"}
        x={from}
        y={y + 3}
        width={long}
        height={14}
        rx={Math.min(3, long / 2)}
      >
        <title>{`Attempt ${number}: ${outcome}${when}${worker ? `, ${worker}` : ""}`}</title>
      </rect>
      <text x={from + long + 8} y={y + 14} class="outcome">
        {lasted}
        {outcome}
      </text>
    </g>
  );
}
