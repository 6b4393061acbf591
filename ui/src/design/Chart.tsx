/** Line charts, sparklines and bars in SVG. CSS gives them their colours, so dark mode and print need no code. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { brief, moment, timeOfDay } from "../lib/format";
import type { Tone } from "../lib/status";

export interface Series {
  words: string;
  tone: Tone;
  values: readonly (number | null)[];
  dashed?: boolean;
  area?: boolean;
}

interface Props {
  title: string;
  at: readonly number[];
  from: number;
  to: number;
  series: readonly Series[];
  format?: (value: number) => string;
  empty?: string;
}

const HEIGHT = 148;
const LEFT = 52;
const TOP = 8;
const FOOT = 20;
const RIGHT = 6;

/** A round number at or above the largest value, so the axis stays still while values move a little. */
export function ceiling(value: number): number {
  if (!(value > 0)) return 1;
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 7.5, 10].map((each) => each * step).find((each) => each >= value * 0.9999)!;
}

/** A path through the points; a missing value is a gap, and a point between two gaps a dot. */
function curve(points: readonly (readonly [number, number] | null)[]): string {
  let pen = false;
  let text = "";
  points.forEach((point, n) => {
    if (point) text += `${pen ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    if (point && !pen && !points[n + 1]) text += "h.1";
    pen = point !== null;
  });
  return text;
}

/** The closed areas below a line, one for each stretch without a gap. */
function area(points: readonly (readonly [number, number] | null)[], floor: number): string {
  let text = "";
  let from = -1;
  points.forEach((point, n) => {
    if (point && from < 0) from = n;
    const last = n === points.length - 1;
    if (from >= 0 && (!point || last)) {
      const part = points.slice(from, point ? n + 1 : n) as (readonly [number, number])[];
      text += `${curve(part)}L${part.at(-1)![0].toFixed(1)} ${floor}L${part[0]![0].toFixed(1)} ${floor}Z`;
      from = -1;
    }
  });
  return text;
}

function useWidth(): [{ current: HTMLDivElement | null }, number] {
  const box = useRef<HTMLDivElement>(null);
  const width = useSignal(0);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => (width.value = Math.floor(entry!.contentRect.width)));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  return [box, width.value];
}

export function Chart({ title, at, from, to, series, format = brief, empty }: Props): JSX.Element {
  const [box, measured] = useWidth();
  const hover = useSignal<number | null>(null);
  const width = Math.max(160, measured || 400);
  const known = series.flatMap((each) => each.values.filter((value): value is number => value !== null));
  const most = ceiling(Math.max(0, ...known));
  const floor = HEIGHT - FOOT;
  const x = (moment: number): number => LEFT + ((width - LEFT - RIGHT) * (moment - from)) / (to - from || 1);
  const y = (value: number): number => TOP + (floor - TOP) * (1 - value / most);
  const shown = hover.value ?? lastKnown(series);
  const point = (event: PointerEvent): void => {
    const edge = (event.currentTarget as Element).getBoundingClientRect().left;
    hover.value = nearest(at, from + ((to - from) * (event.clientX - edge - LEFT)) / (width - LEFT - RIGHT));
  };
  const sayings = series.map((each) => `${each.words} ${text(each.values[shown], format)}`).join(", ");
  return (
    <figure class="chart">
      <figcaption>
        <h2>{title}</h2>
        <span class="legend">
          {series.map((each) => (
            <span key={each.words} class={`t-${each.tone} nowrap`}>
              <i class={each.dashed ? "dashed" : undefined} />
              {each.words} <b>{text(each.values[shown], format)}</b>
            </span>
          ))}
        </span>
        {hover.value !== null && <span class="small quiet">{timeOfDay(at[shown] ?? to, to - from < 7200)}</span>}
      </figcaption>
      <div ref={box}>
        <svg
          width={width}
          height={HEIGHT}
          role="img"
          aria-label={known.length ? `${title}: ${sayings}` : `${title}: no data`}
          onPointerMove={point}
          onPointerLeave={() => (hover.value = null)}
        >
          {[0, 0.5, 1].map((each) => (
            <g key={each}>
              <line class="grid" x1={LEFT} x2={width - RIGHT} y1={y(most * each)} y2={y(most * each)} />
              <text x={LEFT - 8} y={y(most * each) + 3.5} text-anchor="end">
                {format(most * each)}
              </text>
            </g>
          ))}
          {ticks(from, to).map(([moment, words]) => (
            <text key={moment} x={x(moment)} y={HEIGHT - 4} text-anchor="middle">
              {words}
            </text>
          ))}
          {!known.length && (
            <text x={(LEFT + width) / 2} y={TOP + (floor - TOP) / 4 + 4} text-anchor="middle">
              {empty ?? "No data in this span"}
            </text>
          )}
          {series.map((each) => {
            const points = at.map((moment, n) => {
              const value = each.values[n];
              return value === null || value === undefined || moment < from ? null : ([x(moment), y(value)] as const);
            });
            return (
              <g key={each.words} class={`t-${each.tone}`}>
                {each.area && <path class="area" d={area(points, floor)} />}
                <path class={each.dashed ? "curve dashed" : "curve"} d={curve(points)} />
                {hover.value !== null && points[shown] && (
                  <circle class="dot" cx={points[shown][0]} cy={points[shown][1]} r="3.5" />
                )}
              </g>
            );
          })}
          {hover.value !== null && at[shown] !== undefined && (
            <line class="hair" x1={x(at[shown])} x2={x(at[shown])} y1={TOP} y2={floor} />
          )}
        </svg>
      </div>
      {known.length > 0 && <AsTable title={title} at={at} series={series} format={format} />}
    </figure>
  );
}

function AsTable({
  title,
  at,
  series,
  format,
}: Pick<Props, "title" | "at" | "series"> & { format: (value: number) => string }): JSX.Element {
  const open = useSignal(false);
  return (
    <details onToggle={(event) => (open.value = event.currentTarget.open)}>
      <summary>Show as table</summary>
      {open.value && (
        <div class="values" tabIndex={0} role="region" aria-label={`${title}, values`}>
          <table>
            <caption class="hidden">{title}</caption>
            <thead>
              <tr>
                <th scope="col">time</th>
                {series.map((each) => (
                  <th key={each.words} scope="col" class="num">
                    {each.words}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {at.toReversed().map((moment_, back) => (
                <tr key={moment_}>
                  <th scope="row">{moment(moment_)}</th>
                  {series.map((each) => (
                    <td key={each.words} class="num">
                      {text(each.values[at.length - 1 - back], format)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  );
}

function text(value: number | null | undefined, format: (value: number) => string): string {
  return value === null || value === undefined ? "–" : format(value);
}

function lastKnown(series: readonly Series[]): number {
  return Math.max(-1, ...series.map((each) => each.values.findLastIndex((value) => value !== null)));
}

function nearest(at: readonly number[], wanted: number): number | null {
  let best = -1;
  at.forEach((each, n) => {
    if (best < 0 || Math.abs(each - wanted) < Math.abs(at[best]! - wanted)) best = n;
  });
  return best < 0 ? null : best;
}

const STEPS = [60, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800]; // s

/** Round times of the reader's zone, about five of them. */
function ticks(from: number, to: number): [number, string][] {
  const step = STEPS.find((each) => (to - from) / each <= 5.5) ?? 604_800;
  const shift = new Date(to * 1000).getTimezoneOffset() * 60;
  const ticks: [number, string][] = [];
  for (let tick = Math.ceil((from - shift) / step) * step + shift; tick <= to; tick += step) {
    if (tick - from < (to - from) * 0.03 || to - tick < (to - from) * 0.03) continue;
    ticks.push([tick, step >= 86_400 ? moment(tick, undefined, false).split(/,? \d\d:/)[0]! : timeOfDay(tick)]);
  }
  return ticks;
}

/** A small line without axes, for tables. Decoration next to a number that says the same. */
export function Spark({
  values,
  tone = "live",
  width = 96,
  height = 22,
}: {
  values: readonly number[];
  tone?: Tone;
  width?: number;
  height?: number;
}): JSX.Element {
  const most = Math.max(...values, 1e-9);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, n) => [n * step, 1.5 + (height - 3) * (1 - value / most)] as const);
  return (
    <svg class={`spark t-${tone}`} width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
      {values.some((value) => value > 0) ? (
        <>
          <path class="area" d={area(points, height)} />
          <path d={curve(points)} />
        </>
      ) : (
        <line class="base" x1="0" x2={width} y1={height - 1.5} y2={height - 1.5} />
      )}
    </svg>
  );
}

/** Counts per span of time as columns. */
export function Columns({
  values,
  tone = "bad",
  width = 96,
  height = 22,
}: {
  values: readonly number[];
  tone?: Tone;
  width?: number;
  height?: number;
}): JSX.Element {
  const most = Math.max(...values, 1);
  const step = width / Math.max(1, values.length);
  return (
    <svg class={`spark t-${tone}`} width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
      <line class="base" x1="0" x2={width} y1={height - 0.5} y2={height - 0.5} />
      {values.map((value, n) => {
        const tall = value ? Math.max(1.5, (height - 2) * (value / most)) : 0;
        return <rect key={n} x={n * step} y={height - 1 - tall} width={Math.max(1, step - 1)} height={tall} />;
      })}
    </svg>
  );
}

/** How much of something is in use; the words next to it say the same. */
export function Bar({ share, tone = "live" }: { share: number; tone?: Tone }): JSX.Element {
  return <Parts parts={[[tone, share]]} />;
}

/** Shares of a whole side by side, each at least 2 % wide if it is not empty. */
export function Parts({ parts }: { parts: readonly (readonly [tone: Tone, share: number])[] }): JSX.Element {
  let filled = 0;
  return (
    <svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
      <rect width="100" height="6" />
      {parts.map(([tone, share]) => {
        const width = Math.min(100 - filled, share > 0 ? Math.max(2, share * 100) : 0);
        filled += width;
        return <rect key={tone} class={`use t-${tone}`} x={filled - width} width={width} height="6" />;
      })}
    </svg>
  );
}
