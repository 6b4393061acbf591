/** One workflow: its graph or its course over time, and its jobs as a table for readers. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Graph as Layout, Job, Page, State } from "../api";
import { Badge, Time } from "../design/Badge";
import { Button } from "../design/Button";
import { Parts } from "../design/Chart";
import { Empty, Loaded } from "../design/Empty";
import { Segments } from "../design/Field";
import { Panel } from "../design/Table";
import { count, duration, plural, shortId } from "../lib/format";
import { part, withQuery } from "../lib/http";
import { useListKeys } from "../lib/list";
import { useLoad } from "../lib/load";
import { href, route, setQuery } from "../lib/route";
import { canOperate } from "../lib/session";
import { isFinal, statusOf, toneOf } from "../lib/status";
import { askBulk, askCancel } from "../parts/open";
import { Gantt } from "../parts/Gantt";
import { Graph } from "../parts/Graph";
import { JobTable } from "../parts/JobTable";
import { PageHead } from "../shell/PageHead";

const LOOK = 3; // s between two looks at an unfinished workflow
const FOLD = 12; // jobs of one task beyond which the server folds them
const LISTED = 200; // jobs in the table

export function Workflow({ id }: { id: string }): JSX.Element {
  const view = route.value.query.get("view") === "time" ? "time" : "graph";
  const open = useSignal<readonly string[]>([]);
  const root = useLoad<Job>(`jobs/${part(id)}`, LOOK);
  const over = root.data !== null && isFinal(root.data.state);
  const every = over ? LOOK * 10 : LOOK;
  const graph = useLoad<Layout>(
    withQuery(`workflows/${part(id)}/graph`, { fold: FOLD, open: open.value.join(",") }),
    every,
  );
  const jobs = useLoad<Page>(withQuery("jobs", { workflow: id, limit: LISTED, order: "oldest" }), every);
  const focus = route.value.query.get("job");
  useListKeys();
  const job = root.data;
  const sums = graph.data && sumsOf(graph.data);
  return (
    <>
      <PageHead
        title={job?.task ?? shortId(id)}
        kind="Workflow"
        crumbs={[["workflows", "Workflows"]]}
        mono
        beside={job && <Badge of={statusOf(job)} filled />}
        acts={job && sums && <Acts job={job} sums={sums} />}
      >
        <div class="row id-line">
          <a class="mono any" href={href(["jobs", id])}>
            {id}
          </a>
          {job && (
            <span class="quiet">
              created <Time at={job.created_at} />
              {job.ended_at && `, took ${duration(job.ended_at - job.created_at)}`}
            </span>
          )}
        </div>
      </PageHead>
      {sums && <Counts sums={sums} capped={graph.data?.capped ?? false} />}
      <section class="panel" aria-label="Picture">
        {view === "graph" ? (
          <Loaded of={graph}>
            {(graph) => (
              <Graph of={graph} focus={focus} onOpen={(group) => (open.value = [...open.value, group])}>
                <ViewChoice view={view} />
                {open.value.length > 0 && (
                  <Button slim kind="plain" onClick={() => (open.value = [])}>
                    Fold all
                  </Button>
                )}
                {graph.capped && (
                  <span class="quiet small">A part of {plural(graph.total, "job", true)} is drawn.</span>
                )}
              </Graph>
            )}
          </Loaded>
        ) : (
          <Loaded of={jobs}>
            {(page) => (
              <>
                <header>
                  <ViewChoice view={view} />
                </header>
                {page.jobs.length ? <Gantt jobs={page.jobs} focus={focus} /> : <Empty title="No jobs" />}
              </>
            )}
          </Loaded>
        )}
      </section>
      <Panel
        title="Jobs"
        acts={
          <a class="button plain slim" href={href(["jobs"], { workflow: id })}>
            Filter and act
          </a>
        }
      >
        <Loaded of={jobs}>
          {(page) => (
            <>
              <JobTable jobs={page.jobs} view="all" caption="Jobs of the workflow" />
              {page.cursor && <p class="pad small quiet">The oldest {LISTED} jobs. The list of jobs has the others.</p>}
            </>
          )}
        </Loaded>
      </Panel>
    </>
  );
}

function ViewChoice({ view }: { view: string }): JSX.Element {
  return (
    <Segments
      label="View"
      value={view}
      choices={[
        ["graph", "Graph"],
        ["time", "Over time"],
      ]}
      onChange={(value) => setQuery({ view: value === "graph" ? "" : value })}
    />
  );
}

type Sums = ReadonlyMap<string, number>;

/** The jobs of the graph by state. Joints are no jobs. */
function sumsOf(of: Layout): Sums {
  const sums = new Map<string, number>();
  for (const node of of.nodes) {
    if (node.kind === "joint") continue;
    const states = node.kind === "fold" ? node.states : { [node.state]: 1 };
    for (const [state, n] of Object.entries(states)) sums.set(state, (sums.get(state) ?? 0) + n);
  }
  return sums;
}

function Acts({ job, sums }: { job: Job; sums: Sums }): JSX.Element | null {
  if (!canOperate.value) return null;
  const open = [...sums].some(([state, n]) => n > 0 && !isFinal(state as State));
  return (
    <>
      {Boolean(sums.get("failed")) && (
        <Button onClick={() => askBulk("retry", { filter: { workflow: job.id, state: "failed" } })}>
          Retry what failed…
        </Button>
      )}
      {!isFinal(job.state) && (
        <Button kind="danger" onClick={() => askCancel(job)}>
          Cancel all…
        </Button>
      )}
      {isFinal(job.state) && open && (
        <Button kind="danger" onClick={() => askBulk("cancel", { filter: { workflow: job.id } })}>
          Cancel what is left…
        </Button>
      )}
    </>
  );
}

function Counts({ sums, capped }: { sums: Sums; capped: boolean }): JSX.Element {
  const all = [...sums.values()].reduce((sum, n) => sum + n, 0);
  const done = ["succeeded", "failed", "cancelled"].reduce((sum, state) => sum + (sums.get(state) ?? 0), 0);
  return (
    <div class="row wide-gap">
      <span class="progress long">
        <Parts
          parts={(["succeeded", "failed", "running"] as const).map((state) => [
            toneOf(state),
            (sums.get(state) ?? 0) / (all || 1),
          ])}
        />
        <span class="nowrap">
          {count(done)} of {plural(all, "job", capped)}
        </span>
      </span>
      {[...sums].map(([state, n]) => (
        <Badge key={state} of={state}>
          {count(n)} {state === "ready" ? "queued" : state}
        </Badge>
      ))}
    </div>
  );
}
