/** All jobs, by status and filter. Rows stay where they are while somebody reads; newer ones wait for a click. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Act, FilterAsked, Job, Page, Status } from "../api";
import { Time } from "../design/Badge";
import { Button } from "../design/Button";
import { Empty, Loaded } from "../design/Empty";
import { Tabs } from "../design/Tabs";
import { failed } from "../design/toasts";
import { count, plural } from "../lib/format";
import { get, withQuery, type Params } from "../lib/http";
import { focusedRow, useListKeys, useSelection, type Selection } from "../lib/list";
import { useLoad } from "../lib/load";
import { overview } from "../lib/live";
import { go, href, route, setQuery } from "../lib/route";
import { canEnqueue, canOperate, epoch } from "../lib/session";
import { rows } from "../lib/settings";
import { isFinal, statusOf, STATUSES } from "../lib/status";
import { retryJob, runJobNow } from "../parts/acts";
import { firstJob } from "../parts/firstJob";
import { FILTERS, JobFilter } from "../parts/JobFilter";
import { JobTable, type View } from "../parts/JobTable";
import { askBulk, askCancel, openEnqueue } from "../parts/open";
import { PageHead } from "../shell/PageHead";

const LOOK = 10; // s between two looks for newer jobs; a search by text is a look at many rows, and is not repeated
const SORTED = 60; // s if a SQLite file must sort 10,000 ended jobs for the page: 0.03 s

/** The order in which each status is read at a bounded cost. */
const ORDERS: Record<View, string> = {
  all: "newest",
  queued: "queue",
  running: "started",
  scheduled: "due",
  blocked: "newest",
  waiting: "newest",
  succeeded: "ended",
  failed: "ended",
  cancelled: "ended",
};

function filterOf(query: URLSearchParams): FilterAsked {
  const filter: Record<string, string | number> = {};
  for (const name of ["status", ...FILTERS]) {
    const value = query.get(name);
    if (value) filter[name] = name === "since" || name === "before" ? Number(value) : value;
  }
  return filter as FilterAsked;
}

export function Jobs(): JSX.Element {
  const { query } = route.value;
  const view = (STATUSES.includes(query.get("status") as Status) ? query.get("status") : "all") as View;
  const filter = filterOf(query);
  const params: Params = {
    ...filter,
    order: query.get("order") ?? (filter.q && view === "succeeded" ? "newest" : ORDERS[view]),
    limit: rows.value,
    cursor: query.get("cursor"),
  };
  const path = withQuery("jobs", params);
  const isSorted = params["order"] === "ended" && view !== "failed" && view !== "cancelled";
  const load = useLoad<Page>(path, query.get("cursor") || filter.q ? 0 : isSorted ? SORTED : LOOK);
  const selection = useSelection();
  useEffect(selection.clear, [path]);
  return (
    <>
      <PageHead
        title="Jobs"
        acts={
          canEnqueue.value && (
            <Button icon="plus" onClick={() => openEnqueue()}>
              Enqueue a job
            </Button>
          )
        }
      />
      <StatusTabs view={view} filter={filter} />
      <JobFilter query={query} />
      <section class={load.of === path ? "panel" : "panel stale"} aria-busy={load.of !== path}>
        <Loaded of={load}>
          {(page) => (
            <List key={load.of} page={page} params={params} view={view} filter={filter} selection={selection} />
          )}
        </Loaded>
      </section>
      {filter.q && load.data && (
        <p class="row small quiet">
          A search by text is not repeated by itself.
          <Button slim kind="plain" onClick={load.reload}>
            Search again
          </Button>
        </p>
      )}
    </>
  );
}

function StatusTabs({ view, filter }: { view: View; filter: FilterAsked }): JSX.Element {
  const totals = overview.value?.totals;
  const { status: _, ...others } = filter;
  const plain = Object.keys(others).length === 0;
  const to = (status?: string): string => href(["jobs"], { ...others, status });
  return (
    <Tabs
      label="Status"
      tabs={[
        { to: to(), words: "All", here: view === "all" },
        ...STATUSES.map((status) => {
          const value = plain ? totals?.[status as "queued"] : undefined;
          return {
            to: to(status),
            words: status[0]!.toUpperCase() + status.slice(1),
            here: view === status,
            count: value ? count(value, totals?.capped.includes(status as "queued")) : null,
          };
        }),
      ]}
    />
  );
}

