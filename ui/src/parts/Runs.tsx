import type { JSX } from "preact";
import type { Schedule } from "../api";
import { moment } from "../lib/format";
import { href } from "../lib/route";
import { toneOf } from "../lib/status";

/** The last runs of a schedule as dots, the oldest first: full for a success, a cross for a failure, else a circle. */
export function Runs({ recent }: { recent: Schedule["recent"] }): JSX.Element {
  if (!recent.length) return <span class="zero">–</span>;
  const sorted = recent.toSorted((a, b) => a.at - b.at);
  return (
    <svg
      class="runs"
      width={sorted.length * 11}
      height="24"
      viewBox={`0 0 ${sorted.length * 11} 24`}
      role="group"
      aria-label="Last runs"
    >
      {sorted.map((run, n) => {
        const label = `${run.state}, ${moment(run.at)}`;
        const x = n * 11 + 5.5;
        return (
          <a key={run.id} href={href(["jobs", run.id])} aria-label={label} class={`t-${toneOf(run.state)}`}>
            <rect class="hit" x={x - 5.5} y="0" width="11" height="24" />
            {run.state === "failed" ? (
              <path d={`M${x - 3} 9l6 6M${x + 3} 9l-6 6`} class="cross" />
            ) : (
              <circle cx={x} cy="12" r="3.6" class={run.state === "succeeded" ? "full" : "ring"} />
            )}
            <title>{label}</title>
          </a>
        );
      })}
    </svg>
  );
}
