/** Keys and selection of a list of jobs: the row with the focus is the cursor. */
import { useComputed, useSignal, type ReadonlySignal } from "@preact/signals";
import { useKeys, type Binding } from "./keys";

export interface Selection {
  ids: ReadonlySignal<ReadonlySet<string>>;
  toggle: (id: string, on?: boolean) => void;
  all: (ids: readonly string[], on: boolean) => void;
  clear: () => void;
}

export function useSelection(): Selection {
  const ids = useSignal<ReadonlySet<string>>(new Set());
  const change = (act: (chosen: Set<string>) => void): void => {
    const next = new Set(ids.peek());
    act(next);
    ids.value = next;
  };
  return {
    ids: useComputed(() => ids.value),
    toggle: (id, on) => change((chosen) => ((on ?? !chosen.has(id)) ? chosen.add(id) : chosen.delete(id))),
    all: (list, on) => change((chosen) => list.forEach((id) => (on ? chosen.add(id) : chosen.delete(id)))),
    clear: () => (ids.value = new Set()),
  };
}

function rowsOf(): HTMLTableRowElement[] {
  return [...document.querySelectorAll<HTMLTableRowElement>("main tbody tr[data-row]")];
}

function focused(): HTMLTableRowElement | null {
  return document.activeElement?.closest<HTMLTableRowElement>("tr[data-row]") ?? null;
}

export function focusRow(by: number): void {
  const all = rowsOf();
  const index = all.indexOf(focused()!);
  const next = all[index < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, index + by))];
  // in this order, not in that of the document: Enter must open the row, not its checkbox
  const target = next?.querySelector<HTMLElement>("[data-main]") ?? next?.querySelector<HTMLElement>("a") ?? next?.querySelector<HTMLElement>("button, input");
  target?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

/** The key of the row with the focus. */
export function focusedRow(): string | null {
  return focused()?.dataset["row"] ?? null;
}

export function useListKeys(selection?: Selection, more: readonly Binding[] = []): void {
  const last = useSignal<string | null>(null);
  const mark = (range: boolean): void => {
    const id = focusedRow();
    if (!id || !selection) return;
    const all = rowsOf().map((row) => row.dataset["row"]!);
    const [from, to] = [all.indexOf(last.peek() ?? id), all.indexOf(id)].sort((a, b) => a - b) as [number, number];
    if (range && from >= 0) selection.all(all.slice(from, to + 1), true);
    else selection.toggle(id);
    last.value = id;
  };
  const select: Binding[] = selection
    ? [
        { keys: "x", words: "Select the row", group: "List", run: () => mark(false) },
        { keys: "X", words: "Select from the last selected row to this one", group: "List", run: () => mark(true) },
      ]
    : [];
  useKeys([
    { keys: "j", words: "Next row", group: "List", run: () => focusRow(1) },
    { keys: "k", words: "Row before", group: "List", run: () => focusRow(-1) },
    ...select,
    ...more,
  ]);
}
