/** Settings of one browser. They stay in `localStorage`; the server stores nothing of them. */
import { effect, signal, type Signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
export type Times = "relative" | "local" | "utc";
export type Rows = "25" | "50" | "100" | "200";
export type Refresh = "live" | "15" | "60" | "off";
export type Keys = "on" | "off";

function kept<T extends string>(name: string, choices: readonly T[], fallback: T): Signal<T> {
  const key = `treadle.${name}`;
  const setting = signal<T>(fallback);
  try {
    const stored = localStorage.getItem(key) as T | null;
    if (stored !== null && choices.includes(stored)) setting.value = stored;
    effect(() => localStorage.setItem(key, setting.value));
  } catch {
    // storage is switched off: the setting lasts as long as the page
  }
  return setting;
}

export const theme = kept<Theme>("theme", ["system", "light", "dark"], "system");
export const times = kept<Times>("times", ["relative", "local", "utc"], "relative");
export const rows = kept<Rows>("rows", ["25", "50", "100", "200"], "50");
export const refresh = kept<Refresh>("refresh", ["live", "15", "60", "off"], "live");
export const singleKeys = kept<Keys>("keys", ["on", "off"], "on");

effect(() => {
  document.documentElement.dataset["theme"] = theme.value;
});

/** The theme that is shown now, also where the system decides. */
export function isDark(): boolean {
  return theme.value === "dark" || (theme.value === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
}

export function switchTheme(): void {
  theme.value = isDark() ? "light" : "dark";
}
