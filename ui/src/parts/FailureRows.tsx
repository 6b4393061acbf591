import type { JSX } from "preact";
import type { FailureGroup } from "../api";
import { Time } from "../design/Badge";
import { Columns } from "../design/Chart";
import { Num, Table } from "../design/Table";
import { href } from "../lib/route";

/** Failed jobs by error, the largest group first. */
export function FailureRows({ groups }: { groups: readonly FailureGroup[] }): JSX.Element {
  return (
    <Table
      caption="Failed jobs by error"
      columns={[
        { words: "jobs", class: "num" },
        { words: "error" },
        { words: "task", class: "mid" },
        { words: "queue", class: "wide" },
        { words: "when", class: "mid" },
        { words: "last", class: "num" },
      ]}
    >
      {groups.map((each) => (
        <tr key={each.key} data-row={each.key}>
          <td class="num strong">
            <Num value={each.jobs} />
          </td>
          <th scope="row" class="grow">
            <a href={href(["failures", each.key])} data-main class="clip mono" dir="auto" title={each.error}>
              {each.signature}
            </a>
            <code class="below clip">{each.task}</code>
          </th>
          <td class="mid">
            <span class="clip task-name" title={each.task}>
              {each.task}
            </span>
          </td>
          <td class="wide">
            <a class="plain-link clip list-of" href={href(["queues", each.queue])} title={each.queue}>
              {each.queue}
            </a>
          </td>
          <td class="mid">
            <Columns values={each.spark} />
          </td>
          <td class="num">
            <Time at={each.last} />
          </td>
        </tr>
      ))}
    </Table>
  );
}