interface ListProps {
  page: Page;
  params: Params;
  view: View;
  filter: FilterAsked;
  selection: Selection;
}

/** Returns the page that is shown, how much has changed since, and a function that shows the newest. */
function useStill(page: Page): [shown: Page, fresh: number, gone: number, catchUp: () => void] {
  const shown = useSignal(page);
  const round = useRef(epoch.value);
  const before = new Set(shown.value.jobs.map((job) => job.id));
  const now = new Map(page.jobs.map((job) => [job.id, job]));
  const fresh = page.jobs.filter((job) => !before.has(job.id)).length;
  const gone = page.cursor ? 0 : shown.value.jobs.filter((job) => !now.has(job.id)).length;
  const catchUp = (): void => {
    shown.value = page;
  };
  useEffect(() => {
    if (!shown.peek().jobs.length || round.current !== epoch.peek()) shown.value = page;
    round.current = epoch.peek();
  }, [page]);
  const still = { ...shown.value, jobs: shown.value.jobs.map((job) => now.get(job.id) ?? job) };
  return [still, fresh, gone, catchUp];
}

function List({ page, params, view, filter, selection }: ListProps): JSX.Element {
  const [shown, fresh, gone, catchUp] = useStill(page);
  const further = useSignal<Page | null>(null);
  const jobs = [...shown.jobs, ...(further.value?.jobs ?? [])];
  const end = further.value ?? shown;
  const full = shown.jobs.length >= Number(rows.value);
  useJobKeys(jobs, selection, full ? end.cursor : null);
  return (
    <>
      <SelectionBar selection={selection} filter={filter} view={view} jobs={jobs} />
      {(fresh > 0 || gone > 0) && (
        <button type="button" class="fresh" onClick={catchUp}>
          {[fresh && `${count(fresh)} new`, gone && `${count(gone)} gone`].filter(Boolean).join(", ")} – update the list
        </button>
      )}
      {jobs.length ? (
        <JobTable
          jobs={jobs}
          view={view}
          caption={`Jobs, ${view}`}
          selection={canOperate.value ? selection : undefined}
        />
      ) : (
        <Nothing page={end} filter={filter} />
      )}
      <End
        page={end}
        params={params}
        full={full}
        onMore={(page) => (further.value = { ...page, jobs: [...(further.value?.jobs ?? []), ...page.jobs] })}
      />
    </>
  );
}

function Nothing({ page, filter }: { page: Page; filter: FilterAsked }): JSX.Element {
  const { status, ...others } = filter;
  if (page.cursor && page.scanned) {
    return (
      <Empty title={`No job among ${plural(page.scanned, "row")} matches`}>
        The list has looked{" "}
        {page.scanned_to ? (
          <>
            back to <Time at={page.scanned_to} exact />
          </>
        ) : (
          "at a part of the rows"
        )}
        . Look further below, or make the filter narrower.
      </Empty>
    );
  }
  if (Object.keys(others).length)
    return (
      <Empty
        title="No job matches"
        acts={
          <Button onClick={() => setQuery(Object.fromEntries(FILTERS.map((name) => [name, ""])))}>
            Clear the filter
          </Button>
        }
      />
    );
  if (status) return <Empty title={`No job is ${status}`}>Other jobs are under the other tabs.</Empty>;
  return (
    <Empty title="No jobs yet" code={firstJob("sqlite:///treadle.db")}>
      A job appears here as soon as a program enqueues it.
    </Empty>
  );
}

