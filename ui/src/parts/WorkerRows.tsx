import type { JSX } from "preact";
import type { Worker } from "../api";
import { Badge } from "../design/Badge";
import { Bar } from "../design/Chart";
import { Table } from "../design/Table";
import { count, duration, span } from "../lib/format";
import { href } from "../lib/route";

const LATE = 30; // s without a heartbeat that the table points out; a worker sends one each 10 s

export function WorkerState({ of }: { of: Worker }): JSX.Element {
  if (of.gone) return <Badge of="stopped">stopped</Badge>;
  if (of.age > LATE) return <Badge of="lost">silent {span(of.age)}</Badge>;
  if (of.paused > 0) return <Badge of="paused">paused</Badge>;
  return <Badge of={of.running ? "running" : "ok"}>{of.running ? "active" : "idle"}</Badge>;
}

export function Load({ of }: { of: Worker }): JSX.Element {
  const share = of.slots ? of.running / of.slots : 0;
  return (
    <span class="load">
      <span class="num">
        {count(of.running)}
        <span class="quiet"> / {count(of.slots)}</span>
      </span>
      <Bar share={share} tone={share >= 1 ? "warn" : "live"} />
    </span>
  );
}

export function WorkerRows({ workers }: { workers: readonly Worker[] }): JSX.Element {
  return (
    <Table
      caption="Workers"
      columns={[
        { words: "worker" },
        { words: "state" },
        { words: "running / slots" },
        { words: "queues", class: "mid" },
        { words: "tasks", class: "num wide" },
        { words: "host", class: "wide" },
        { words: "uptime", class: "num mid" },
        { words: "heartbeat", class: "num" },
      ]}
    >
      {workers.map((each) => (
        <tr key={each.worker} data-row={each.worker}>
          <th scope="row" class="name">
            <span class="row tight">
              <a href={href(["workers", each.worker])} data-main class="clip" title={each.worker}>
                {each.worker}
              </a>
              {each.leader && <span class="chip">leader</span>}
            </span>
          </th>
          <td>
            <WorkerState of={each} />
          </td>
          <td>
            <Load of={each} />
          </td>
          <td class="mid">
            <span class="clip list-of" title={each.queues.join(", ")}>
              {each.queues.join(", ")}
            </span>
          </td>
          <td class="num wide">{each.tasks.length}</td>
          <td class="wide">
            <span class="clip list-of">
              {each.host} <span class="quiet">pid {each.pid}</span>
            </span>
          </td>
          <td class="num mid">{span(each.uptime)}</td>
          <td class="num">{duration(Math.round(each.age))} ago</td>
        </tr>
      ))}
    </Table>
  );
}
