import { goTo, useKeys } from "../lib/keys";
import { pause } from "../lib/live";
import { go, route, segments } from "../lib/route";
import { switchTheme } from "../lib/settings";
import { openHelp, openPalette } from "../parts/open";

/** The keys that act on every page. */
export function useShellKeys(): void {
  useKeys([
    goTo("o", "Overview", "."),
    goTo("j", "Jobs", "jobs"),
    goTo("f", "Failures", "failures"),
    goTo("d", "Dead letters, on the page of failures", "failures"),
    goTo("w", "Workflows", "workflows"),
    goTo("s", "Schedules", "schedules"),
    goTo("q", "Queues", "queues"),
    goTo("l", "Limits", "limits"),
    goTo("k", "Workers", "workers"),
    goTo("h", "Health", "health"),
    goTo("a", "Activity", "activity"),
    { keys: "Ctrl+K", words: "Go to a page, queue, task, schedule or job", group: "Page", run: openPalette },
    { keys: "/", words: "Filter or search", group: "Page", run: focusFilter },
    { keys: "u", words: "Up: from one thing to its list", group: "Page", run: up },
    { keys: "p", words: "Pause or resume the live figures", group: "Page", run: () => pause() },
    { keys: "t", words: "Switch between light and dark", group: "Page", run: switchTheme },
    { keys: "?", words: "Show these keys", group: "Page", run: openHelp },
  ]);
}

function focusFilter(): void {
  const field = document.querySelector<HTMLInputElement>("[data-filter] input, input[data-filter]");
  if (field) {
    field.focus();
    field.select();
  } else openPalette();
}

function up(): void {
  const parts = segments(route.value.path);
  if (parts.length) go(parts.length > 1 ? parts.slice(0, -1).map(encodeURIComponent).join("/") : ".");
}
