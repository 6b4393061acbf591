/** Short messages at the corner: the result of an act, with "Undo" where the act has an inverse. */
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { announce } from "../lib/announce";
import { wordsOf } from "../lib/http";
import type { Tone } from "../lib/status";

const SHOWN = 8_000; // ms; errors stay until they are dismissed

interface Toast {
  id: number;
  text: string;
  tone: Tone;
  action?: { words: string; run: () => unknown } | undefined;
}

const toasts = signal<readonly Toast[]>([]);
let next = 1;

export function toast(text: string, more: { tone?: Tone; action?: Toast["action"] } = {}): void {
  announce(text);
  toasts.value = [...toasts.value.slice(-3), { id: next++, text, tone: more.tone ?? "good", action: more.action }];
}

export function failed(error: unknown): void {
  toast(wordsOf(error), { tone: "bad" });
}

function drop(id: number): void {
  toasts.value = toasts.value.filter((each) => each.id !== id);
}

function One({ each }: { each: Toast }): JSX.Element {
  useEffect(() => {
    if (each.tone === "bad") return undefined;
    let timer = setTimeout(() => drop(each.id), SHOWN);
    const box = document.getElementById(`toast-${each.id}`)!;
    const hold = (): void => clearTimeout(timer);
    const go = (): void => {
      clearTimeout(timer);
      timer = setTimeout(() => drop(each.id), SHOWN);
    };
    for (const name of ["pointerenter", "focusin"]) box.addEventListener(name, hold);
    for (const name of ["pointerleave", "focusout"]) box.addEventListener(name, go);
    return hold;
  }, []);
  const { action } = each;
  return (
    <div class={`toast t-${each.tone}`} id={`toast-${each.id}`}>
      <span>{each.text}</span>
      {action && (
        <button
          type="button"
          class="button slim"
          onClick={() => {
            drop(each.id);
            void Promise.resolve(action.run()).catch(failed);
          }}
        >
          {action.words}
        </button>
      )}
      <button type="button" class="button plain slim" aria-label="Dismiss" onClick={() => drop(each.id)}>
        ✕
      </button>
    </div>
  );
}

export function Toasts(): JSX.Element {
  return (
    <section class="toasts" aria-label="Messages">
      {toasts.value.map((each) => (
        <One key={each.id} each={each} />
      ))}
    </section>
  );
}
