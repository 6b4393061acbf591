/** Requests for approval: what each asks, who may decide, and the decision. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Decided, RequestShown } from "../api";
import { Time } from "../design/Badge";
import { Button } from "../design/Button";
import { TextField } from "../design/Field";
import { Json } from "../design/Json";
import { Facts, Panel } from "../design/Table";
import { failed, toast } from "../design/toasts";
import { shortId } from "../lib/format";
import { part, Problem, send } from "../lib/http";
import { href } from "../lib/route";
import { canOperate } from "../lib/session";
import { refreshAll } from "./acts";

const LONGEST = 2_000; // characters of a reason

/** "group:finance" in words. */
function whom(by: string): string {
  const [kind, ...name] = by.split(":");
  return by ? `the ${kind} ${name.join(":")}` : "every operator";
}

async function decide(request: RequestShown, approved: boolean, reason: string): Promise<void> {
  try {
    const decision = await send<Decided>("POST", `approvals/${part(request.id)}/decide`, { approved, reason });
    toast(`The request ${request.name} is ${decision.approved ? "approved" : "rejected"}.`, { tone: "good" });
  } catch (error) {
    failed(error); // of two decisions one counts: the message has it
    if (!(error instanceof Problem && error.status === 409)) return;
  }
  refreshAll();
}

/** One request. `alone`: on the page of its job, which is not named again. */
export function Request({ request, alone = false }: { request: RequestShown; alone?: boolean }): JSX.Element {
  const reason = useSignal("");
  const busy = useSignal(false);
  const can = canOperate.value && request.may_decide;
  const press = async (approved: boolean): Promise<void> => {
    if (busy.value) return;
    busy.value = true;
    await decide(request, approved, reason.value.trim());
    busy.value = false;
  };
  return (
    <Panel title={alone ? `Request for approval: ${request.name}` : request.name} label={`Request ${request.name}`}>
      <div class="pad stack" data-testid="request">
        <Facts
          rows={[
            !alone && [
              "Job",
              <a href={href(["jobs", request.job])}>
                {request.task} <span class="mono">{shortId(request.job)}</span>
              </a>,
            ],
            ["Decided by", whom(request.by)],
            ["Asked", <Time at={request.asked_at} />],
            request.until !== null && ["Until", <Time at={request.until} exact />],
          ]}
        />
        {request.show !== null && <Json value={request.show} />}
        {can ? (
          <>
            <TextField
              label="Reason"
              optional
              value={reason.value}
              onInput={(text) => (reason.value = text.slice(0, LONGEST))}
            />
            <div class="row">
              <Button kind="primary" disabled={busy.value} onClick={() => press(true)}>
                Approve
              </Button>
              <Button kind="danger" disabled={busy.value} onClick={() => press(false)}>
                Reject
              </Button>
            </div>
          </>
        ) : (
          <p class="quiet">
            {canOperate.value
              ? `Only ${whom(request.by)} may decide this request.`
              : "Your token lacks the scope “operate”, which a decision needs."}
          </p>
        )}
      </div>
    </Panel>
  );
}
