import type { JSX } from "preact";
import { Empty } from "../design/Empty";
import { useListKeys } from "../lib/list";
import { overview } from "../lib/live";
import { QueueTable } from "../parts/QueueTable";
import { PageHead } from "../shell/PageHead";

export function Queues(): JSX.Element {
  const look = overview.value;
  useListKeys();
  return (
    <>
      <PageHead title="Queues" />
      <section class="panel">
        {!look ? (
          <div class="pad skeleton-tall" />
        ) : look.queues.length ? (
          <QueueTable queues={look.queues} />
        ) : (
          <Empty title="No queues yet" code={'@app.task(queue="mail")\nasync def send_mail(to: str) -> None: ...'}>
            A queue exists as soon as a job names it.
          </Empty>
        )}
      </section>
    </>
  );
}
