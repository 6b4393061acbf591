/** The jobs of a workflow over time: a thin line while a job waits, a bar while it runs. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Job } from "../api";
import { now } from "../lib/clock";
import { duration, moment, plural, shortName } from "../lib/format";
import { href } from "../lib/route";
import { isFinal, statusOf, toneOf } from "../lib/status";

const ROW = 22; // px
const LEFT = 150;
const RIGHT = 64;
const TOP = 22;

export function Gantt({ jobs, focus }: { jobs: readonly Job[]; focus: string | null }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const measured = useSignal(800);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => (measured.value = Math.floor(entry!.contentRect.width)));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  const width = Math.max(420, measured.value);
  const from = Math.min(...jobs.map((job) => job.created_at));
  const open = jobs.some((job) => !isFinal(job.state));
  const to = open ? now.value : Math.max(...jobs.map((job) => job.ended_at ?? job.created_at));
  const x = (at: number): number => LEFT + ((width - LEFT - RIGHT) * (Math.min(at, to) - from)) / (to - from || 1);
  const rows = jobs.toSorted(
    (a, b) => (a.started_at ?? Infinity) - (b.started_at ?? Infinity) || a.created_at - b.created_at,
  );
  return (
    <div class="scroller gantt" ref={box} tabIndex={0} role="region" aria-label="Jobs over time">
      <svg
        width={width}
        height={TOP + rows.length * ROW + 6}
        role="group"
        aria-label={`${plural(jobs.length, "job")} over ${duration(to - from)}`}
      >
        {[0, 0.25, 0.5, 0.75, 1].map((share) => {
          const place = LEFT + (width - LEFT - RIGHT) * share;
          return (
            <g key={share}>
              <line class="grid" x1={place} x2={place} y1={TOP - 6} y2={TOP + rows.length * ROW} />
              <text x={place} y={11} text-anchor={share ? "middle" : "start"}>
                {share ? `+ ${duration((to - from) * share)}` : moment(from)}
              </text>
            </g>
          );
        })}
        {rows.map((job, n) => {
          const y = TOP + n * ROW;
          const end = job.ended_at ?? (job.state === "running" ? to : null);
          const start = job.started_at;
          const name = shortName(job.task);
          return (
            <a
              key={job.id}
              href={href(["jobs", job.id])}
              class={`t-${toneOf(statusOf(job))}${job.id === focus ? " here" : ""}`}
            >
              <title>{`${job.task}: ${statusOf(job)}`}</title>
              <rect class="hit" x={0} y={y} width={width} height={ROW} />
              <text x={4} y={y + 14.5} class="label">
                {name.length > 20 ? `${name.slice(0, 19)}…` : name}
              </text>
              <line class="wait" x1={x(job.created_at)} x2={x(start ?? end ?? to)} y1={y + 11} y2={y + 11} />
              {start !== null && end !== null && (
                <rect
                  class="attempt"
                  x={x(start)}
                  y={y + 5}
                  width={Math.max(3, x(end) - x(start))}
                  height={12}
                  rx={2}
                />
              )}
              <text class="small-text" x={x(end ?? to) + 6} y={y + 14.5}>
                {start !== null && end !== null ? duration(end - start) : statusOf(job)}
              </text>
            </a>
          );
        })}
      </svg>
    </div>
  );
}
