/** The streams that the runs of a job write, and their log lines. */
import { useSignal, type Signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Job as Row } from "../api";
import { Badge } from "../design/Badge";
import { Copy } from "../design/Button";
import { Panel } from "../design/Table";
import { count, iso, plural, timeOfDay } from "../lib/format";
import { paused } from "../lib/live";
import { toneOf } from "../lib/status";
import { Stream, type Chunk, type Item, type State } from "./stream";

export const LOG = "log"; // the stream of the log lines
const AT_END = 24; // px from the end that count as the end

const STATES: Record<State, readonly [badge: string, words: string]> = {
  connecting: ["waiting", "connecting"],
  live: ["running", "live"],
  polling: ["running", "every 5 s"],
  ended: ["succeeded", "complete"],
  paused: ["paused", "paused"],
};

export function Streams({ job, names }: { job: Row; names: readonly string[] }): JSX.Element | null {
  const chosen = useSignal<string | null>(null);
  const name = chosen.value !== null && names.includes(chosen.value) ? chosen.value : names[0];
  if (name === undefined) return null;
  const choice = names.length > 1 && (
    <div class="segments" role="group" aria-label="Stream">
      {names.map((each) => (
        <button key={each} type="button" aria-pressed={each === name} onClick={() => (chosen.value = each)}>
          {each === LOG ? "Log" : each}
        </button>
      ))}
    </div>
  );
  return <Shown key={name} id={job.id} name={name} choice={choice} />;
}

function Shown({ id, name, choice }: { id: string; name: string; choice: ComponentChildren }): JSX.Element {
  const stream = useMemo(() => new Stream(id, name), [id, name]);
  const follow = useSignal(true);
  const withVoid = useSignal(false);
  useEffect(() => {
    const go = (): void => (document.hidden || paused.value ? stream.pause() : stream.start());
    go();
    document.addEventListener("visibilitychange", go);
    return () => {
      document.removeEventListener("visibilitychange", go);
      stream.stop();
    };
  }, [stream, paused.value]);
  const [badge, shown] = STATES[stream.state.value];
  const what = name === LOG ? "line" : "chunk";
  return (
    <Panel
      label="Streams"
      title={choice || (name === LOG ? "Log" : <span class="any">{name}</span>)}
      acts={
        <>
          <span class="quiet small nowrap" data-count={stream.version.value}>
            {plural(stream.count - stream.voided, what)}
          </span>
          <span class="small">
            <Badge of={badge}>{shown}</Badge>
          </span>
          {stream.voided > 0 && <Toggle of={withVoid} words="Void" title="Show what earlier tries have written, too" />}
          {stream.state.value !== "ended" && (
            <Toggle of={follow} words="Follow" title="Stay at the end" />
          )}
          {stream.count > 0 && <Copy text={() => textOf(stream)} what={name === LOG ? "the log" : "the stream"} />}
        </>
      }
    >
      {stream.problem.value && (
        <div class="pad">
          <div class="note t-bad" role="alert">
            {stream.problem.value}
          </div>
        </div>
      )}
      <Entries stream={stream} follow={follow} withVoid={withVoid.value} log={name === LOG} name={name} />
    </Panel>
  );
}

function Toggle({ of, words, title }: { of: Signal<boolean>; words: string; title: string }): JSX.Element {
  const press = (): void => {
    of.value = !of.value;
  };
  return (
    <button type="button" class="button plain slim toggle" aria-pressed={of.value} title={title} onClick={press}>
      {words}
    </button>
  );
}

interface EntriesProps {
  stream: Stream;
  follow: { value: boolean };
  withVoid: boolean;
  log: boolean;
  name: string;
}

/** The entries in a frame of its own that scrolls. It stays at its end until the reader scrolls up. */
function Entries({ stream, follow, withVoid, log, name }: EntriesProps): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const top = useRef(0);
  const drawn = useRef<{ void: boolean; blocks: (JSX.Element | null)[] }>({ void: withVoid, blocks: [] });
  if (drawn.current.void !== withVoid) drawn.current = { void: withVoid, blocks: [] };
  const blocks = drawn.current.blocks;
  const version = stream.version.value;
  stream.blocks.forEach((items, number) => {
    if (number < blocks.length && !stream.stale.has(number)) return; // the same element: Preact leaves it alone
    const before = stream.blocks[number - 1]?.at(-1);
    const block = <Block key={number} items={[...items]} before={before} withVoid={withVoid} log={log} />;
    blocks[number] = items.length ? block : null;
  });
  stream.stale.clear();
  useLayoutEffect(() => {
    const element = frame.current;
    if (!element || !follow.value) return;
    element.scrollTop = element.scrollHeight;
    top.current = element.scrollTop;
  }, [version, follow.value, withVoid]);
  const scrolled = (): void => {
    const element = frame.current!;
    if (element.scrollHeight - element.scrollTop - element.clientHeight < AT_END) follow.value = true;
    else if (element.scrollTop < top.current) follow.value = false;
    top.current = element.scrollTop;
  };
  const over = stream.state.value === "ended";
  return (
    <div
      ref={frame}
      class={log ? "stream logs" : "stream text-of"}
      role="group"
      tabIndex={0}
      aria-label={log ? "Log lines" : `Stream ${name}`}
      onScroll={scrolled}
    >
      {stream.dropped > 0 && <p class="quiet">{count(stream.dropped)} earlier entries are not shown here.</p>}
      {blocks}
      {!stream.count && (
        <p class="quiet">{over ? "Nothing was written." : "Nothing has been written yet."}</p>
      )}
      {!log && !over && stream.count > 0 && <span class="caret" aria-hidden="true" />}
    </div>
  );
}

