/** The progress of bulk operations that this reader began, at the bottom of the page until they are dismissed. */
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { Act, Operation } from "../api";
import { Button } from "../design/Button";
import { Badge } from "../design/Badge";
import { announce } from "../lib/announce";
import { count, plural } from "../lib/format";
import { get, part, send } from "../lib/http";
import { noteOperation, operations } from "../lib/live";
import { canOperate, reloadAll } from "../lib/session";

const POLL = 2_000; // ms between two reads of a running operation, for streams that do not report it

const shown = signal<readonly string[]>([]);

export const PAST: Record<Act, string> = {
  retry: "retried",
  cancel: "cancelled",
  run_now: "queued",
  delete: "deleted",
};
const PRESENT: Record<Act, string> = {
  retry: "Retrying",
  cancel: "Cancelling",
  run_now: "Queueing",
  delete: "Deleting",
};

export function watchOperation(operation: Operation): void {
  noteOperation(operation);
  if (!shown.value.includes(operation.id)) shown.value = [...shown.value, operation.id];
}

/** Operations that were begun before this page was loaded, by this reader or another one. */
async function readRunning(): Promise<void> {
  const { operations: known } = await get<{ operations: Operation[] }>("operations");
  for (const operation of known) if (operation.state === "running") watchOperation(operation);
}

export function Tray(): JSX.Element {
  useEffect(() => {
    if (canOperate.value) void readRunning().catch(() => undefined);
  }, []);
  return (
    <section class="tray" aria-label="Operations">
      {shown.value.map((id) => {
        const operation = operations.value.get(id);
        return operation && <One key={id} of={operation} />;
      })}
    </section>
  );
}

function One({ of }: { of: Operation }): JSX.Element {
  const running = of.state === "running";
  const text = running ? `${PRESENT[of.act]} jobs` : summary(of);
  useEffect(() => {
    if (!running) {
      announce(text);
      reloadAll();
      return undefined;
    }
    const timer = setInterval(
      () => void get<Operation>(`operations/${part(of.id)}`).then(noteOperation, () => undefined),
      POLL,
    );
    return () => clearInterval(timer);
  }, [running]);
  const passed = Object.entries(of.passed_over);
  return (
    <div class="panel pad operation">
      <div class="row">
        <Badge of={of.state}>{text}</Badge>
        {running ? (
          <span class="push row">
            <span class="quiet">
              {count(of.done)}
              {of.total !== null && ` of ${count(of.total)}`}
            </span>
            <Button slim onClick={() => send("DELETE", `operations/${part(of.id)}`)}>
              Stop
            </Button>
          </span>
        ) : (
          <span class="push">
            <Button
              slim
              kind="plain"
              icon="close"
              label="Dismiss"
              onClick={() => (shown.value = shown.value.filter((each) => each !== of.id))}
            />
          </span>
        )}
      </div>
      {running && (
        <progress
          aria-label={text}
          {...(of.total !== null && { max: Math.max(1, of.total), value: Math.min(of.done, of.total) })}
        />
      )}
      {of.words && (
        <p class="small quiet clip" title={of.words}>
          {of.words}
        </p>
      )}
      {of.error && <p class="small any">{of.error}</p>}
      {of.more && <p class="small">More jobs match. They are as they were.</p>}
      {passed.length > 0 && (
        <p class="small quiet">
          Passed over: {passed.map(([reason, number]) => `${count(number)} ${reason.replaceAll("_", " ")}`).join(", ")}
        </p>
      )}
    </div>
  );
}

function summary(of: Operation): string {
  const done = `${plural(of.done, "job")} ${PAST[of.act]}`;
  return of.state === "stopped" ? `Stopped: ${done}` : of.state === "failed" ? `Failed: ${done}` : done;
}
