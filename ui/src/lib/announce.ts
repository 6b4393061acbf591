/** One polite sentence for screen readers, at most one in 10 s for figures that change by themselves. */
import { signal } from "@preact/signals";

const PAUSE = 10_000; // ms

export const sentence = signal("");
let last = 0;

/** At once: the result of an act. */
export function announce(text: string): void {
  last = Date.now();
  sentence.value = text;
}

/** Dropped if another sentence was spoken within 10 s. */
export function announceLater(text: string): void {
  if (Date.now() - last >= PAUSE && text !== sentence.value) announce(text);
}
