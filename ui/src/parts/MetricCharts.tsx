/** The three charts of a storage, a queue or a task: throughput, time in the queue, run time. */
import { useComputed } from "@preact/signals";
import type { JSX } from "preact";
import type { Metrics } from "../api";
import { Note } from "../design/Badge";
import { Chart } from "../design/Chart";
import { Segments } from "../design/Field";
import { now } from "../lib/clock";
import { brief, duration, moment } from "../lib/format";
import { withQuery } from "../lib/http";
import { useLoad } from "../lib/load";
import { route, setQuery } from "../lib/route";

const SHORT = 20; // s; a worker reports each 10 s
const LOOK = 15; // s between two looks

interface Span {
  words: string;
  seconds: number;
  step: number; // s a point
}

const SPANS: Record<string, Span> = {
  "15m": { words: "15 min", seconds: 900, step: 60 },
  "1h": { words: "1 h", seconds: 3_600, step: 60 },
  "24h": { words: "24 h", seconds: 86_400, step: 600 },
  "7d": { words: "7 d", seconds: 604_800, step: 3_600 },
};

export function spanOf(query: URLSearchParams): string {
  const found = query.get("span") ?? "1h";
  return found in SPANS ? found : "1h";
}

export function SpanChoice(): JSX.Element {
  const value = spanOf(route.value.query);
  return (
    <Segments
      label="Span of the charts"
      value={value}
      choices={Object.entries(SPANS).map(([name, each]) => [name, each.words] as const)}
      onChange={(name) => setQuery({ span: name === "1h" ? "" : name })}
    />
  );
}

/** Counts as rates. The last bucket is not over yet: it counts for its time so far, or not at all if that is short.
 * Before the first figure there is a gap, as in the charts of times, because nothing is known; 0 would be a figure. */
function perSecond(values: readonly (number | null)[], found: Metrics | null): (number | null)[] {
  if (!found) return [];
  return values.map((each, n) => {
    const begin = found.at[n] ?? 0;
    const lasted = Math.min(found.step, found.to - begin);
    const isKnown = found.since !== null && begin + found.step > found.since;
    return each === null || lasted < SHORT || !isKnown ? null : each / lasted;
  });
}

export function MetricCharts({ queue, task }: { queue?: string; task?: string }): JSX.Element {
  const span = SPANS[spanOf(route.value.query)]!;
  const to = useComputed(() => Math.floor(now.value / LOOK) * LOOK).value; // a new value is a new look
  const load = useLoad<Metrics>(withQuery("metrics", { from: to - span.seconds, to, step: span.step, queue, task }));
  const found = load.data;
  const at = found?.at ?? [];
  const axis = { at, from: found?.from ?? to - span.seconds, to: found?.to ?? to };
  const rate = (value: number): string => `${brief(value)}/s`;
  return (
    <section class="charts" aria-label="Charts">
      {load.error && (
        <Note tone="bad" sign="error">
          {load.error.message}
        </Note>
      )}
      <div class="panel">
        <Chart
          title="Throughput"
          {...axis}
          format={rate}
          series={[
            { words: "succeeded", tone: "good", values: perSecond(found?.succeeded ?? [], found), area: true },
            { words: "failed", tone: "bad", values: perSecond(found?.failed ?? [], found) },
            { words: "retried", tone: "warn", values: perSecond(found?.retried ?? [], found), dashed: true },
          ]}
        />
      </div>
      <div class="panel">
        <Chart
          title="Time in the queue"
          {...axis}
          format={duration}
          series={[
            { words: "p50", tone: "live", values: found?.wait.p50 ?? [], area: true },
            { words: "p95", tone: "later", values: found?.wait.p95 ?? [], dashed: true },
          ]}
        />
      </div>
      <div class="panel">
        <Chart
          title="Run time"
          {...axis}
          format={duration}
          series={[
            { words: "p50", tone: "live", values: found?.run.p50 ?? [], area: true },
            { words: "p95", tone: "later", values: found?.run.p95 ?? [], dashed: true },
          ]}
        />
      </div>
      {found?.since != null && found.since > axis.from + found.step && (
        <p class="small quiet charts-note">There are figures since {moment(found.since)}.</p>
      )}
    </section>
  );
}
