/** Numbers, durations and times as text. */

/** The reader's locale, if `Intl` knows it: under LANG=C, Chromium reports names that make `Intl` throw. */
function goodLocale(): string {
  for (const locale of [...(navigator.languages ?? []), navigator.language]) {
    try {
      if (Intl.DateTimeFormat.supportedLocalesOf(locale).length) return locale;
    } catch {
      continue;
    }
  }
  return "en-GB";
}

const locale = goodLocale();
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 }); // the sentences around numbers are English

export function zone(): string {
  return new Intl.DateTimeFormat("en").resolvedOptions().timeZone || "UTC";
}

export function count(value: number, capped = false): string {
  return whole.format(value) + (capped ? "+" : "");
}

export function plural(value: number, word: string, capped = false): string {
  return `${count(value, capped)} ${value === 1 && !capped ? word : many(word)}`;
}

function many(word: string): string {
  return /[^aeou]y$/.test(word) ? `${word.slice(0, -1)}ies` : /(s|ch)$/.test(word) ? `${word}es` : `${word}s`;
}

/** Three significant digits at most: 12.3, 0.45, 1,240. */
export function brief(value: number): string {
  if (value === 0) return "0";
  if (Math.abs(value) >= 100) return whole.format(value);
  return String(Number(value.toPrecision(Math.abs(value) >= 10 ? 3 : 2)));
}

/** Large numbers where room is short: 1.2 k, 3.4 M. */
export function compact(value: number): string {
  if (value >= 1e6) return `${brief(value / 1e6)} M`;
  return value >= 1e4 ? `${brief(value / 1e3)} k` : brief(value);
}

const PARTS: [number, string][] = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
  [1, "s"],
];

/** 0.00042 -> "420 µs", 12.34 -> "12.3 s", 4000 -> "1 h 6 min". */
export function duration(seconds: number): string {
  const value = Math.max(0, seconds);
  if (value === 0) return "0 s";
  if (value < 0.000_999_5) return `${Math.max(1, Math.round(value * 1e6))} µs`;
  if (value < 0.9995) return `${brief(value * 1e3)} ms`;
  if (value < 59.95) return `${brief(value)} s`;
  const rounded = Math.round(value);
  const index = PARTS.findIndex(([size]) => rounded >= size);
  const [size, unit] = PARTS[index]!;
  const [below, lower] = PARTS[index + 1]!;
  const rest = Math.floor((rounded % size) / below);
  return rest && rounded < size * 10
    ? `${Math.floor(rounded / size)} ${unit} ${rest} ${lower}`
    : `${Math.floor(rounded / size)} ${unit}`;
}

/** One unit only, for columns: "4 min". */
export function span(seconds: number): string {
  const value = Math.max(0, seconds);
  if (value < 60) return value < 1 ? duration(value) : `${Math.floor(value)} s`;
  const [size, unit] = PARTS.find(([each]) => value >= each)!;
  return `${Math.floor(value / size)} ${unit}`;
}

export function relative(at: number, present: number): string {
  const gap = at - present;
  if (Math.abs(gap) < 1) return "now";
  return gap > 0 ? `in ${span(gap)}` : `${span(-gap)} ago`;
}

const formats = new Map<string, Intl.DateTimeFormat>();

function formatted(at: number, options: Intl.DateTimeFormatOptions): string {
  const key = JSON.stringify(options);
  let format = formats.get(key);
  if (!format) {
    try {
      format = new Intl.DateTimeFormat(locale, options);
    } catch {
      format = new Intl.DateTimeFormat("en-GB", { ...options, timeZone: "UTC" }); // a zone this browser does not know
    }
    formats.set(key, format);
  }
  const date = new Date(at * 1000);
  return Number.isNaN(date.getTime()) ? "–" : format.format(date);
}

const CLOCK: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const DAY: Intl.DateTimeFormatOptions = { day: "numeric", month: "short" };

export function timeOfDay(at: number, seconds = false): string {
  return formatted(at, seconds ? { ...CLOCK, second: "2-digit" } : CLOCK);
}

/** A moment in the reader's zone or in `timeZone`; with the year where it is another one. */
export function moment(at: number, timeZone?: string, seconds = true): string {
  const sameYear = new Date(at * 1000).getFullYear() === new Date().getFullYear();
  const options: Intl.DateTimeFormatOptions = { ...DAY, ...CLOCK };
  if (seconds) options.second = "2-digit";
  if (!sameYear) options.year = "numeric";
  if (timeZone) options.timeZone = timeZone;
  return formatted(at, options);
}

export function weekday(at: number, timeZone: string): string {
  return formatted(at, { weekday: "short", timeZone });
}

/** ISO 8601 in UTC with milliseconds. */
export function iso(at: number): string {
  const date = new Date(at * 1000);
  return Number.isNaN(date.getTime()) ? "–" : date.toISOString().replace("T", " ").replace("Z", " UTC");
}

/** "a.b.c.send_mail" -> "send_mail", for graphs. */
export function shortName(task: string): string {
  return task.slice(task.lastIndexOf(".") + 1) || task;
}

export function shortId(id: string): string {
  return id.length > 13 ? `${id.slice(0, 8)}…${id.slice(-4)}` : id;
}

/** The error's line that names its type: the first one where a traceback follows, otherwise the last. */
export function errorLine(error: string): string {
  const lines = error.trim().split("\n");
  return (lines[1]?.startsWith("Traceback") ? lines[0] : lines.at(-1)) ?? "";
}

/** The arguments of a call on one line, as Python would write them; at most `most` characters. */
export function callText(args: unknown[], kwargs: Record<string, unknown>, most = 160): string {
  const parts: string[] = [];
  let length = 0;
  for (const [name, value] of [...args.map((each) => ["", each] as const), ...Object.entries(kwargs)]) {
    const text = name ? `${name}=${short(value, most - length)}` : short(value, most - length);
    parts.push(text);
    length += text.length + 2;
    if (length > most) break;
  }
  const text = parts.join(", ");
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function short(value: unknown, most: number): string {
  if (typeof value === "string")
    return JSON.stringify(value.length > most + 2 ? value.slice(0, Math.max(0, most + 2)) : value);
  if (Array.isArray(value)) return value.length > 8 ? `[… ${value.length}]` : JSON.stringify(value);
  return JSON.stringify(value) ?? "null";
}
