import type { JSX } from "preact";
import type { Workflow, WorkflowPage as List } from "../api";
import { Badge, Time } from "../design/Badge";
import { Button } from "../design/Button";
import { Parts } from "../design/Chart";
import { Empty, Loaded } from "../design/Empty";
import { Num, Table } from "../design/Table";
import { Tabs } from "../design/Tabs";
import { count, duration, plural, shortId } from "../lib/format";
import { withQuery } from "../lib/http";
import { useListKeys } from "../lib/list";
import { useLoad } from "../lib/load";
import { href, route, setQuery } from "../lib/route";
import { PageHead } from "../shell/PageHead";

const LOOK = 10; // s
const STATES = ["running", "waiting", "succeeded", "failed", "cancelled"];

export function Workflows(): JSX.Element {
  const { query } = route.value;
  const state = query.get("state") ?? "";
  const cursor = query.get("cursor");
  const load = useLoad<List>(withQuery("workflows", { state, cursor, limit: 50 }), cursor ? 0 : LOOK);
  useListKeys();
  const page = load.data;
  return (
    <>
      <PageHead title="Workflows" />
      <Tabs
        label="State of the first job"
        tabs={[
          { to: "workflows", words: "All", here: !state },
          ...STATES.map((each) => ({
            to: href(["workflows"], { state: each }),
            words: each[0]!.toUpperCase() + each.slice(1),
            here: state === each,
          })),
        ]}
      />
      <section class="panel">
        <Loaded of={load}>
          {(page) =>
            page.workflows.length ? (
              <Rows of={page.workflows} />
            ) : page.cursor ? (
              <Empty title={`No workflow among ${plural(page.scanned ?? 0, "row")}`}>Look further below.</Empty>
            ) : (
              <Empty
                title={state ? `No workflow is ${state}` : "No workflows yet"}
                code={
                  state
                    ? ""
                    : "@app.task\nasync def daily(pages: list[int]) -> Flow[str]:\n    return gather(fetch.job(page) for page in pages).into(summarise)"
                }
              >
                A workflow is a first job and all jobs that follow from it.
              </Empty>
            )
          }
        </Loaded>
        {page && (page.cursor || cursor) && (
          <footer class="list-end">
            {page.scanned_to && (
              <span class="quiet">
                Looked back to <Time at={page.scanned_to} exact />.
              </span>
            )}
            <span class="row push">
              {cursor && <Button onClick={() => history.back()}>Newer</Button>}
              {page.cursor && (
                <Button onClick={() => setQuery({ cursor: page.cursor }, {})}>
                  {page.workflows.length ? "Older" : "Look further"}
                </Button>
              )}
            </span>
          </footer>
        )}
      </section>
    </>
  );
}

function Rows({ of }: { of: readonly Workflow[] }): JSX.Element {
  return (
    <Table
      caption="Workflows"
      columns={[
        { words: "state" },
        { words: "first task" },
        { words: "progress" },
        { words: "running", class: "num mid" },
        { words: "failed", class: "num mid" },
        { words: "queue", class: "wide" },
        { words: "took", class: "num mid" },
        { words: "created", class: "num" },
      ]}
    >
      {of.map((each) => (
        <tr key={each.id} data-row={each.id}>
          <td>
            <Badge of={each.state === "ready" ? "queued" : each.state} />
          </td>
          <th scope="row" class="name">
            <a href={href(["workflows", each.id])} data-main class="clip">
              {each.task}
            </a>
            <code class="quiet small">{shortId(each.id)}</code>
          </th>
          <td>
            <span class="progress">
              <Parts
                parts={[
                  ["good", (each.done - each.failed) / (each.jobs || 1)],
                  ["bad", each.failed / (each.jobs || 1)],
                  ["live", each.running / (each.jobs || 1)],
                ]}
              />
              <span class="small nowrap">
                {count(each.done)} / {count(each.jobs, each.capped)}
              </span>
            </span>
          </td>
          <td class="num mid">
            <Num value={each.running} />
          </td>
          <td class="num mid">
            <Num value={each.failed} to={href(["jobs"], { workflow: each.id, status: "failed" })} tone="bad" />
          </td>
          <td class="wide">{each.queue}</td>
          <td class="num mid">
            {each.ended_at === null ? <span class="zero">–</span> : duration(each.ended_at - each.created_at)}
          </td>
          <td class="num">
            <Time at={each.created_at} />
          </td>
        </tr>
      ))}
    </Table>
  );
}
