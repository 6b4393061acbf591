/** Follows one job by its event stream until it ends. Where no stream comes through, its page reads it again. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Job } from "../api";
import { part, urlOf } from "../lib/http";
import { useLoad, type Load } from "../lib/load";
import { link, paused } from "../lib/live";
import { isFinal } from "../lib/status";

const POLL = 5; // s between two reads without a stream

export function useFollowedJob(id: string): Load<Job> {
  const load = useLoad<Job>(`jobs/${part(id)}`, link.value === "live" ? 0 : POLL);
  const pushed = useSignal<Job | null>(null);
  const newest = pushed.value && (!load.data || pushed.value.version >= load.data.version) ? pushed.value : load.data;
  const open = newest !== null && newest.id === id && !isFinal(newest.state);
  useEffect(() => {
    pushed.value = null;
  }, [id, load.data]);
  useEffect(() => {
    if (!open || paused.value || document.hidden) return undefined;
    const source = new EventSource(urlOf(`jobs/${part(id)}/events`));
    let failures = 0;
    const take = (event: Event): void => {
      failures = 0;
      pushed.value = JSON.parse((event as MessageEvent<string>).data) as Job;
    };
    source.addEventListener("changed", take);
    source.addEventListener("ended", (event) => {
      take(event);
      source.close();
    });
    source.onerror = () => {
      failures += 1;
      if (failures > 2) source.close();
    };
    const hide = (): void => {
      if (document.hidden) source.close();
      else load.reload();
    };
    document.addEventListener("visibilitychange", hide);
    return () => {
      document.removeEventListener("visibilitychange", hide);
      source.close();
    };
  }, [id, open, paused.value]);
  return { ...load, data: newest };
}
