/** One job: why it is where it is, its attempts, what went in and what came out, and what can be done with it. */
import type { JSX } from "preact";
import type { ApprovalsShown, Job as Row, JobHistory } from "../api";
import { Badge, Note } from "../design/Badge";
import { Button, Copy } from "../design/Button";
import { Empty, Loaded } from "../design/Empty";
import { Json } from "../design/Json";
import { Panel } from "../design/Table";
import { Trace } from "../design/Trace";
import { shortId } from "../lib/format";
import { part, withQuery } from "../lib/http";
import { useKeys } from "../lib/keys";
import { useLoad } from "../lib/load";
import { go, href } from "../lib/route";
import { canEnqueue, canOperate } from "../lib/session";
import { isFinal, statusOf } from "../lib/status";
import { failed } from "../design/toasts";
import { pauseJob, retryJob, runJobNow } from "../parts/acts";
import { Attempts } from "../parts/Attempts";
import { Commands, FactsOf } from "../parts/JobFacts";
import { Children, Steps } from "../parts/JobSteps";
import { Streams } from "../parts/Streams";
import { Request } from "../parts/Requests";
import { Timeline } from "../parts/Timeline";
import { useFollowedJob } from "../parts/followed";
import { askCancel, askDelete, askSignal, openEnqueue } from "../parts/open";
import { Why } from "../parts/Why";
import { noCopy, notShown } from "../parts/withheld";
import { PageHead } from "../shell/PageHead";

const LOOK = 4; // s between two reads of the history of an unfinished job

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
  const history = useLoad<JobHistory>(`jobs/${part(job.id)}/history`, open ? LOOK : 0);
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
      {open && history.data?.steps.some((step) => step.kind === "approval" && !step.done) && <Open job={job} />}
      {job.state === "running" && (job.progress !== null || job.note) && <Progress job={job} />}
      <div class="columns">
        <div class="stack">
          <section class="panel" aria-label="Course">
            <Loaded of={history}>
              {(history) => (
                <>
                  <div class="pad">
                    <Timeline job={job} attempts={history.attempts} />
                  </div>
                  {history.attempts.length > 0 && <Attempts attempts={history.attempts} />}
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
          {history.data && <Streams job={job} names={history.data.streams} />}
          <Panel
            title="Arguments"
            acts={<Copy text={JSON.stringify({ args: job.args, kwargs: job.kwargs })} what="the arguments" />}
          >
            <Arguments job={job} />
            {noCopy(job) ? (
              <Note tone="warn" sign="warning">
                {notShown("arguments", job.withheld.arguments)} {canEnqueue.value && noCopy(job)}
              </Note>
            ) : null}
          </Panel>
          {job.state === "succeeded" && (
            <Panel title="Result" acts={<Copy text={JSON.stringify(job.result)} what="the result" />}>
              <Json value={job.result} />
              {notShown("result", job.withheld.result) && (
                <Note tone="warn" sign="warning">
                  {notShown("result", job.withheld.result)}
                </Note>
              )}
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

/** The open requests for approval of this job. */
function Open({ job }: { job: Row }): JSX.Element {
  const load = useLoad<ApprovalsShown>(withQuery("approvals", { job: job.id }), LOOK);
  return (
    <>
      {load.data?.requests.map((each) => (
        <Request key={each.id} request={each} alone />
      ))}
    </>
  );
}

function Acts({ job }: { job: Row }): JSX.Element {
  const status = statusOf(job);
  const final = isFinal(job.state);
  const paused = status === "paused";
  const reopens = job.state === "failed" || job.state === "cancelled";
  const can = canOperate.value;
  const retry = (): unknown => can && reopens && retryJob(job);
  const cancel = (): unknown => can && !final && askCancel(job);
  const runNow = (): unknown => can && status === "scheduled" && runJobNow(job);
  const pause = (): unknown => can && !final && pauseJob(job, !paused);
  const remove = (): void => askDelete(job, () => go("jobs"));
  const safe = (act: () => unknown): (() => void) => {
    return () => void Promise.resolve(act()).catch(failed);
  };
  useKeys([
    { keys: "r", words: "Retry the job", group: "Job", run: safe(retry) },
    { keys: "c", words: "Cancel the job", group: "Job", run: safe(cancel) },
    { keys: "n", words: "Run the scheduled job now", group: "Job", run: safe(runNow) },
    { keys: "h", words: "Pause or resume the job", group: "Job", run: safe(pause) },
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
      {can && !final && job.task && (
        <Button {...(paused && { kind: "primary" })} keys="h" onClick={pause}>
          {paused ? "Resume" : "Pause"}
        </Button>
      )}
      {canEnqueue.value && job.task && (
        <Button onClick={() => openEnqueue({ job })} disabled={noCopy(job) !== null} title={noCopy(job) ?? undefined}>
          Send again…
        </Button>
      )}
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
