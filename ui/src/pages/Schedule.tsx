/** One schedule: its next runs in both zones, its last ones, and its error. */
import type { JSX } from "preact";
import type { Schedule as Row } from "../api";
import { Badge, Note, Time } from "../design/Badge";
import { Button } from "../design/Button";
import { Empty, Loaded } from "../design/Empty";
import { Facts, Panel, Table } from "../design/Table";
import { part } from "../lib/http";
import { useListKeys } from "../lib/list";
import { useLoad } from "../lib/load";
import { go, href } from "../lib/route";
import { canOperate, servesAll } from "../lib/session";
import { pauseSchedule, triggerSchedule } from "../parts/acts";
import { askDeleteSchedule, editSchedule } from "../parts/open";
import { Upcoming } from "../parts/Upcoming";
import { PageHead } from "../shell/PageHead";
import { ScheduleState } from "./Schedules";

const LOOK = 10; // s

const CATCH_UP: Record<Row["catch_up"], string> = {
  one: "one run for all that were missed",
  all: "each missed run",
  skip: "missed runs are skipped",
};
const OVERLAP: Record<Row["overlap"], string> = {
  allow: "allowed",
  skip: "a run is skipped while the last job is unfinished",
};

export function Schedule({ name }: { name: string }): JSX.Element {
  const load = useLoad<Row>(servesAll.value ? `schedules/${part(name)}` : null, LOOK);
  const schedule = load.data;
  useListKeys();
  return (
    <>
      <PageHead
        title={name}
        kind="Schedule"
        crumbs={[["schedules", "Schedules"]]}
        beside={schedule && <ScheduleState of={schedule} filled />}
        acts={schedule && canOperate.value && <Acts of={schedule} />}
      />
      {load.error?.status === 404 ? (
        <section class="panel">
          <Empty
            title="No such schedule"
            acts={
              <a class="button" href="schedules">
                All schedules
              </a>
            }
          >
            Somebody deleted it, or code that declared it is gone.
          </Empty>
        </section>
      ) : (
        <Loaded of={load}>{(of) => <Known of={of} />}</Loaded>
      )}
    </>
  );
}

function Acts({ of }: { of: Row }): JSX.Element {
  return (
    <>
      <Button onClick={() => triggerSchedule(of.name)}>Run now</Button>
      <Button onClick={() => pauseSchedule(of.name, !of.paused)}>{of.paused ? "Resume" : "Pause"}</Button>
      <Button onClick={() => editSchedule(of)}>Edit…</Button>
      {!of.declared && (
        <Button kind="danger" onClick={() => askDeleteSchedule(of.name, () => go("schedules"))}>
          Delete…
        </Button>
      )}
    </>
  );
}

function Known({ of }: { of: Row }): JSX.Element {
  return (
    <>
      {of.error && (
        <Note tone="bad" sign="error">
          <b>Its last job could not be enqueued.</b> {of.error}
        </Note>
      )}
      <div class="columns">
        <div class="stack">
          <Panel title="Last runs">
            {of.recent.length ? (
              <Table
                caption="Last runs"
                columns={[{ words: "state" }, { words: "job" }, { words: "at", class: "num" }]}
              >
                {of.recent
                  .toSorted((a, b) => b.at - a.at)
                  .map((run) => (
                    <tr key={run.id} data-row={run.id}>
                      <td>
                        <Badge of={run.state === "ready" ? "queued" : run.state} />
                      </td>
                      <th scope="row">
                        <a class="mono any" href={href(["jobs", run.id])} data-main>
                          {run.id}
                        </a>
                      </th>
                      <td class="num">
                        <Time at={run.at} />
                      </td>
                    </tr>
                  ))}
              </Table>
            ) : (
              <Empty title="It has not run yet" />
            )}
          </Panel>
        </div>
        <aside class="stack" aria-label="Facts">
          <Panel title="Next runs" pad>
            {of.paused ? (
              <p class="quiet">None while it is paused.</p>
            ) : (
              <Upcoming at={of.upcoming} tz={of.tz ?? "UTC"} />
            )}
          </Panel>
          <Panel title="Facts" pad>
            <Facts
              rows={[
                ["timing", of.words || of.timing],
                of.cron !== null && ["cron", <code>{of.cron}</code>],
                of.tz !== null && of.tz !== null && ["zone", of.tz],
                ["task", <a href={href(["jobs"], { task: of.task })}>{of.task}</a>],
                ["after outages", CATCH_UP[of.catch_up]],
                ["overlap", OVERLAP[of.overlap]],
                ["declared", of.declared ? "in code" : "through the API"],
              ]}
            />
          </Panel>
        </aside>
      </div>
    </>
  );
}