interface BlockProps {
  items: readonly Item[];
  before: Item | undefined;
  withVoid: boolean;
  log: boolean;
}

function Block({ items, before, withVoid, log }: BlockProps): JSX.Element {
  return log ? <Lines items={items} before={before} /> : <Text items={items} before={before} withVoid={withVoid} />;
}

// --- log lines

interface Line {
  time: number;
  level: string;
  logger: string;
  text: string;
  run: number;
}

const LEVELS: Record<string, string> = { error: "error", critical: "error", warning: "warning" };

function lineOf(item: Item | undefined): Line | null {
  const value = item && "value" in item ? item.value : null;
  return typeof value === "object" && value !== null && "text" in value ? (value as unknown as Line) : null;
}

function Lines({ items, before }: { items: readonly Item[]; before: Item | undefined }): JSX.Element {
  let run = lineOf(before)?.run;
  const rows: JSX.Element[] = [];
  for (const item of items) {
    const line = lineOf(item);
    if (!line) continue;
    if (line.run !== run) {
      if (run !== undefined || line.run > 1) {
        rows.push(
          <li key={`run ${item.offset}`} class="run">
            attempt {line.run}
          </li>,
        );
      }
      run = line.run;
    }
    const level = line.level.toLowerCase();
    rows.push(
      <li key={item.offset} class={`t-${toneOf(LEVELS[level] ?? "")}`}>
        <time dateTime={new Date(line.time * 1000).toISOString()} title={iso(line.time)}>
          {timeOfDay(line.time, true)}
        </time>
        <b>{level}</b>
        <span dir="auto">
          <i>{line.logger}</i> {line.text}
        </span>
      </li>,
    );
  }
  return <ol class="block" style={{ containIntrinsicSize: `auto ${rows.length * 20}px` }}>{rows}</ol>;
}

// --- text and values

function Text({ items, before, withVoid }: Omit<BlockProps, "log">): JSX.Element {
  const parts: JSX.Element[] = [];
  let step = before?.step ?? items[0]?.step;
  let run = "";
  let struck = false;
  const flush = (at: number): void => {
    if (run) parts.push(struck ? <del key={at}>{run}</del> : <span key={at}>{run}</span>);
    run = "";
  };
  for (const item of items) {
    if ("voided" in item) {
      flush(item.offset);
      if (item.voided)
        parts.push(
          <span key={`r${item.offset}`} class="again" title={`${plural(item.voided, "chunk")} before this are void`}>
            {item.step || "job"} runs again
          </span>,
        );
      continue;
    }
    if (item.void && !withVoid) continue;
    if (item.step !== step) {
      flush(item.offset);
      parts.push(
        <span key={`s${item.offset}`} class="chip">
          {item.step || "job"}
        </span>,
      );
      step = item.step;
    }
    if (typeof item.value === "string") {
      if (struck !== item.void) flush(item.offset);
      struck = item.void;
      run += item.value;
    } else {
      flush(item.offset);
      parts.push(<Value key={`v${item.offset}`} chunk={item} />);
    }
  }
  flush(items.at(-1)!.offset + 1);
  return (
    <span>{parts}</span>
  );
}

function Value({ chunk }: { chunk: Chunk }): JSX.Element {
  const text = JSON.stringify(chunk.value);
  return chunk.void ? <del class="value">{text}</del> : <code class="value">{text}</code>;
}

/** The text for "copy", without void parts: a line for each value that is no text. */
function textOf(stream: Stream): string {
  return stream.blocks
    .flat()
    .map((item) => {
      const line = lineOf(item);
      if (line) return `${iso(line.time)} ${line.level} ${line.logger} ${line.text}\n`;
      if (!("value" in item) || item.void) return "";
      return typeof item.value === "string" ? item.value : `${JSON.stringify(item.value)}\n`;
    })
    .join("");
}
