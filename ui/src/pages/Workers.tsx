import type { JSX } from "preact";
import { Empty } from "../design/Empty";
import { plural } from "../lib/format";
import { useListKeys } from "../lib/list";
import { overview } from "../lib/live";
import { WorkerRows } from "../parts/WorkerRows";
import { worker } from "../parts/terminal";
import { PageHead } from "../shell/PageHead";

export function Workers(): JSX.Element {
  const look = overview.value;
  useListKeys();
  const slots = look?.workers.reduce((sum, each) => sum + each.slots, 0) ?? 0;
  return (
    <>
      <PageHead
        title="Workers"
        beside={
          look &&
          look.workers.length > 0 && (
            <span class="quiet">
              {plural(look.workers.length, "worker")} with {plural(slots, "slot")}
            </span>
          )
        }
      />
      <section class="panel">
        {!look ? (
          <div class="pad skeleton-tall" />
        ) : look.workers.length ? (
          <WorkerRows workers={look.workers} />
        ) : (
          <Empty title="No worker has sent a heartbeat recently" code={worker()}>
            A worker appears here with its first heartbeat, within 10 s of its start.
          </Empty>
        )}
      </section>
    </>
  );
}
