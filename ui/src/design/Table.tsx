import type { ComponentChildren, JSX } from "preact";
import { count as countText } from "../lib/format";

export interface Column {
  /** The heading; with `hidden`, for readers of the page by ear only. */
  words: string;
  class?: string;
  hidden?: boolean;
}

interface Props {
  /** The content of the table, for screen readers. */
  caption: string;
  columns: readonly (Column | null | false)[];
  head?: ComponentChildren;
  children: ComponentChildren;
}

/** A real table: a caption, headings with a scope, and rows that scroll sideways where they must. */
export function Table({ caption, columns, head, children }: Props): JSX.Element {
  return (
    <div class="scroller" role="region" aria-label={caption} tabIndex={0}>
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>
            {head}
            {columns.map(
              (each) =>
                each && (
                  <th key={each.words} scope="col" class={each.class}>
                    {each.hidden ? <span class="hidden">{each.words}</span> : each.words}
                  </th>
                ),
            )}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

/** A number of a table: zeros recede. */
export function Num({
  value,
  capped,
  to,
  tone,
}: {
  value: number;
  capped?: boolean;
  to?: string;
  tone?: string;
}): JSX.Element {
  if (!value) return <span class="zero">0</span>;
  const text = countText(value, capped);
  return to ? (
    <a href={to} class={tone && `badge t-${tone}`}>
      {text}
    </a>
  ) : (
    <>{text}</>
  );
}

type Fact = readonly [name: string, value: ComponentChildren] | null | undefined | false | "" | 0;

/** Names and values; rows that do not apply are left out. */
export function Facts({ rows }: { rows: readonly Fact[] }): JSX.Element {
  return (
    <dl class="facts">
      {rows.map((row) =>
        row ? (
          <>
            <dt>{row[0]}</dt>
            <dd>{row[1]}</dd>
          </>
        ) : null,
      )}
    </dl>
  );
}

interface PanelProps {
  title?: ComponentChildren;
  acts?: ComponentChildren;
  children: ComponentChildren;
  pad?: boolean;
  label?: string;
}

export function Panel({ title, acts, children, pad, label }: PanelProps): JSX.Element {
  return (
    <section class="panel" aria-label={label}>
      {(title || acts) && (
        <header>
          {title && <h2>{title}</h2>}
          {acts && <div class="row push">{acts}</div>}
        </header>
      )}
      {pad ? <div class="pad">{children}</div> : children}
    </section>
  );
}
