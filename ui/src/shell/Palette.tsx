/** Ctrl+K: go to a page, queue, task, schedule, worker or job by typing a part of its name. */
import { useComputed, useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Schedule, Task } from "../api";
import { closeDialog, Dialog } from "../design/Dialog";
import { useLoad } from "../lib/load";
import { overview, pause, paused } from "../lib/live";
import { go, href } from "../lib/route";
import { canEnqueue, servesAll } from "../lib/session";
import { switchTheme } from "../lib/settings";
import { PLACES } from "./places";

interface Goal {
  kind: string;
  words: string;
  run: () => void;
}

const MOST = 12; // rows shown
const ID = /^[A-Za-z0-9._:@-]{8,255}$/;

function leads(kind: string, words: string, to: string): Goal {
  return { kind, words, run: () => go(to) };
}

function pages(): Goal[] {
  return PLACES.flat().map((each) => leads("page", each.words, each.to));
}

function acts(enqueue: () => void): Goal[] {
  const goals: Goal[] = [
    { kind: "act", words: "Switch between light and dark", run: switchTheme },
    { kind: "act", words: paused.value ? "Resume live figures" : "Pause live figures", run: () => pause() },
  ];
  if (canEnqueue.value) goals.unshift({ kind: "act", words: "Enqueue a job", run: enqueue });
  return goals;
}

/** Every word of the query must occur; an earlier place is better, and a start of the name is best. */
export function rank(text: string, query: string): number {
  const low = text.toLowerCase();
  let sum = 0;
  for (const word of query.toLowerCase().split(/\s+/).filter(Boolean)) {
    const place = low.indexOf(word);
    if (place < 0) return Infinity;
    sum += place === 0 ? -5 : /[^a-z0-9]/.test(low[place - 1]!) ? place / 10 : place;
  }
  return sum + low.length / 100;
}

/** `enqueue` opens the dialog that enqueues a job. */
export function Palette({ enqueue }: { enqueue: () => void }): JSX.Element {
  const query = useSignal("");
  const marked = useSignal(0);
  const list = useRef<HTMLUListElement>(null);
  const tasks = useLoad<{ tasks: Task[] }>("tasks");
  const schedules = useLoad<{ schedules: Schedule[] }>(servesAll.value ? "schedules" : null);
  const goals: Goal[] = [
    ...pages(),
    ...acts(enqueue),
    ...(overview.value?.queues ?? []).map((each) => leads("queue", each.name, href(["queues", each.name]))),
    ...(tasks.data?.tasks ?? []).map((each) => leads("task", each.name, href(["jobs"], { task: each.name }))),
    ...(schedules.data?.schedules ?? []).map((each) => leads("schedule", each.name, href(["schedules", each.name]))),
    ...(overview.value?.workers ?? []).map((each) => leads("worker", each.worker, href(["workers", each.worker]))),
  ];
  const wanted = query.value.trim();
  const matches = goals
    .map((goal) => [rank(`${goal.words} ${goal.kind}`, wanted), goal] as const)
    .filter(([score]) => score < Infinity)
    .sort(([a], [b]) => a - b)
    .slice(0, MOST)
    .map(([, goal]) => goal);
  if (ID.test(wanted)) matches.push(leads("job", wanted, href(["jobs", wanted])));
  if (wanted) matches.push(leads("search", `Jobs with “${wanted}”`, href(["jobs"], { q: wanted })));
  const active = useComputed(() => marked.value);
  const chosen = Math.min(active.value, matches.length - 1);
  useEffect(() => {
    list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }, [chosen]);
  const take = (goal: Goal | undefined): void => {
    if (!goal) return;
    closeDialog();
    goal.run();
  };
  const press = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step) {
      event.preventDefault();
      marked.value = (chosen + step + matches.length) % matches.length;
    } else if (event.key === "Enter") {
      event.preventDefault();
      take(matches[chosen]);
    }
  };
  return (
    <Dialog title="Go to" class="palette">
      <input
        class="input"
        data-first
        role="combobox"
        aria-expanded="true"
        aria-controls="goals"
        aria-activedescendant={matches.length ? `goal-${chosen}` : undefined}
        aria-label="Page, queue, task, schedule, worker or job id"
        placeholder="Page, queue, task, schedule, worker or job id"
        autocomplete="off"
        spellcheck={false}
        value={query.value}
        onInput={(event) => {
          query.value = event.currentTarget.value;
          marked.value = 0;
        }}
        onKeyDown={press}
      />
      <ul role="listbox" id="goals" aria-label="Results" ref={list}>
        {matches.map((goal, n) => (
          <li
            key={`${goal.kind} ${goal.words}`}
            id={`goal-${n}`}
            role="option"
            aria-selected={n === chosen}
            onPointerMove={() => (marked.value = n)}
            onClick={() => take(goal)}
          >
            <span class="clip">{goal.words}</span>
            <span class="small">{goal.kind}</span>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
