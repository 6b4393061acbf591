/** One worker as its last heartbeat describes it, and the jobs that it runs now. */
import type { JSX } from "preact";
import type { Page, Worker as Row } from "../api";
import { Empty, Loaded } from "../design/Empty";
import { Facts, Panel } from "../design/Table";
import { count, duration, plural, span } from "../lib/format";
import { withQuery } from "../lib/http";
import { useListKeys } from "../lib/list";
import { useLoad } from "../lib/load";
import { overview } from "../lib/live";
import { href } from "../lib/route";
import { JobTable } from "../parts/JobTable";
import { Load, WorkerState } from "../parts/WorkerRows";
import { PageHead } from "../shell/PageHead";

const LOOK = 5; // s
const MOST = 200; // running jobs that are shown

export function Worker({ name }: { name: string }): JSX.Element {
  const look = overview.value;
  const worker = look?.workers.find((each) => each.worker === name);
  const running = useLoad<Page>(withQuery("jobs", { worker: name, order: "started", limit: MOST }), LOOK);
  useListKeys();
  return (
    <>
      <PageHead
        title={name}
        kind="Worker"
        crumbs={[["workers", "Workers"]]}
        mono
        beside={worker && <WorkerState of={worker} />}
      />
      {look && !worker && (
        <section class="panel">
          <Empty title="This worker has not sent a heartbeat recently">
            It has stopped, or it cannot reach the storage. Its jobs are claimed again when their leases expire.
          </Empty>
        </section>
      )}
      {worker && <Description of={worker} />}
      <Panel title="Runs now">
        <Loaded of={running}>
          {(page) => (
            <>
              {page.jobs.length ? (
                <JobTable jobs={page.jobs} view="running" caption="Jobs that this worker runs" />
              ) : (
                <Empty title={page.cursor ? "None of the jobs that were looked at" : "It runs no job"} />
              )}
              {page.cursor && <p class="pad small quiet">It may run more than these.</p>}
            </>
          )}
        </Loaded>
      </Panel>
    </>
  );
}

function Description({ of }: { of: Row }): JSX.Element {
  return (
    <div class="columns even">
      <Panel title="Process" pad>
        <Facts
          rows={[
            ["host", of.host || "–"],
            ["pid", of.pid || "–"],
            ["uptime", span(of.uptime)],
            ["heartbeat", `${duration(Math.round(of.age))} ago; it counts as gone after ${duration(of.ttl)}`],
            ["running / slots", <Load of={of} />],
            ["leader", of.leader ? "yes: it runs the maintenance of the storage" : "no"],
            of.draining && ["replaced", `${of.draining}; it ends its running jobs`],
            of.paused > 0 && ["throttle", `claims nothing for ${duration(of.paused)}`],
            of.labels.length > 0 && [
              "labels",
              of.labels.map(([name, value]) => (value ? `${name}=${value}` : name)).join(", "),
            ],
            ...of.resources.map(
              ([name, has, used]) => [name, `${count(used)} of ${count(has)} in use`] as const,
            ),
            of.reserved && ["reservation", `starts nothing smaller until there is room for ${of.reserved}`],
            ...of.gathering.map(
              ([task, since, until]) =>
                [`batch of ${task}`, `gathers for ${duration(since)}, calls in ${duration(until)}`] as const,
            ),
          ]}
        />
      </Panel>
      <Panel title={plural(of.queues.length, "queue")} pad>
        <div class="row">
          {of.queues.map((each) => (
            <a key={each} class="chip" href={href(["queues", each])}>
              {each}
            </a>
          ))}
        </div>
      </Panel>
      <Panel title={plural(of.tasks.length, "task")} pad>
        <div class="row">
          {of.tasks.map((each) => (
            <a key={each} class="chip" href={href(["jobs"], { task: each })}>
              {each}
            </a>
          ))}
        </div>
      </Panel>
    </div>
  );
}
