import { useSignal, type Signal } from "@preact/signals";
import type { JSX } from "preact";
import type { JobAttempt, LogLine } from "../api";
import { Badge, Time } from "../design/Badge";
import { Table } from "../design/Table";
import { Trace } from "../design/Trace";
import { now } from "../lib/clock";
import { duration, errorLine, plural, timeOfDay } from "../lib/format";
import { href } from "../lib/route";
import { reasonOf, toneOf } from "../lib/status";

/** The attempts of a job as a table, the newest first. The picture above it shows the same. */
export function Attempts({ attempts, logs }: { attempts: readonly JobAttempt[]; logs: boolean }): JSX.Element {
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
        <Lines key={`${each.reopening}.${each.number}.${each.started_at}`} of={each} logs={logs} />
      ))}
    </Table>
  );
}

function Lines({ of, logs }: { of: JobAttempt; logs: boolean }): JSX.Element {
  const long = of.error !== null && of.error.trim().includes("\n");
  const lines = logs ? of.logs : [];
  const open = useSignal(of.ended_at === null && lines.length ? "logs" : "");
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
      {(long || lines.length > 0) && (
        <tr class="under">
          <td colSpan={6}>
            <span class="row">
              {long && <More of="error" open={open} words={`Error of attempt ${of.number}`} />}
              {lines.length > 0 && <More of="logs" open={open} words={plural(lines.length, "log line")} />}
            </span>
            {open.value === "error" && <Trace text={of.error!} />}
            {open.value === "logs" && <Logs lines={lines} />}
          </td>
        </tr>
      )}
    </>
  );
}

function More({ of, open, words }: { of: string; open: Signal<string>; words: string }): JSX.Element {
  const here = open.value === of;
  return (
    <button
      type="button"
      class="button plain slim more-of"
      aria-expanded={here}
      onClick={() => (open.value = here ? "" : of)}
    >
      {words}
    </button>
  );
}

const LEVELS: Record<string, string> = { error: "error", critical: "error", warning: "warning" };

function Logs({ lines }: { lines: readonly LogLine[] }): JSX.Element {
  return (
    <ol class="logs" tabIndex={0} aria-label="Log lines">
      {lines.map((line, at) => (
        <li key={at} class={`t-${toneOf(LEVELS[line.level.toLowerCase()] ?? "")}`}>
          <time dateTime={new Date(line.at * 1000).toISOString()}>{timeOfDay(line.at, true)}</time>
          <b>{line.level.toLowerCase()}</b>
          <span dir="auto">{line.text}</span>
        </li>
      ))}
    </ol>
  );
}
