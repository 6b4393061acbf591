/** Reads an address of the API for a component, again from time to time, and keeps the last answers for "back". */
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { get, Problem } from "./http";
import { paused } from "./live";
import { access, epoch } from "./session";
import { refresh } from "./settings";

const KEPT = 40; // answers
const SHARE = 50; // a read is repeated after at least 50 times as long as it took: 2 % of the time of one core
const answers = new Map<string, unknown>();

export interface Load<T> {
  data: T | null;
  /** The address that gave the data: while another one is read, it is still the one before. */
  of: string | null;
  error: Problem | null;
  busy: boolean;
  reload: () => void;
}

interface Held<T> {
  path: string | null;
  of: string | null;
  data: T | null;
  error: Problem | null;
  busy: boolean;
}

function keep(path: string, answer: unknown): void {
  answers.delete(path);
  answers.set(path, answer);
  if (answers.size > KEPT) answers.delete(answers.keys().next().value!);
}

/** Seconds until the next look: `every` while the page is live, never faster than the reader asked, and never more than
 * 2 % of the time: the last look took `took` seconds. */
function pace(every: number, took: number): number {
  if (!every || refresh.value === "off") return 0;
  return Math.max(every, SHARE * took, refresh.value === "live" ? 0 : Number(refresh.value));
}

/**
 * path   relative to /v1; null: nothing to read
 * every  s between two reads while the page is visible and not paused, more if the answers are slow; 0: once
 *
 * A change of the query keeps the old data until the new arrives; a change of the path before "?" does not.
 */
export function useLoad<T>(path: string | null, every = 0): Load<T> {
  const held = useSignal<Held<T>>({ path: null, of: null, data: null, error: null, busy: false });
  const turn = useSignal(0);
  const stop = useRef<AbortController | null>(null);
  const round = epoch.value;

  useMemo(() => {
    const known = path === null ? null : ((answers.get(path) as T | undefined) ?? null);
    const before = held.peek();
    const same = path !== null && before.path?.split("?")[0] === path.split("?")[0];
    const data = known ?? (same ? before.data : null);
    held.value = { path, of: known ? path : before.of, data, error: null, busy: path !== null };
  }, [path]);

  useEffect(() => {
    if (path === null) return undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let over = false;
    let took = 0; // s
    const again = (): void => {
      const wait = pace(every, took);
      if (!over && wait) timer = setTimeout(look, wait * 1000);
    };
    const look = (): void => {
      if (document.hidden || paused.value || access.value !== "in") return again();
      void read();
    };
    const read = async (): Promise<void> => {
      stop.current?.abort();
      const own = (stop.current = new AbortController());
      const began = performance.now();
      try {
        const data = await get<T>(path, own.signal);
        keep(path, data);
        if (!over) held.value = { path, of: path, data, error: null, busy: false };
      } catch (error) {
        if (over || own.signal.aborted) return;
        const problem = error instanceof Problem ? error : new Problem(0, "unknown", String(error));
        if (problem.status === 404) answers.delete(path);
        held.value = {
          ...held.peek(),
          data: problem.status === 404 ? null : held.peek().data,
          error: problem,
          busy: false,
        };
      }
      took = (performance.now() - began) / 1000;
      again();
    };
    void read();
    return () => {
      over = true;
      clearTimeout(timer);
      stop.current?.abort();
    };
  }, [path, every, round, turn.value, refresh.value]);

  const { data, of, error, busy } = held.value;
  return { data, of, error, busy, reload: () => (turn.value += 1) };
}
