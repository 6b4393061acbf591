import type { JSX } from "preact";
import { Empty } from "../design/Empty";
import { PageHead } from "../shell/PageHead";

export function NotFound(): JSX.Element {
  return (
    <>
      <PageHead title="No such page" />
      <section class="panel">
        <Empty
          title="This address leads nowhere"
          acts={
            <a class="button" href=".">
              Overview
            </a>
          }
        >
          Press Ctrl+K to find a page, a queue, a task or a job.
        </Empty>
      </section>
    </>
  );
}
