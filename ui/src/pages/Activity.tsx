/** The audit log: the acts of people and programs on jobs, queues, limits and schedules. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { AuditEntry, AuditPage } from "../api";
import { Badge, Time } from "../design/Badge";
import { Button } from "../design/Button";
import { Empty, Loaded } from "../design/Empty";
import { Table } from "../design/Table";
import { count, shortId } from "../lib/format";
import { get, withQuery } from "../lib/http";
import { useListKeys } from "../lib/list";
import { useLoad } from "../lib/load";
import { href } from "../lib/route";
import { canOperate, servesAll } from "../lib/session";
import { PageHead } from "../shell/PageHead";

const ROWS = 100;
const LOOK = 15; // s

export function Activity(): JSX.Element {
  const load = useLoad<AuditPage>(canOperate.value && servesAll.value ? `audit?limit=${ROWS}` : null, LOOK);
  const older = useSignal<AuditPage | null>(null);
  useListKeys();
  const cursor = (older.value ?? load.data)?.cursor;
  const more = async (): Promise<void> => {
    const page = await get<AuditPage>(withQuery("audit", { limit: ROWS, cursor }));
    older.value = { entries: [...(older.value?.entries ?? []), ...page.entries], cursor: page.cursor };
  };
  return (
    <>
      <PageHead title="Activity" />
      <section class="panel">
        {!canOperate.value || !servesAll.value ? (
          <Empty title="Only operators of all queues see the activity">
            It names people and what they did. Your token lacks the scope “operate”, or is bound to some queues.
          </Empty>
        ) : (
          <Loaded of={load}>
            {(newest) => {
              const seen = new Set(newest.entries.map((each) => each.id));
              const entries = [...newest.entries, ...(older.value?.entries ?? []).filter((each) => !seen.has(each.id))];
              return entries.length ? (
                <>
                  <Entries of={entries} />
                  {cursor && (
                    <footer class="list-end">
                      <span class="push">
                        <Button onClick={more}>Older</Button>
                      </span>
                    </footer>
                  )}
                </>
              ) : (
                <Empty title="Nobody has done anything yet">
                  Acts of this page, of the command line and of programs appear here, and stay for 90 days.
                </Empty>
              );
            }}
          </Loaded>
        )}
      </section>
    </>
  );
}

function Entries({ of }: { of: readonly AuditEntry[] }): JSX.Element {
  return (
    <Table
      caption="Activity"
      columns={[
        { words: "when" },
        { words: "who" },
        { words: "from", class: "mid" },
        { words: "act" },
        { words: "on" },
        { words: "jobs", class: "num" },
        { words: "result", class: "mid" },
      ]}
    >
      {of.map((each) => (
        <tr key={each.id} data-row={each.id}>
          <td>
            <Time at={each.at} />
          </td>
          <th scope="row">
            <span class="clip list-of">{each.by}</span>
          </th>
          <td class="mid quiet">{each.from}</td>
          <td class="nowrap">{each.act.replace(".", " ").replaceAll("_", " ")}</td>
          <td class="grow">
            <Target of={each} />
          </td>
          <td class="num">{each.done === null ? <span class="zero">–</span> : count(each.done)}</td>
          <td class="mid">
            <Outcome of={each} />
          </td>
        </tr>
      ))}
    </Table>
  );
}

function Target({ of }: { of: AuditEntry }): JSX.Element {
  if (of.ids.length) {
    return (
      <span class="id-list">
        {of.ids.slice(0, 3).map((id) => (
          <a key={id} class="mono" href={href(["jobs", id])}>
            {shortId(id)}
          </a>
        ))}
        {of.ids.length > 3 && <span class="quiet">and {of.ids.length - 3} more</span>}
      </span>
    );
  }
  const text = of.filter || of.target || "";
  const [kind] = of.act.split(".");
  if (kind === "queue" || kind === "schedule") return <a href={href([`${kind}s`, text])}>{text}</a>;
  if (kind === "limit") return <a href="limits">{text}</a>;
  return (
    <code class="clip" title={text} dir="auto">
      {text}
    </code>
  );
}

function Outcome({ of }: { of: AuditEntry }): JSX.Element {
  if (of.error) return <Badge of="failed">{of.error}</Badge>;
  if (of.ended_at === null) return <Badge of="running">open</Badge>;
  const passed = Object.entries(of.passed_over ?? {});
  return (
    <>
      <Badge of="done" />
      {passed.length > 0 && (
        <span class="delay">
          passed over {passed.map(([reason, number]) => `${count(number)} ${reason.replaceAll("_", " ")}`).join(", ")}
        </span>
      )}
    </>
  );
}
