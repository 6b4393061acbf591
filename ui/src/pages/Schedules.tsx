import type { JSX } from "preact";
import type { Schedule } from "../api";
import { Badge, Time } from "../design/Badge";
import { Button } from "../design/Button";
import { Empty, Loaded } from "../design/Empty";
import { Table } from "../design/Table";
import { toast } from "../design/toasts";
import { plural } from "../lib/format";
import { part, send } from "../lib/http";
import { useListKeys, useSelection, type Selection } from "../lib/list";
import { useLoad } from "../lib/load";
import { href } from "../lib/route";
import { canOperate, servesAll } from "../lib/session";
import { pauseSchedule, refreshAll, triggerSchedule } from "../parts/acts";
import { Runs } from "../parts/Runs";
import { editSchedule } from "../parts/open";
import { PageHead } from "../shell/PageHead";

const LOOK = 10; // s
const RUNS = 12; // last runs in the list

export function Schedules(): JSX.Element {
  const load = useLoad<{ schedules: Schedule[] }>(servesAll.value ? "schedules" : null, LOOK);
  const selection = useSelection();
  useListKeys(canOperate.value ? selection : undefined);
  return (
    <>
      <PageHead
        title="Schedules"
        acts={
          canOperate.value &&
          servesAll.value && (
            <Button icon="plus" onClick={() => editSchedule()}>
              Add a schedule
            </Button>
          )
        }
      />
      <section class="panel">
        {!servesAll.value ? (
          <Empty title="Schedules belong to all queues">
            Your token is bound to some queues, so it cannot see schedules.
          </Empty>
        ) : (
          <Loaded of={load}>
            {({ schedules }) =>
              schedules.length ? (
                <>
                  <Chosen selection={selection} />
                  <Rows of={schedules} selection={selection} />
                </>
              ) : (
                <Empty
                  title="No schedules"
                  code={'@app.cron("0 9 * * mon-fri", tz="Europe/Berlin")\n@app.task\nasync def report() -> None: ...'}
                >
                  A schedule enqueues a job at set times. Declare one in code, or add one here.
                </Empty>
              )
            }
          </Loaded>
        )}
      </section>
    </>
  );
}

/** Pausing several schedules, one after the other, with one way back. */
async function pauseMany(names: readonly string[], on: boolean): Promise<void> {
  for (const name of names) await send("POST", `schedules/${part(name)}/${on ? "pause" : "resume"}`);
  toast(`${plural(names.length, "schedule")} ${on ? "paused" : "resumed"}.`, {
    action: { words: "Undo", run: () => pauseMany(names, !on) },
  });
  refreshAll();
}

function Chosen({ selection }: { selection: Selection }): JSX.Element | null {
  const names = [...selection.ids.value];
  if (!names.length) return null;
  const run = async (on: boolean): Promise<void> => {
    await pauseMany(names, on);
    selection.clear();
  };
  return (
    <div class="selection" role="region" aria-label="Selected schedules">
      <b>{names.length} selected</b>
      <span class="row push">
        <Button slim kind="plain" onClick={() => run(true)}>
          Pause
        </Button>
        <Button slim kind="plain" onClick={() => run(false)}>
          Resume
        </Button>
        <Button slim kind="plain" icon="close" label="Clear the selection" onClick={selection.clear} />
      </span>
    </div>
  );
}

export function ScheduleState({ of, filled }: { of: Schedule; filled?: boolean }): JSX.Element {
  const more = filled ? { filled } : {};
  if (of.error)
    return (
      <Badge of="error" {...more}>
        error
      </Badge>
    );
  return of.paused ? (
    <Badge of="paused" {...more} />
  ) : (
    <Badge of="scheduled" {...more}>
      active
    </Badge>
  );
}

function Rows({ of, selection }: { of: readonly Schedule[]; selection: Selection }): JSX.Element {
  const can = canOperate.value;
  const names = of.map((each) => each.name);
  const chosen = selection.ids.value;
  const all = names.every((name) => chosen.has(name));
  return (
    <Table
      caption="Schedules"
      columns={[
        { words: "schedule" },
        { words: "state" },
        { words: "timing", class: "mid" },
        { words: "task", class: "extra" },
        { words: "last runs", class: "mid" },
        { words: "next", class: "num" },
        can && { words: "acts", hidden: true, class: "num mid" },
      ]}
      head={
        can && (
          <th scope="col" class="pick">
            <label>
              <span class="hidden">Select all rows</span>
              <input type="checkbox" checked={all} onChange={() => selection.all(names, !all)} />
            </label>
          </th>
        )
      }
    >
      {of.map((each) => (
        <tr key={each.name} data-row={each.name} class={chosen.has(each.name) ? "chosen" : undefined}>
          {can && (
            <td class="pick">
              <label>
                <span class="hidden">Select {each.name}</span>
                <input type="checkbox" checked={chosen.has(each.name)} onChange={() => selection.toggle(each.name)} />
              </label>
            </td>
          )}
          <th scope="row" class="name">
            <a href={href(["schedules", each.name])} data-main class="clip" title={each.name}>
              {each.name}
            </a>
            <span class="below clip">{each.words || each.timing}</span>
          </th>
          <td>
            <ScheduleState of={each} />
          </td>
          <td class="mid">
            <span class="clip list-of" title={each.timing}>
              {each.words || each.timing}
            </span>
          </td>
          <td class="extra">
            <span class="clip task-name" title={each.task}>
              {each.task}
            </span>
          </td>
          <td class="mid">
            <Runs recent={each.recent.slice(0, RUNS)} />
          </td>
          <td class="num">
            <Time at={each.paused ? null : each.next_at} />
          </td>
          {can && (
            <td class="num mid">
              <span class="row tight end">
                <Button slim kind="plain" label={`Run now: ${each.name}`} onClick={() => triggerSchedule(each.name)}>
                  Run now
                </Button>
                <Button
                  slim
                  kind="plain"
                  label={`${each.paused ? "Resume" : "Pause"} ${each.name}`}
                  onClick={() => pauseSchedule(each.name, !each.paused)}
                >
                  {each.paused ? "Resume" : "Pause"}
                </Button>
              </span>
            </td>
          )}
        </tr>
      ))}
    </Table>
  );
}