/** The way on: the next page, or a further look where a bound ended this one. */
function End({
  page,
  params,
  full,
  onMore,
}: {
  page: Page;
  params: Params;
  full: boolean;
  onMore: (page: Page) => void;
}): JSX.Element | null {
  const looking = useSignal(false);
  const { query } = route.value;
  const look = async (): Promise<void> => {
    looking.value = true;
    let cursor = page.cursor;
    try {
      while (looking.value && cursor) {
        const page = await get<Page>(withQuery("jobs", { ...params, cursor }));
        if (!looking.value) return;
        onMore(page);
        cursor = page.cursor;
        if (page.jobs.length) break;
      }
    } catch (error) {
      failed(error);
    }
    looking.value = false;
  };
  useEffect(() => () => void (looking.value = false), []);
  if (!page.cursor && !query.get("cursor")) return null;
  return (
    <footer class="list-end">
      {page.scanned !== null && page.cursor && !full && (
        <span class="quiet">
          Looked at {plural(page.scanned, "row")}
          {page.scanned_to && (
            <>
              , back to <Time at={page.scanned_to} exact />
            </>
          )}
          .
        </span>
      )}
      <span class="row push">
        {query.get("cursor") && (
          <Button icon="left" onClick={() => history.back()}>
            Newer
          </Button>
        )}
        {page.cursor && full && (
          <Button icon="right" onClick={() => setQuery({ cursor: page.cursor }, {})}>
            Older
          </Button>
        )}
        {page.cursor &&
          !full &&
          (looking.value ? (
            <Button onClick={() => (looking.value = false)}>Stop</Button>
          ) : (
            <Button onClick={() => void look()}>Look further</Button>
          ))}
      </span>
    </footer>
  );
}

const ACTS: readonly (readonly [act: Act, words: string, views: readonly View[]])[] = [
  ["retry", "Retry", ["all", "failed", "cancelled"]],
  ["run_now", "Run now", ["all", "scheduled"]],
  ["cancel", "Cancel", ["all", "queued", "running", "scheduled", "blocked", "waiting"]],
  ["delete", "Delete", ["all", "succeeded", "failed", "cancelled"]],
];

function SelectionBar({
  selection,
  filter,
  view,
  jobs,
}: Pick<ListProps, "selection" | "filter" | "view"> & { jobs: readonly Job[] }): JSX.Element | null {
  const chosen = selection.ids.value;
  const whole = useSignal(false);
  useEffect(() => {
    if (!chosen.size) whole.value = false;
  }, [chosen.size]);
  if (!chosen.size) return null;
  const target = whole.value ? { filter } : { ids: [...chosen] };
  return (
    <div class="selection" role="region" aria-label="Selected jobs">
      <b>{whole.value ? "All jobs that match" : `${count(chosen.size)} selected`}</b>
      {!whole.value && chosen.size === jobs.length && (
        <button type="button" class="linklike" onClick={() => (whole.value = true)}>
          Select all that match
        </button>
      )}
      <span class="row push">
        {ACTS.filter(([, , views]) => views.includes(view)).map(([act, words]) => (
          <Button
            key={act}
            slim
            kind={act === "delete" || act === "cancel" ? "danger" : "plain"}
            onClick={() => askBulk(act, target, selection.clear)}
          >
            {words}
          </Button>
        ))}
        <Button slim kind="plain" icon="close" label="Clear the selection" onClick={selection.clear} />
      </span>
    </div>
  );
}

function useJobKeys(jobs: readonly Job[], selection: Selection, older: string | null): void {
  const here = (act: (job: Job) => void): (() => void) => {
    return () => {
      const job = jobs.find((each) => each.id === focusedRow());
      if (job && canOperate.value) act(job);
    };
  };
  const chosen = (act: Act, one: (job: Job) => void): (() => void) => {
    return () => {
      const ids = [...selection.ids.peek()];
      if (ids.length && canOperate.value) askBulk(act, { ids }, selection.clear);
      else here(one)();
    };
  };
  useListKeys(canOperate.value ? selection : undefined, [
    {
      keys: "r",
      words: "Retry the job, or the selected ones",
      group: "List",
      run: chosen("retry", (job) => isFinal(job.state) && void retryJob(job).catch(failed)),
    },
    {
      keys: "c",
      words: "Cancel the job, or the selected ones",
      group: "List",
      run: chosen("cancel", (job) => !isFinal(job.state) && askCancel(job)),
    },
    {
      keys: "n",
      words: "Run the scheduled job now",
      group: "List",
      run: chosen("run_now", (job) => statusOf(job) === "scheduled" && void runJobNow(job).catch(failed)),
    },
    { keys: "]", words: "Older page", group: "List", run: () => older && setQuery({ cursor: older }, {}) },
    { keys: "[", words: "Newer page", group: "List", run: () => route.value.query.get("cursor") && history.back() },
    { keys: "u", words: "Up: clear the filter", group: "Page", run: () => go("jobs") },
  ]);
}
