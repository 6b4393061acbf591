/** One queue: its figures, its head with the reason why each job waits, its workers and its own limit. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Counted, Explained, Page, QueueOverview } from "../api";
import { Time } from "../design/Badge";
import { Button } from "../design/Button";
import { Empty, Loaded } from "../design/Empty";
import { Num, Panel, Table } from "../design/Table";
import { failed } from "../design/toasts";
import { callText, count, plural, span } from "../lib/format";
import { get, part, withQuery } from "../lib/http";
import { useKeys } from "../lib/keys";
import { useListKeys } from "../lib/list";
import { useLoad } from "../lib/load";
import { overview } from "../lib/live";
import { href } from "../lib/route";
import { canEnqueue, canOperate, servesAll } from "../lib/session";
import { pauseQueue } from "../parts/acts";
import { LimitTable, limitsOf } from "../parts/LimitTable";
import { MetricCharts, SpanChoice } from "../parts/MetricCharts";
import { isCapped, QueueState } from "../parts/QueueTable";
import { WorkerRows } from "../parts/WorkerRows";
import { editLimit, openEnqueue } from "../parts/open";
import { workerFor } from "../parts/terminal";
import { PageHead } from "../shell/PageHead";

const HEAD = 25; // jobs of the head of the queue
const LOOK = 5; // s between two looks at it

export function Queue({ name }: { name: string }): JSX.Element {
  const look = overview.value;
  const queue = look?.queues.find((each) => each.name === name);
  const limits = limitsOf(name, look?.limits ?? []);
  const workers = look?.workers.filter((each) => each.queues.includes(name)) ?? [];
  useListKeys();
  return (
    <>
      <PageHead
        title={name}
        kind="Queue"
        crumbs={[["queues", "Queues"]]}
        beside={queue && <QueueState of={queue} filled />}
        acts={<Acts name={name} queue={queue} />}
      />
      {queue && <Counts of={queue} />}
      {queue?.max_waiting && (
        <p class="small quiet">
          {count(queue.filled ?? 0, queue.filled_capped)} of {count(queue.max_waiting)} jobs wait to be started.{" "}
          {queue.when_full === "refuse" ? "A full queue refuses new jobs." : "A full queue cancels jobs for new ones."}
        </p>
      )}
      <div class="row spread">
        <h2>Figures</h2>
        <SpanChoice />
      </div>
      <MetricCharts queue={name} />
      <Panel
        title="Head of the queue"
        acts={
          <a class="button plain slim" href={href(["jobs"], { queue: name, status: "queued" })}>
            All queued jobs
          </a>
        }
      >
        <Head name={name} />
      </Panel>
      {limits.length > 0 && (
        <Panel title="Limit">
          <LimitTable limits={limits} />
        </Panel>
      )}
      <Panel title="Workers that serve it">
        {workers.length ? (
          <WorkerRows workers={workers} />
        ) : (
          <Empty title="No worker serves this queue" code={workerFor(name)}>
            Jobs stay queued until a worker serves it.
          </Empty>
        )}
      </Panel>
    </>
  );
}

function Acts({ name, queue }: { name: string; queue: QueueOverview | undefined }): JSX.Element {
  const paused = queue?.paused ?? false;
  const toggle = (): Promise<void> => pauseQueue(name, !paused);
  useKeys([
    {
      keys: "P",
      words: "Pause or resume the queue",
      group: "Page",
      run: () => canOperate.value && void toggle().catch(failed),
    },
  ]);
  return (
    <>
      {canOperate.value && (
        <Button {...(paused && { kind: "primary" })} keys="P" onClick={toggle}>
          {paused ? "Resume" : "Pause"}
        </Button>
      )}
      {canOperate.value && servesAll.value && (
        <Button
          onClick={() =>
            editLimit(
              overview.value?.limits.find((each) => each.key === `queue:${name}`),
              `queue:${name}`,
            )
          }
        >
          Set a limit…
        </Button>
      )}
      {canEnqueue.value && (
        <Button icon="plus" onClick={() => openEnqueue()}>
          Enqueue a job
        </Button>
      )}
    </>
  );
}

function Counts({ of }: { of: QueueOverview }): JSX.Element {
  const rows: [Counted, number][] = [
    ["queued", of.queued],
    ["running", of.running],
    ["scheduled", of.scheduled],
    ["blocked", of.blocked],
    ["waiting", of.waiting],
    ["failed", of.failed],
  ];
  return (
    <section class="figures six" aria-label="Counts">
      {rows.map(([status, value]) => (
        <a
          key={status}
          class={`figure ${status === "failed" && value ? "t-bad toned" : ""}`}
          href={href(["jobs"], { queue: of.name, status })}
        >
          <span class="figure-words">{status}</span>
          <b>{count(value, status === "queued" ? of.queued_capped : isCapped(status))}</b>
          <span class="small quiet">
            {status === "queued"
              ? of.oldest === null
                ? "nothing waits"
                : `oldest ${span(of.oldest)}`
              : status === "running"
                ? plural(of.workers, "worker")
                : " "}
          </span>
        </a>
      ))}
    </section>
  );
}

function Head({ name }: { name: string }): JSX.Element {
  const load = useLoad<Page>(withQuery("jobs", { queue: name, status: "queued", order: "queue", limit: HEAD }), LOOK);
  return (
    <Loaded of={load}>
      {({ jobs }) =>
        jobs.length ? (
          <Table
            caption="Head of the queue"
            columns={[
              { words: "position", class: "num" },
              { words: "task" },
              { words: "arguments", class: "wide" },
              { words: "priority", class: "num mid" },
              { words: "lane", class: "mid" },
              { words: "created", class: "num" },
              { words: "why it waits", class: "num" },
            ]}
          >
            {jobs.map((job, at) => (
              <tr key={job.id} data-row={job.id}>
                <td class="num">{at + 1}</td>
                <th scope="row" class="task">
                  <a href={href(["jobs", job.id])} data-main>
                    {job.task}
                  </a>
                </th>
                <td class="wide grow">
                  <code class="clip quiet" dir="auto">
                    {callText(job.args, job.kwargs)}
                  </code>
                </td>
                <td class="num mid">
                  <Num value={job.priority} />
                </td>
                <td class="mid nowrap">{job.lane}</td>
                <td class="num">
                  <Time at={job.created_at} />
                </td>
                <td class="num">
                  <Reason id={job.id} />
                </td>
              </tr>
            ))}
          </Table>
        ) : (
          <Empty title="Nothing is queued" />
        )
      }
    </Loaded>
  );
}

/** An explanation costs a look at the storage, so it is read when somebody asks. */
function Reason({ id }: { id: string }): JSX.Element {
  const text = useSignal<string | null>(null);
  if (text.value !== null) return <span class="reason">{text}</span>;
  return (
    <Button
      slim
      kind="plain"
      onClick={async () => void (text.value = (await get<Explained>(`jobs/${part(id)}/explain`)).text)}
    >
      Explain
    </Button>
  );
}
