/** The inbox: the open requests for approval, the oldest first. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { ApprovalsShown } from "../api";
import { Button } from "../design/Button";
import { Empty, Loaded } from "../design/Empty";
import { Segments } from "../design/Field";
import { get, withQuery } from "../lib/http";
import { useLoad } from "../lib/load";
import { Request } from "../parts/Requests";
import { PageHead } from "../shell/PageHead";

const ROWS = 50;
const LOOK = 10; // s

export function Approvals(): JSX.Element {
  const whose = useSignal<"mine" | "all">("mine");
  const query = { limit: ROWS, mine: whose.value === "mine" };
  const load = useLoad<ApprovalsShown>(withQuery("approvals", query), LOOK);
  const further = useSignal<ApprovalsShown | null>(null);
  const cursor = (further.value ?? load.data)?.cursor;
  const more = async (): Promise<void> => {
    const page = await get<ApprovalsShown>(withQuery("approvals", { ...query, cursor }));
    further.value = { requests: [...(further.value?.requests ?? []), ...page.requests], cursor: page.cursor };
  };
  const choose = (value: string): void => {
    whose.value = value === "all" ? "all" : "mine";
    further.value = null;
  };
  const choice = (
    <Segments
      label="Requests"
      value={whose.value}
      choices={[
        ["mine", "I may decide"],
        ["all", "All"],
      ]}
      onChange={choose}
    />
  );
  return (
    <>
      <PageHead title="Approvals" acts={choice} />
      <Loaded of={load}>
        {(first) => {
          const seen = new Set(first.requests.map((each) => each.id));
          const shown = [...first.requests, ...(further.value?.requests ?? []).filter((each) => !seen.has(each.id))];
          return shown.length || cursor ? (
            <div class="stack">
              {shown.map((each) => (
                <Request key={each.id} request={each} />
              ))}
              {cursor && (
                <div class="row">
                  <Button onClick={more}>More</Button>
                </div>
              )}
            </div>
          ) : (
            <section class="panel">
              <Empty
                title={whose.value === "mine" ? "Nothing waits for your decision" : "No job waits for a decision"}
                code={'answer = await current().approve("refund", by="group:finance", show={"amount": 99})'}
              >
                A job that asks for approval waits here, without a slot, until a person decides.
              </Empty>
            </section>
          );
        }}
      </Loaded>
    </>
  );
}
