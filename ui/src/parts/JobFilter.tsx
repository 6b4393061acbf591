/** The filter of a list of jobs. It acts when a field is left or Enter is pressed, because each look has a cost. */
import type { JSX } from "preact";
import type { Task } from "../api";
import { Icon } from "../design/Icon";
import { Button } from "../design/Button";
import { present } from "../lib/clock";
import { useLoad } from "../lib/load";
import { overview } from "../lib/live";
import { moment } from "../lib/format";
import { setQuery } from "../lib/route";

export const FILTERS = ["q", "queue", "task", "label", "since", "before", "workflow", "parent"] as const;

const SPANS: readonly (readonly [seconds: number, words: string])[] = [
  [900, "last 15 minutes"],
  [3_600, "last hour"],
  [86_400, "last 24 hours"],
  [604_800, "last 7 days"],
];

/** A new filter begins at the first page. */
function set(name: string, value: string): void {
  setQuery({ [name]: value.trim(), cursor: "" });
}

export function JobFilter({ query }: { query: URLSearchParams }): JSX.Element {
  const tasks = useLoad<{ tasks: Task[] }>("tasks");
  const any = FILTERS.some((name) => query.get(name));
  return (
    <form class="filter" role="search" data-filter onSubmit={(event) => event.preventDefault()}>
      <label class="search">
        <span class="hidden">Id or text</span>
        <Icon name="search" />
        <input
          class="input"
          type="search"
          placeholder="Id, or text in task, arguments, error, labels"
          key={`q${query.get("q") ?? ""}`}
          defaultValue={query.get("q") ?? ""}
          spellcheck={false}
          autocomplete="off"
          onChange={(event) => set("q", event.currentTarget.value)}
        />
      </label>
      <Small name="queue" query={query} list={overview.value?.queues.map((each) => each.name)} />
      <Small name="task" query={query} list={tasks.data?.tasks.map((each) => each.name)} />
      <Small name="label" query={query} />
      <Created query={query} />
      {any && (
        <Button
          kind="plain"
          icon="close"
          onClick={() => setQuery({ ...Object.fromEntries(FILTERS.map((name) => [name, ""])), cursor: "" })}
        >
          Clear
        </Button>
      )}
    </form>
  );
}

function Small({
  name,
  query,
  list,
}: {
  name: string;
  query: URLSearchParams;
  list?: readonly string[] | undefined;
}): JSX.Element {
  const value = query.get(name) ?? "";
  return (
    <label class={value ? "small-field set" : "small-field"}>
      <span>{name}</span>
      <input
        class="input"
        key={value}
        defaultValue={value}
        list={`known-${name}`}
        spellcheck={false}
        autocomplete="off"
        placeholder="any"
        onChange={(event) => set(name, event.currentTarget.value)}
      />
      {list && (
        <datalist id={`known-${name}`}>
          {list.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
    </label>
  );
}

function Created({ query }: { query: URLSearchParams }): JSX.Element {
  const since = Number(query.get("since") || 0);
  const before = Number(query.get("before") || 0);
  const range = [since && `from ${moment(since, undefined, false)}`, before && `to ${moment(before, undefined, false)}`]
    .filter(Boolean)
    .join(" ");
  return (
    <label class={range ? "small-field set" : "small-field"}>
      <span>created</span>
      <select
        class="input"
        value={range ? "set" : ""}
        onChange={(event) => {
          const seconds = Number(event.currentTarget.value);
          setQuery({ since: seconds ? Math.floor(present() - seconds) : "", before: "", cursor: "" });
        }}
      >
        <option value="">any time</option>
        {range && <option value="set">{range}</option>}
        {SPANS.map(([seconds, text]) => (
          <option key={seconds} value={seconds}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}
