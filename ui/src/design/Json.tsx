/** JSON as a folding tree. Every value is a text node, whatever it contains. */
import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import type { Json as Value } from "../api";
import { plural } from "../lib/format";

const OPEN_DEPTH = 3; // levels that are open at first
const OPEN_ITEMS = 24; // a longer list or object is folded at first
const STEP = 100; // items shown at a time
const LONG = 600; // characters of a text shown at first

export function Json({ value }: { value: Value }): JSX.Element {
  return (
    <div class="json" tabIndex={0} role="group" aria-label="JSON">
      <Node value={value} depth={0} />
    </div>
  );
}

function Node({ name, value, depth }: { name?: string | undefined; value: Value; depth: number }): JSX.Element {
  const label = name !== undefined && <span class="name">{name}: </span>;
  if (typeof value !== "object" || value === null) {
    return (
      <>
        {label}
        <Leaf value={value} />
      </>
    );
  }
  const entries = Array.isArray(value) ? value.map((each, at) => [String(at), each] as const) : Object.entries(value);
  if (!entries.length) {
    return (
      <>
        {label}
        {Array.isArray(value) ? "[]" : "{}"}
      </>
    );
  }
  return <Branch label={label} entries={entries} list={Array.isArray(value)} depth={depth} />;
}

interface BranchProps {
  label: ComponentChildren;
  entries: (readonly [string, Value])[];
  list: boolean;
  depth: number;
}

function Branch({ label, entries, list, depth }: BranchProps): JSX.Element {
  const open = useSignal(depth === 0 || (depth < OPEN_DEPTH && entries.length <= OPEN_ITEMS));
  const most = useSignal(STEP);
  const rest = entries.length - most.value;
  return (
    <details open={open.value} onToggle={(event) => (open.value = event.currentTarget.open)}>
      <summary>
        {label}
        {list ? `[ ${plural(entries.length, "item")} ]` : `{ ${plural(entries.length, "key")} }`}
      </summary>
      {open.value && (
        <ul>
          {entries.slice(0, most.value).map(([name, value]) => (
            <li key={name}>
              <Node name={name} value={value} depth={depth + 1} />
            </li>
          ))}
          {rest > 0 && (
            <li>
              <button type="button" class="linklike" onClick={() => (most.value += STEP)}>
                Show {Math.min(rest, STEP)} of {rest} more
              </button>
            </li>
          )}
        </ul>
      )}
    </details>
  );
}

function Leaf({ value }: { value: null | boolean | number | string }): JSX.Element {
  const whole = useSignal(false);
  if (typeof value !== "string")
    return <span class={typeof value === "number" ? "number" : "word"}>{String(value)}</span>;
  const shown = whole.value || value.length <= LONG ? value : value.slice(0, LONG);
  return (
    <>
      <span class="string" dir="auto">
        {JSON.stringify(shown)}
      </span>
      {shown.length < value.length && (
        <button type="button" class="linklike" onClick={() => (whole.value = true)}>
          {" "}
          Show all {plural(value.length, "character")}
        </button>
      )}
    </>
  );
}
