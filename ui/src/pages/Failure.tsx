/** One group of failed jobs: the error of its newest job, and acts on all of them. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { FailureGroup, FailureGroups, Job } from "../api";
import { Badge, Time } from "../design/Badge";
import { Button, Copy } from "../design/Button";
import { Columns } from "../design/Chart";
import { Empty, Loaded } from "../design/Empty";
import { Json } from "../design/Json";
import { Facts, Panel } from "../design/Table";
import { Trace } from "../design/Trace";
import { plural } from "../lib/format";
import { part } from "../lib/http";
import { useLoad } from "../lib/load";
import { go, href, route } from "../lib/route";
import { canOperate } from "../lib/session";
import { isFinal, statusOf } from "../lib/status";
import { retryJob } from "../parts/acts";
import { askBulk } from "../parts/open";
import { useFollowedJob } from "../parts/followed";
import { PageHead } from "../shell/PageHead";
import { failuresPath } from "./Failures";

export function Failure({ group }: { group: string }): JSX.Element {
  const load = useLoad<FailureGroups>(failuresPath(route.value.query), 10);
  const known = load.data?.groups.find((each) => each.key === group);
  if (known) return <Known of={known} />;
  return (
    <>
      <PageHead title="Failure" crumbs={[["failures", "Failures"]]} />
      <section class="panel">
        <Loaded of={load}>
          {() => (
            <Empty
              title="No such group among the newest failed jobs"
              acts={
                <a class="button" href="failures">
                  All failures
                </a>
              }
            >
              Its jobs were retried or deleted, or newer failures came before them.
            </Empty>
          )}
        </Loaded>
      </section>
    </>
  );
}

/** The part of an error that a search finds: the name of its type. */
function typeOf(error: string): string {
  return /^[\w.]+/.exec(error.trim())?.[0] ?? "";
}

function Known({ of }: { of: FailureGroup }): JSX.Element {
  const sample = useLoad<Job>(`jobs/${part(of.sample)}`);
  const tried = useSignal<string | null>(null);
  const target = { group: { key: of.key } };
  return (
    <>
      <PageHead
        title={of.signature}
        kind="Failure"
        crumbs={[["failures", "Failures"]]}
        mono
        acts={
          canOperate.value && (
            <>
              <Button
                onClick={async () => {
                  await retryJob({ id: of.sample, task: of.task });
                  tried.value = of.sample;
                }}
              >
                Retry one first
              </Button>
              <Button kind="primary" onClick={() => askBulk("retry", target)}>
                Retry {plural(of.jobs, "job")}…
              </Button>
              <Button kind="danger" onClick={() => askBulk("delete", target, () => go("failures"))}>
                Delete…
              </Button>
            </>
          )
        }
      />
      {tried.value && <Tried id={tried.value} />}
      <div class="columns">
        <div class="stack">
          <Panel
            title="The newest"
            acts={
              <>
                {sample.data?.error && <Copy text={sample.data.error} what="the error" />}
                <a class="button slim" href={href(["jobs", of.sample])}>
                  Open the job
                </a>
              </>
            }
          >
            <Loaded of={sample}>{(job) => <Trace text={job.error ?? of.error} />}</Loaded>
          </Panel>
          {sample.data && (
            <Panel title="Its arguments">
              <Json value={{ args: sample.data.args, kwargs: sample.data.kwargs }} />
            </Panel>
          )}
        </div>
        <aside class="stack" aria-label="Facts">
          <Panel title="Group" pad>
            <div class="stack">
              <Columns values={of.spark} width={280} height={44} />
              <Facts
                rows={[
                  ["jobs", of.jobs],
                  ["task", <a href={href(["jobs"], { task: of.task, status: "failed" })}>{of.task}</a>],
                  ["queue", <a href={href(["queues", of.queue])}>{of.queue}</a>],
                  ["first", <Time at={of.first} />],
                  ["last", <Time at={of.last} />],
                ]}
              />
              <a
                class="button"
                href={href(["jobs"], { status: "failed", task: of.task, queue: of.queue, q: typeOf(of.error) })}
              >
                List jobs like these
              </a>
            </div>
          </Panel>
        </aside>
      </div>
    </>
  );
}

/** The state of the job that was retried first. */
function Tried({ id }: { id: string }): JSX.Element | null {
  const { data: job } = useFollowedJob(id);
  if (!job) return null;
  return (
    <div class="note t-live" role="status">
      <div>
        The retried job: <Badge of={statusOf(job)} />
      </div>
      {isFinal(job.state) && <a href={href(["jobs", id])}>Open it</a>}
    </div>
  );
}
