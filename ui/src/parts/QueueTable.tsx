import type { JSX } from "preact";
import type { Counted, QueueOverview } from "../api";
import { Badge } from "../design/Badge";
import { Button } from "../design/Button";
import { Spark } from "../design/Chart";
import { Num, Table } from "../design/Table";
import { brief, span } from "../lib/format";
import { overview } from "../lib/live";
import { href } from "../lib/route";
import { canOperate } from "../lib/session";
import { pauseQueue } from "./acts";

const SLOW = 300; // s of waiting that the table points out

function jobs(queue: string, status: string): string {
  return href(["jobs"], { status, queue });
}

/** All queues with their counts; each count leads to its jobs. */
export function QueueTable({ queues }: { queues: readonly QueueOverview[] }): JSX.Element {
  return (
    <Table
      caption="Queues"
      columns={[
        { words: "queue" },
        { words: "state" },
        { words: "queued", class: "num" },
        { words: "oldest", class: "num" },
        { words: "running", class: "num" },
        { words: "scheduled", class: "num mid" },
        { words: "blocked", class: "num mid" },
        { words: "waiting", class: "num wide" },
        { words: "failed", class: "num" },
        { words: "workers", class: "num mid" },
        { words: "ended/s", class: "num mid" },
        { words: "last 5 min", class: "wide" },
        canOperate.value && { words: "acts", hidden: true, class: "num mid" },
      ]}
    >
      {queues.map((each) => (
        <Row key={each.name} of={each} />
      ))}
    </Table>
  );
}

function Row({ of: each }: { of: QueueOverview }): JSX.Element {
  const unserved = each.workers === 0 && each.queued > 0;
  return (
    <tr data-row={each.name}>
      <th scope="row" class="name">
        <a href={href(["queues", each.name])} data-main class="clip" title={each.name}>
          {each.name}
        </a>
      </th>
      <td>
        <QueueState of={each} />
      </td>
      <td class="num">
        <Num value={each.queued} capped={each.queued_capped} to={jobs(each.name, "queued")} />
      </td>
      <td class="num">
        {each.oldest === null ? (
          <span class="zero">–</span>
        ) : (
          <span class={each.oldest > SLOW ? "t-warn toned" : undefined}>{span(each.oldest)}</span>
        )}
      </td>
      <td class="num">
        <Num value={each.running} capped={isCapped("running")} to={jobs(each.name, "running")} />
      </td>
      <td class="num mid">
        <Num value={each.scheduled} capped={isCapped("scheduled")} to={jobs(each.name, "scheduled")} />
      </td>
      <td class="num mid">
        <Num value={each.blocked} capped={isCapped("blocked")} to={jobs(each.name, "blocked")} />
      </td>
      <td class="num wide">
        <Num value={each.waiting} capped={isCapped("waiting")} to={jobs(each.name, "waiting")} />
      </td>
      <td class="num">
        <Num value={each.failed} capped={isCapped("failed")} to={jobs(each.name, "failed")} tone="bad" />
      </td>
      <td class="num mid">
        {unserved ? <Badge of="warning">none</Badge> : each.workers || <span class="zero">0</span>}
      </td>
      <td class="num mid">{each.ended_rate === null ? <span class="zero">–</span> : brief(each.ended_rate)}</td>
      <td class="wide">
        <Spark values={each.spark} />
      </td>
      {canOperate.value && (
        <td class="num mid">
          <Button
            slim
            kind="plain"
            onClick={() => pauseQueue(each.name, !each.paused)}
            label={`${each.paused ? "Resume" : "Pause"} the queue ${each.name}`}
          >
            {each.paused ? "Resume" : "Pause"}
          </Button>
        </td>
      )}
    </tr>
  );
}

/** Whether the count of a status stopped at its bound, so that a queue may have more than its number says. */
export function isCapped(status: Counted): boolean {
  return overview.value?.totals.capped.includes(status) ?? false;
}

export function QueueState({ of: each, filled }: { of: QueueOverview; filled?: boolean }): JSX.Element {
  const more = filled ? { filled } : {};
  if (each.paused) {
    const rests = each.pauses.length > 0 && each.pauses.every((pause) => pause.why === "held");
    return (
      <Badge of="paused" {...more}>
        {rests ? "rests" : "paused"}
      </Badge>
    );
  }
  if (each.full)
    return (
      <Badge of="blocked" {...more}>
        full
      </Badge>
    );
  if (each.running)
    return (
      <Badge of="running" {...more}>
        active
      </Badge>
    );
  return (
    <Badge of={each.queued ? "queued" : "ok"} {...more}>
      {each.queued ? "queued" : "idle"}
    </Badge>
  );
}
