/** Keys of the page. A component adds its own while it is shown; the help dialog lists those that act now. */
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { go } from "./route";
import { singleKeys } from "./settings";

export interface Binding {
  keys: string; // as `KeyboardEvent.key`; "g j" is a sequence
  words: string;
  group: "Go to" | "List" | "Page" | "Job";
  run: () => void;
}

const SEQUENCE = 1_200; // ms in which the second key must follow
export const bindings = signal<readonly Binding[]>([]);
let first = "";
let timer: ReturnType<typeof setTimeout> | undefined;

export function bind(added: readonly Binding[]): () => void {
  bindings.value = [...bindings.value, ...added];
  return () => {
    bindings.value = bindings.value.filter((each) => !added.includes(each));
  };
}

/** Bind while the component is shown, from the moment it is on the page. The functions may change with each render. */
export function useKeys(wanted: readonly Binding[]): void {
  const newest = useRef(wanted);
  newest.current = wanted;
  const names = wanted.map((each) => each.keys).join("|");
  useLayoutEffect(() => bind(wanted.map((each, at) => ({ ...each, run: () => newest.current[at]?.run() }))), [names]);
}

function isTyping(target: EventTarget | null): boolean {
  const element = target as HTMLElement | null;
  if (!element?.closest) return false;
  if (element.closest("select, textarea, [contenteditable]")) return true;
  const input = element.closest("input");
  return input !== null && !["checkbox", "radio", "button"].includes(input.type);
}

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.isComposing || event.altKey) return;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    find("Ctrl+K")?.run();
    return;
  }
  if (event.ctrlKey || event.metaKey || singleKeys.value === "off") return;
  if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
  const wanted = first ? `${first} ${event.key}` : event.key;
  clearTimeout(timer);
  first = "";
  const binding = find(wanted);
  if (binding) {
    event.preventDefault();
    binding.run();
  } else if (bindings.value.some((each) => each.keys.startsWith(`${event.key} `))) {
    first = event.key;
    timer = setTimeout(() => (first = ""), SEQUENCE);
  }
});

/** The newest binding wins, so a page can give a key its own meaning. */
function find(keys: string): Binding | undefined {
  return bindings.value.findLast((each) => each.keys === keys);
}

export function goTo(letter: string, words: string, to: string): Binding {
  return { keys: `g ${letter}`, words, group: "Go to", run: () => go(to) };
}
