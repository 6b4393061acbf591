/** One job: why it is where it is, its attempts, what went in and what came out, and what can be done with it. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Estimate, Explanation, History, Job as Row } from "../api";
import { Badge, Time } from "../design/Badge";
import { Button, Copy } from "../design/Button";
import { Bar } from "../design/Chart";
import { Empty, Loaded } from "../design/Empty";
import { Json } from "../design/Json";
import { Prose } from "../design/Prose";
import { Facts, Panel } from "../design/Table";
import { Trace } from "../design/Trace";
import { duration, moment, plural, shortId, shortName } from "../lib/format";
import { get, part } from "../lib/http";
import { useKeys } from "../lib/keys";
import { useLoad } from "../lib/load";
import { go, href } from "../lib/route";
import { canEnqueue, canOperate, me } from "../lib/session";
import { isFinal, reasonOf, statusOf } from "../lib/status";
import { failed } from "../design/toasts";
import { askCancel, askDelete, askSignal, retryJob, runJobNow } from "../parts/acts";
import { Attempts } from "../parts/Attempts";
import { Timeline } from "../parts/Timeline";
import { useFollowedJob } from "../parts/followed";
import { openEnqueue } from "../parts/open";
import { PageHead } from "../shell/PageHead";

const LOOK = 4; // s between two explanations of an unfinished job

export function Job({ id }: { id: string }): JSX.Element {
  const load = useFollowedJob(id);
  const job = load.data;
  if (!job) {
    return (
      <>
        <PageHead title={shortId(id)} kind="Job" crumbs={[["jobs", "Jobs"]]} mono />
        {load.error?.status === 404 ? (
          <section class="panel">
            <Empty
              title="No such job"
              acts={
                <a class="button" href="jobs">
                  All jobs
                </a>
              }
            >
              Its row was removed after its retention, somebody deleted it, or it never existed.
            </Empty>
          </section>
        ) : (
          <section class="panel">
            <Loaded of={load}>{() => <></>}</Loaded>
          </section>
        )}
      </>
    );
  }
  return <Known job={job} />;
}

function Known({ job }: { job: Row }): JSX.Element {
  const open = !isFinal(job.state);
  const history = useLoad<History>(`jobs/${part(job.id)}/history`, open ? LOOK : 0);
  const workflow = job.workflow !== job.id ? job.workflow : null;
  const crumbs: (readonly [string, string])[] = [["jobs", "Jobs"]];
  if (workflow) crumbs.push([href(["workflows", workflow]), `Workflow ${shortId(workflow)}`]);
  if (job.parent && job.parent !== workflow) crumbs.push([href(["jobs", job.parent]), `Parent ${shortId(job.parent)}`]);
  return (
    <>
      <PageHead
        title={job.task}
        kind="Job"
        crumbs={crumbs}
        mono
        beside={<Badge of={statusOf(job)} filled />}
        acts={<Acts job={job} />}
      >
        <div class="row id-line">
          <code class="quiet any">{job.id}</code>
          <Copy text={job.id} what="the id" />
        </div>
      </PageHead>
      <Why job={job} />
      {job.state === "running" && (job.progress !== null || job.note) && <Progress job={job} />}
      <div class="columns">
        <div class="stack">
          <section class="panel" aria-label="Course">
            <Loaded of={history}>
              {(found) => (
                <>
                  <div class="pad">
                    <Timeline job={job} attempts={found.attempts} />
                  </div>
                  {found.attempts.length > 0 && (
                    <Attempts attempts={found.attempts} logs={me.value?.features.logs ?? false} />
                  )}
                </>
              )}
            </Loaded>
          </section>
          {job.error && (
            <Panel
              title={job.state === "failed" ? "Error" : "Last error"}
              acts={<Copy text={job.error} what="the error" />}
            >
              <Trace text={job.error} />
            </Panel>
          )}
          <Panel
            title="Arguments"
            acts={<Copy text={JSON.stringify({ args: job.args, kwargs: job.kwargs })} what="the arguments" />}
          >
            <Arguments job={job} />
          </Panel>
          {job.state === "succeeded" && (
            <Panel title="Result" acts={<Copy text={JSON.stringify(job.result)} what="the result" />}>
              <Json value={job.result} />
            </Panel>
          )}
          {history.data && <Steps job={job} history={history.data} />}
        </div>
        <aside class="stack" aria-label="Facts">
          <Panel title="Facts" pad>
            <FactsOf job={job} />
          </Panel>
          {history.data && <Children job={job} history={history.data} />}
          <Panel title="From a terminal" pad>
            <Commands job={job} />
          </Panel>
        </aside>
      </div>
    </>
  );
}

function Acts({ job }: { job: Row }): JSX.Element {
  const status = statusOf(job);
  const final = isFinal(job.state);
  const reopens = job.state === "failed" || job.state === "cancelled";
  const can = canOperate.value;
  const retry = (): unknown => can && reopens && retryJob(job);
  const cancel = (): unknown => can && !final && askCancel(job);
  const runNow = (): unknown => can && status === "scheduled" && runJobNow(job);
  const remove = (): void => askDelete(job, () => go("jobs"));
  const safe = (act: () => unknown): (() => void) => {
    return () => void Promise.resolve(act()).catch(failed);
  };
  useKeys([
    { keys: "r", words: "Retry the job", group: "Job", run: safe(retry) },
    { keys: "c", words: "Cancel the job", group: "Job", run: safe(cancel) },
    { keys: "n", words: "Run the scheduled job now", group: "Job", run: safe(runNow) },
  ]);
  return (
    <>
      {can && reopens && (
        <Button kind="primary" keys="r" onClick={retry}>
          Retry
        </Button>
      )}
      {can && status === "scheduled" && (
        <Button kind="primary" keys="n" onClick={runNow}>
          Run now
        </Button>
      )}
      {canEnqueue.value && job.task && <Button onClick={() => openEnqueue({ job })}>Send again…</Button>}
      {can && !final && <Button onClick={() => askSignal(job)}>Signal…</Button>}
      {can && !final && (
        <Button kind="danger" keys="c" onClick={cancel}>
          Cancel…
        </Button>
      )}
      {can && final && (
        <Button kind="danger" onClick={remove}>
          Delete…
        </Button>
      )}
    </>
  );
}

/** The headline: one sentence about why the job is where it is. */
function Why({ job }: { job: Row }): JSX.Element {
  const open = !isFinal(job.state);
  const load = useLoad<Explanation>(`jobs/${part(job.id)}/explain`, open ? LOOK : 0);
  const status = statusOf(job);
  return (
    <div
      class={`why t-${job.state === "failed" ? "bad" : status === "blocked" ? "warn" : status === "running" ? "live" : job.state === "succeeded" ? "good" : "quiet"}`}
    >
      <p data-testid="why" dir="auto">
        <Prose text={load.data?.text ?? load.error?.message ?? "…"} />
      </p>
      {open && load.data?.position != null && <span class="quiet nowrap">position {load.data.position}</span>}
      {(job.state === "ready" || job.state === "waiting") && <Start id={job.id} />}
    </div>
  );
}

