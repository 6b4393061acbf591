/** The address is the state of the page, so a link shows another reader the same. */
import { signal } from "@preact/signals";
import type { Params } from "./http";
import { part, withQuery } from "./http";

const base = new URL(".", document.baseURI);

export interface Route {
  path: string;
  query: URLSearchParams;
  /** Grows with each change of the path that the reader made: the page then moves the focus to its heading. */
  visit: number;
}

let visits = 0;

function read(): Route {
  const inside = location.pathname.startsWith(base.pathname) ? location.pathname.slice(base.pathname.length) : "";
  return { path: inside.replace(/\/+$/, ""), query: new URLSearchParams(location.search), visit: visits };
}

export const route = signal<Route>(read());

/** Decoded segments of the path: "queues/a%2Fb" -> ["queues", "a/b"]. */
export function segments(path: string): string[] {
  return path
    .split("/")
    .filter(Boolean)
    .map((each) => {
      try {
        return decodeURIComponent(each).trim();
      } catch {
        return each;
      }
    });
}

/** The address of a page of the dashboard, relative to its base. */
export function href(parts: string[], params: Params = {}): string {
  return withQuery(parts.map(part).join("/") || ".", params);
}

export function go(to: string, how: { replace?: boolean } = {}): void {
  const url = new URL(to, base);
  if (url.origin !== base.origin || !url.pathname.startsWith(base.pathname)) return;
  if (how.replace) {
    history.replaceState(history.state, "", url);
    route.value = read();
    return;
  }
  history.replaceState({ top: scrollY }, "");
  if (url.pathname !== location.pathname) visits += 1;
  history.pushState(null, "", url);
  route.value = read();
  scrollTo(0, 0);
}

/** Change parts of the query in place. A new filter begins at the first page. */
export function setQuery(changes: Params, how: { replace?: boolean } = { replace: true }): void {
  const params: Params = { ...Object.fromEntries(route.value.query), ...changes };
  go(withQuery(route.value.path || ".", params), how);
}

history.scrollRestoration = "manual";

addEventListener("popstate", (event) => {
  visits += 1;
  route.value = read();
  const top = Number((event.state as { top?: number } | null)?.top ?? 0);
  requestAnimationFrame(() => requestAnimationFrame(() => scrollTo(0, top)));
});

document.addEventListener("click", (event) => {
  const link = (event.target as Element).closest?.("a[href]");
  if (
    !link ||
    event.defaultPrevented ||
    event.button ||
    event.metaKey ||
    event.ctrlKey ||
    event.shiftKey ||
    event.altKey
  )
    return;
  const to = link.getAttribute("href") ?? "";
  if (link.hasAttribute("download") || link.getAttribute("target")) return;
  if (to.startsWith("#")) {
    event.preventDefault(); // with <base>, such a link would leave the page
    document.getElementById(to.slice(1))?.focus();
    return;
  }
  const url = new URL(to, base);
  if (url.origin !== base.origin || !url.pathname.startsWith(base.pathname)) return;
  event.preventDefault();
  go(to);
});
