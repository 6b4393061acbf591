import { useComputed } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { now } from "../lib/clock";
import { iso, moment, relative, span } from "../lib/format";
import { times } from "../lib/settings";
import { toneOf, type Tone } from "../lib/status";
import { Sign } from "./Icon";

/** A state as sign and word; the tone only repeats them. */
export function Badge({
  of,
  filled,
  children,
}: {
  of: string;
  filled?: boolean;
  children?: ComponentChildren;
}): JSX.Element {
  return (
    <span class={`badge t-${toneOf(of)}${filled ? " filled" : ""}`}>
      <Sign of={of} />
      {children ?? of}
    </span>
  );
}

export function Note({
  tone,
  sign,
  children,
}: {
  tone: Tone;
  sign?: string;
  children: ComponentChildren;
}): JSX.Element {
  return (
    <div class={`note t-${tone}`}>
      {sign && (
        <span class="badge">
          <Sign of={sign} />
        </span>
      )}
      <div>{children}</div>
    </div>
  );
}

/** A moment in the way that the reader has chosen; its title has UTC. */
export function Time({ at, exact = false }: { at: number | null | undefined; exact?: boolean }): JSX.Element {
  const text = useComputed(() => {
    if (at === null || at === undefined) return "–";
    if (times.value === "utc") return moment(at, "UTC");
    return times.value === "local" || exact ? moment(at) : relative(at, now.value);
  });
  if (at === null || at === undefined) return <span class="zero">–</span>;
  const date = new Date(at * 1000);
  return (
    <time class="nowrap" dateTime={Number.isNaN(date.getTime()) ? undefined : date.toISOString()} title={iso(at)}>
      {text}
    </time>
  );
}

/** How long ago something began, growing while one looks. */
export function Since({ at }: { at: number }): JSX.Element {
  const text = useComputed(() => span(now.value - at));
  return (
    <span class="nowrap" title={iso(at)}>
      {text}
    </span>
  );
}