/** An estimate takes up to a second of the server, so it is made when somebody asks, and not again by itself. */
function Start({ id }: { id: string }): JSX.Element {
  const found = useSignal<Estimate | null>(null);
  if (found.value) {
    return (
      <span class="quiet" data-testid="estimate">
        {startIn(found.value)}
      </span>
    );
  }
  return (
    <Button
      slim
      kind="plain"
      onClick={async () => void (found.value = await get<Estimate>(`jobs/${part(id)}/eta`))}
    >
      Estimate the start
    </Button>
  );
}

function startIn({ at, start }: Estimate): string {
  if (!start) return "It does not start by itself, as far as the estimate can tell.";
  const [low, median, high] = [start.low, start.median, start.high].map((each) => duration(Math.max(0, each - at)));
  return `Estimated at ${moment(at)}: it starts in ${median} (${low} to ${high}).`;
}

function Progress({ job }: { job: Row }): JSX.Element {
  const share = job.progress ?? 0;
  return (
    <Panel pad label="Progress">
      <div class="row spread">
        <b dir="auto" class="any">
          {job.note ?? "Progress"}
        </b>
        {job.progress !== null && <span>{Math.round(share * 100)} %</span>}
      </div>
      {job.progress !== null && <progress max={1} value={share} aria-label="Progress" />}
    </Panel>
  );
}

function Arguments({ job }: { job: Row }): JSX.Element {
  const named = Object.keys(job.kwargs).length > 0;
  if (!job.args.length && !named) return <p class="pad quiet">None.</p>;
  if (!named) return <Json value={job.args} />;
  return <Json value={job.args.length ? { args: job.args, kwargs: job.kwargs } : job.kwargs} />;
}

