/** Failed jobs grouped by their error, over the newest of them. */
import type { JSX } from "preact";
import type { FailureGroups as Groups } from "../api";
import { Time } from "../design/Badge";
import { Button } from "../design/Button";
import { Empty, Loaded } from "../design/Empty";
import { count, plural } from "../lib/format";
import { withQuery } from "../lib/http";
import { useListKeys } from "../lib/list";
import { useLoad } from "../lib/load";
import { overview } from "../lib/live";
import { href, route, setQuery } from "../lib/route";
import { canOperate } from "../lib/session";
import { askBulk } from "../parts/open";
import { FailureRows } from "../parts/FailureRows";
import { PageHead } from "../shell/PageHead";

const SCAN = 1_000; // failed jobs that are grouped
const LOOK = 10; // s

export function failuresPath(query: URLSearchParams): string {
  return withQuery("failures", {
    scan: SCAN,
    queue: query.get("queue"),
    task: query.get("task"),
    cursor: query.get("cursor"),
  });
}

export function Failures(): JSX.Element {
  const { query } = route.value;
  const queue = query.get("queue") ?? "";
  const load = useLoad<Groups>(failuresPath(query), LOOK);
  useListKeys();
  const groups = load.data;
  return (
    <>
      <PageHead
        title="Failures"
        beside={
          groups &&
          groups.total > 0 && (
            <span class="quiet">
              {plural(groups.total, "failed job", groups.capped)} in {plural(groups.groups.length, "group")}
            </span>
          )
        }
        acts={
          <>
            <a class="button" href={href(["jobs"], { status: "failed", queue })}>
              All failed jobs
            </a>
            {canOperate.value && groups && groups.total > 0 && (
              <Button onClick={() => askBulk("retry", { filter: { state: "failed", ...(queue && { queue }) } })}>
                Retry all…
              </Button>
            )}
          </>
        }
      />
      <div class="filter">
        <label class={queue ? "small-field set" : "small-field"}>
          <span>queue</span>
          <select
            class="input"
            value={queue}
            onChange={(event) => setQuery({ queue: event.currentTarget.value, cursor: "" })}
          >
            <option value="">all</option>
            {overview.value?.queues
              .filter((each) => each.failed || each.name === queue)
              .map((each) => (
                <option key={each.name} value={each.name} selected={each.name === queue}>
                  {each.name} ({count(each.failed)})
                </option>
              ))}
          </select>
        </label>
      </div>
      <section class="panel">
        <Loaded of={load}>
          {(page) =>
            page.groups.length ? (
              <FailureRows groups={page.groups} />
            ) : (
              <Empty title={queue ? `Nothing has failed in ${queue}` : "Nothing has failed"}>
                A job fails when no attempts are left, or when its task aborts it. It stays here for 30 days, unless its
                options say otherwise.
              </Empty>
            )
          }
        </Loaded>
        {groups && (groups.cursor || query.get("cursor")) && (
          <footer class="list-end">
            <span class="quiet">
              Grouped the newest {plural(groups.scanned ?? SCAN, "failed job")}
              {groups.scanned_to && (
                <>
                  , back to <Time at={groups.scanned_to} exact />
                </>
              )}
              .
            </span>
            <span class="row push">
              {query.get("cursor") && <Button onClick={() => history.back()}>Newer</Button>}
              {groups.cursor && <Button onClick={() => setQuery({ cursor: groups.cursor }, {})}>Look further</Button>}
            </span>
          </footer>
        )}
      </section>
    </>
  );
}
