/** Is work getting done, how long does it wait, what fails: the first screen answers these. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { FailureGroups, Notice, Overview as Look } from "../api";
import { Note } from "../design/Badge";
import { Empty } from "../design/Empty";
import { Prose } from "../design/Prose";
import { Panel } from "../design/Table";
import { announceLater } from "../lib/announce";
import { brief, count, duration, plural, span } from "../lib/format";
import { useListKeys } from "../lib/list";
import { useLoad } from "../lib/load";
import { link, overview } from "../lib/live";
import { href } from "../lib/route";
import { me } from "../lib/session";
import { firstJob } from "../parts/firstJob";
import { FailureRows } from "../parts/FailureRows";
import { MetricCharts, SpanChoice } from "../parts/MetricCharts";
import { QueueTable } from "../parts/QueueTable";
import { WorkerRows } from "../parts/WorkerRows";
import { worker } from "../parts/terminal";
import { PageHead } from "../shell/PageHead";

const TOP = 5; // groups of failures
const LOOK = 30; // s between two looks at them

export function Overview(): JSX.Element {
  const look = overview.value;
  useListKeys();
  useEffect(() => {
    if (look)
      announceLater(
        `${plural(look.totals.queued, "job")} queued, ${look.totals.running} running, ${count(look.totals.failed)} failed.`,
      );
  }, [look]);
  return (
    <>
      <PageHead title="Overview" acts={<SpanChoice />} />
      {look ? <Filled look={look} /> : <Waiting />}
    </>
  );
}

function Waiting(): JSX.Element {
  return (
    <section class="panel">
      {link.value === "lost" ? (
        <Empty title="The server does not answer">The page tries again every 5 s.</Empty>
      ) : (
        <div class="pad skeleton-tall" role="status">
          <span class="hidden">Reading…</span>
        </div>
      )}
    </section>
  );
}

function Filled({ look }: { look: Look }): JSX.Element {
  const failures = useLoad<FailureGroups>(look.totals.failed ? "failures?scan=1000" : null, LOOK);
  const groups = failures.data?.groups.slice(0, TOP) ?? [];
  const fresh = !look.queues.length;
  return (
    <>
      {look.notices.length > 0 && <Notices of={look.notices} />}
      <Figures of={look} />
      {fresh ? (
        <section class="panel">
          <FirstSteps />
        </section>
      ) : (
        <>
          <MetricCharts />
          <Panel title="Queues" acts={<Quiet to="queues" words={plural(look.queues.length, "queue")} />}>
            <QueueTable queues={look.queues} />
          </Panel>
          {groups.length > 0 && (
            <Panel title="What fails most" acts={<Quiet to="failures" words="All failures" />}>
              <FailureRows groups={groups} />
            </Panel>
          )}
        </>
      )}
      {(!fresh || look.workers.length > 0) && (
        <Panel
          title="Workers"
          acts={look.workers.length > 0 && <Quiet to="workers" words={plural(look.workers.length, "worker")} />}
        >
          {look.workers.length ? (
            <WorkerRows
              workers={look.workers
                .toSorted((a, b) => b.running / (b.slots || 1) - a.running / (a.slots || 1))
                .slice(0, 6)}
            />
          ) : (
            <Empty title="No worker has sent a heartbeat recently" code={worker()}>
              Jobs stay queued until a worker serves their queue.
            </Empty>
          )}
        </Panel>
      )}
      <p class="small quiet">
        One look took {duration(look.cost_ms / 1000)}; the next one is {duration(look.every)} later, for all readers
        of this server.
      </p>
    </>
  );
}

function Quiet({ to, words }: { to: string; words: string }): JSX.Element {
  return (
    <a class="button plain slim" href={to}>
      {words}
    </a>
  );
}

function Notices({ of }: { of: readonly Notice[] }): JSX.Element {
  return (
    <ul class="notices" aria-label="Notices">
      {of.map((each) => (
        <li key={each.text}>
          <Note tone={each.level === "error" ? "bad" : each.level === "warning" ? "warn" : "live"} sign={each.level}>
            <b>
              <Prose text={each.text} />
            </b>{" "}
            {each.advice && (
              <span class="quiet">
                <Prose text={each.advice} />
              </span>
            )}{" "}
            {each.href && (
              <a href={each.href} class="nowrap">
                Show it
              </a>
            )}
          </Note>
        </li>
      ))}
    </ul>
  );
}

interface FigureProps {
  words: string;
  value: string;
  below: string;
  to: string;
  tone?: string | undefined;
}

function Figure({ words, value, below, to, tone }: FigureProps): JSX.Element {
  return (
    <a class={`figure ${tone ?? ""}`} href={to} data-testid={`tile-${words}`}>
      <span class="figure-words">{words}</span>
      <b>{value}</b>
      <span class="small quiet">{below}</span>
    </a>
  );
}

function Figures({ of }: { of: Look }): JSX.Element {
  const { totals, rates, queues } = of;
  const capped = (name: "queued"): boolean => totals.capped.includes(name);
  const oldest = queues.reduce<number | null>(
    (most, each) => (each.oldest === null ? most : Math.max(most ?? 0, each.oldest)),
    null,
  );
  const ended = rates.succeeded === null ? null : rates.succeeded + (rates.failed ?? 0);
  const waits = [
    oldest !== null && `oldest ${span(oldest)}`,
    ...(["blocked", "scheduled", "waiting"] as const).map(
      (each) => totals[each] && `${count(totals[each], totals.capped.includes(each))} ${each}`,
    ),
  ].filter(Boolean);
  return (
    <section class="figures" aria-label="Figures">
      <Figure
        words="queued"
        value={count(totals.queued, capped("queued"))}
        below={waits.slice(0, 2).join(", ") || "nothing waits"}
        to={href(["jobs"], { status: "queued" })}
      />
      <Figure
        words="running"
        value={count(totals.running)}
        below={totals.slots ? `of ${plural(totals.slots, "slot")}` : "no worker"}
        to={href(["jobs"], { status: "running" })}
      />
      <Figure
        words="ended"
        value={ended === null ? "–" : `${brief(ended)}/s`}
        below={rates.run_p95 === null ? "last minute" : `p95 run ${duration(rates.run_p95)}`}
        to={href(["jobs"], { status: "succeeded" })}
      />
      <Figure
        words="time in the queue"
        value={rates.wait_p95 === null ? "–" : duration(rates.wait_p95)}
        below={rates.wait_p50 === null ? "last minute" : `p95; p50 ${duration(rates.wait_p50)}`}
        to="queues"
      />
      <Figure
        words="failed"
        value={count(totals.failed, totals.capped.includes("failed"))}
        below={rates.failed ? `${brief(rates.failed)}/s in the last minute` : "none in the last minute"}
        to="failures"
        tone={totals.failed ? "t-bad toned" : undefined}
      />
    </section>
  );
}

function FirstSteps(): JSX.Element {
  const storage = me.value?.storage ?? "";
  return (
    <Empty title="No jobs yet" code={firstJob(storage.includes("***") ? "sqlite:///treadle.db" : storage)}>
      Declare a task, enqueue it, and run a worker with <code>{worker()}</code>. This page follows
      by itself.
    </Empty>
  );
}