function FactsOf({ job }: { job: Row }): JSX.Element {
  const worker = job.worker?.replace(/#[^#]*$/, "");
  return (
    <Facts
      rows={[
        ["queue", <a href={href(["queues", job.queue])}>{job.queue}</a>],
        ["task", <a href={href(["jobs"], { task: job.task })}>{job.task}</a>],
        ["created", <Time at={job.created_at} />],
        job.due_at !== null && job.state === "ready" && ["due", <Time at={job.due_at} />],
        job.started_at !== null && ["started", <Time at={job.started_at} />],
        job.ended_at !== null && ["ended", <Time at={job.ended_at} />],
        job.reason !== null && ["reason", reasonOf(job.reason)],
        [
          "attempts",
          `${job.attempt}${job.lost ? `, and ${plural(job.lost, "expired lease")}` : ""}${job.reopenings ? `, reopened ${plural(job.reopenings, "time")}` : ""}`,
        ],
        worker && job.state === "running" && ["worker", <a href={href(["workers", worker])}>{job.worker}</a>],
        job.priority !== 0 && ["priority", job.priority],
        job.blocked_on && ["blocked by", <code>{job.blocked_on}</code>],
        job.limits?.length && ["limits", job.limits.map((each) => <code class="chip">{each}</code>)],
        job.key && ["key", <code>{job.key}</code>],
        job.lane && ["lane", <code>{job.lane}</code>],
        job.labels.length > 0 && [
          "labels",
          job.labels.map((label) => (
            <a key={label} class="chip" href={href(["jobs"], { label })}>
              {label}
            </a>
          )),
        ],
        job.timeout != null && ["timeout", duration(job.timeout)],
        job.deadline_at !== null && ["deadline", <Time at={job.deadline_at} />],
        job.expires_at != null && ["kept until", <Time at={job.expires_at} />],
        job.pending > 0 && ["pending", `${plural(job.pending, "ending")} still needed`],
        job.after.length > 0 && [
          "after",
          <span class="id-list">
            {job.after.slice(0, 20).map((each) => (
              <a key={each} class="mono" href={href(["jobs", each])}>
                {shortId(each)}
              </a>
            ))}
            {job.after.length > 20 && <span class="quiet">and {job.after.length - 20} more</span>}
          </span>,
        ],
        ...Object.entries(job.headers).map(
          ([name, value]) => [`header ${name}`, <code dir="auto">{value}</code>] as const,
        ),
      ]}
    />
  );
}

/** Sleeps and waits are stored under their kind and name: "sleep:sleep", "wait:approved". */
function plain(name: string): string {
  return name.replace(/^(sleep|wait):/, "");
}

function Steps({ job, history }: { job: Row; history: History }): JSX.Element | null {
  const { signals } = history;
  const names = new Set(signals.map((each) => each.name));
  const steps = history.steps.filter((each) => each.kind !== "signal" || !names.has(plain(each.name)));
  if (!steps.length && !signals.length) return null;
  return (
    <Panel title="Steps and signals">
      <ul class="steps">
        {steps.map((step) => (
          <li key={`${step.kind} ${step.name}`}>
            <Badge of={step.done ? "succeeded" : step.kind === "sleep" ? "scheduled" : "running"}>{step.kind}</Badge>
            <b class="any">{plain(step.name)}</b>
            {step.until !== null && !step.done && (
              <span class="quiet">
                until <Time at={step.until} exact />
              </span>
            )}
            {step.done && step.kind !== "sleep" && <Json value={step.value} />}
          </li>
        ))}
        {signals.map((signal) => (
          <li key={`signal ${signal.name}`}>
            <Badge of={signal.given ? "succeeded" : "waiting"}>signal</Badge>
            <b class="any">{signal.name}</b>
            <span class="quiet">{signal.given ? <Time at={signal.at} /> : "awaited"}</span>
            {!signal.given && canOperate.value && !isFinal(job.state) && (
              <Button slim onClick={() => askSignal(job, signal.name)}>
                Send…
              </Button>
            )}
            {signal.given && <Json value={signal.value} />}
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function Children({ job, history }: { job: Row; history: History }): JSX.Element | null {
  const states = Object.entries(history.children).filter(([, number]) => number);
  const root = job.workflow === job.id;
  if (!states.length && job.workflow === job.id && !job.parent) return null;
  const done = (history.children.succeeded ?? 0) + (history.children.failed ?? 0) + (history.children.cancelled ?? 0);
  const all = states.reduce((sum, [, number]) => sum + number, 0);
  return (
    <Panel title="Workflow" pad>
      <div class="stack">
        {all > 0 && (
          <>
            <div>
              <div class="row spread">
                <a href={href(["jobs"], { parent: job.id })}>
                  {plural(all, "child").replace(/childs$/, "children")}
                  {history.children_capped && " or more"}
                </a>
                <span class="quiet">{done} ended</span>
              </div>
              <Bar share={all ? done / all : 0} tone={history.children.failed ? "bad" : "good"} />
            </div>
            <div class="row">
              {states.map(([state, number]) => (
                <Badge key={state} of={state}>
                  {number} {state}
                </Badge>
              ))}
            </div>
          </>
        )}
        <div class="row">
          {(states.length > 0 || !root) && (
            <a class="button slim" href={href(["workflows", job.workflow])}>
              Show the graph
            </a>
          )}
        </div>
      </div>
    </Panel>
  );
}

function Commands({ job }: { job: Row }): JSX.Element {
  const lines = [
    `treadle jobs show ${job.id}`,
    ...(isFinal(job.state) && job.state !== "succeeded" ? [`treadle jobs retry ${job.id}`] : []),
    ...(isFinal(job.state) ? [] : [`treadle jobs cancel ${job.id}`]),
  ];
  return (
    <div class="stack commands">
      {lines.map((line) => (
        <div key={line} class="row">
          <code class="any">{line}</code>
          <Copy text={line} what={`the command for ${shortName(job.task)}`} />
        </div>
      ))}
    </div>
  );
}
