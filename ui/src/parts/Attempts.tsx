import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { JobAttempt } from "../api";
import { Badge, Time } from "../design/Badge";
import { Table } from "../design/Table";
import { Trace } from "../design/Trace";
import { now } from "../lib/clock";
import { duration, errorLine } from "../lib/format";
import { href } from "../lib/route";
import { reasonOf } from "../lib/status";

/** The attempts of a job as a table, the newest first. The picture above it shows the same. */
export function Attempts({ attempts }: { attempts: readonly JobAttempt[] }): JSX.Element {
  return (
    <Table
      caption="Attempts"
      columns={[
        { words: "attempt", class: "num" },
        { words: "outcome" },
        { words: "error", class: "mid" },
        { words: "worker", class: "wide" },
        { words: "run time", class: "num" },
        { words: "started", class: "num" },
      ]}
    >
      {attempts.toReversed().map((each) => (
        <Attempt key={`${each.reopening}.${each.number}.${each.started_at}`} of={each} />
      ))}
    </Table>
  );
}

function Attempt({ of }: { of: JobAttempt }): JSX.Element {
  const long = of.error !== null && of.error.trim().includes("\n");
  const open = useSignal(false);
  return (
    <>
      <tr>
        <th scope="row" class="num">
          {of.number}
          {of.reopening > 0 && <span class="quiet small"> round {of.reopening + 1}</span>}
        </th>
        <td>
          <Badge of={of.outcome} />
          {of.delay !== null && <span class="delay">next after {duration(of.delay)}</span>}
        </td>
        <td class="mid grow">
          {of.error ? (
            <code class="clip t-bad toned" dir="auto" title={errorLine(of.error)}>
              {errorLine(of.error)}
            </code>
          ) : (
            <span class="quiet">{of.reason && reasonOf(of.reason)}</span>
          )}
        </td>
        <td class="wide">
          {of.worker && (
            <a class="clip list-of" href={href(["workers", of.worker.replace(/#[^#]*$/, "")])} title={of.worker}>
              {of.worker}
            </a>
          )}
        </td>
        <td class="num">
          {of.started_at === null ? (
            <span class="zero">–</span>
          ) : (
            duration((of.ended_at ?? now.value) - of.started_at)
          )}
        </td>
        <td class="num">
          <Time at={of.started_at} />
        </td>
      </tr>
      {long && (
        <tr class="under">
          <td colSpan={6}>
            <span class="row">
              <button
                type="button"
                class="button plain slim more-of"
                aria-expanded={open.value}
                onClick={() => (open.value = !open.value)}
              >
                Error of attempt {of.number}
              </button>
            </span>
            {open.value && <Trace text={of.error!} />}
          </td>
        </tr>
      )}
    </>
  );
}
