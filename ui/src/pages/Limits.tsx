import type { JSX } from "preact";
import { Button } from "../design/Button";
import { Empty } from "../design/Empty";
import { useListKeys } from "../lib/list";
import { overview } from "../lib/live";
import { canOperate, servesAll } from "../lib/session";
import { editLimit } from "../parts/open";
import { LimitTable, ownRule } from "../parts/LimitTable";
import { PageHead } from "../shell/PageHead";

/** All rules and their partitions in use, each partition below its rule. */
export function Limits(): JSX.Element {
  const look = overview.value;
  const can = canOperate.value && servesAll.value;
  useListKeys();
  const sorted = look?.limits.toSorted((a, b) => {
    const [one, other] = [ownRule(a).name, ownRule(b).name];
    return one === other
      ? Number(a.key !== one) - Number(b.key !== other) || b.blocked - a.blocked || (a.key < b.key ? -1 : 1)
      : one < other
        ? -1
        : 1;
  });
  const add = can && (
    <Button icon="plus" onClick={() => editLimit()}>
      Add a limit
    </Button>
  );
  return (
    <>
      <PageHead title="Limits" acts={add} />
      <section class="panel">
        {!sorted ? (
          <div class="pad skeleton-tall" />
        ) : sorted.length ? (
          <LimitTable limits={sorted} />
        ) : (
          <Empty
            title="No limits"
            code={
              'treadle limits set smtp --slots 4 --rate 100 --per 60\n\n@app.task(limits=["smtp"])\nasync def send_mail(to: str) -> None: ...'
            }
          >
            A limit says how many jobs may run at once, or start in a period, across all workers.
          </Empty>
        )}
      </section>
    </>
  );
}
