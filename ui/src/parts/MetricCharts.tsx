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
  const chosen = query.get("span") ?? "1h";
  return chosen in SPANS ? chosen : "1h";
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
function perSecond(values: readonly (number | null)[], metrics: Metrics | null): (number | null)[] {
  if (!metrics) return [];
  return values.map((each, n) => {
    const begin = metrics.at[n] ?? 0;
    const lasted = Math.min(metrics.step, metrics.to - begin);
    const isKnown = metrics.since !== null && begin + metrics.step > metrics.since;
    return each === null || lasted < SHORT || !isKnown ? null : each / lasted;
  });
}

export function MetricCharts({ queue, task }: { queue?: string; task?: string }): JSX.Element {
  const span = SPANS[spanOf(route.value.query)]!;
  const to = useComputed(() => Math.floor(now.value / LOOK) * LOOK).value; // a new value is a new look
  const load = useLoad<Metrics>(withQuery("metrics", { from: to - span.seconds, to, step: span.step, queue, task }));
  const metrics = load.data;
  const times = metrics?.at ?? [];
  const axis = { at: times, from: metrics?.from ?? to - span.seconds, to: metrics?.to ?? to };
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
            { words: "succeeded", tone: "good", values: perSecond(metrics?.succeeded ?? [], metrics), area: true },
            { words: "failed", tone: "bad", values: perSecond(metrics?.failed ?? [], metrics) },
            { words: "retried", tone: "warn", values: perSecond(metrics?.retried ?? [], metrics), dashed: true },
          ]}
        />
      </div>
      <div class="panel">
        <Chart
          title="Time in the queue"
          {...axis}
          format={duration}
          series={[
            { words: "p50", tone: "live", values: metrics?.wait.p50 ?? [], area: true },
            { words: "p95", tone: "later", values: metrics?.wait.p95 ?? [], dashed: true },
          ]}
        />
      </div>
      <div class="panel">
        <Chart
          title="Run time"
          {...axis}
          format={duration}
          series={[
            { words: "p50", tone: "live", values: metrics?.run.p50 ?? [], area: true },
            { words: "p95", tone: "later", values: metrics?.run.p95 ?? [], dashed: true },
          ]}
        />
      </div>
      {metrics?.since != null && metrics.since > axis.from + metrics.step && (
        <p class="small quiet charts-note">There are figures since {moment(metrics.since)}.</p>
      )}
    </section>
  );
}
