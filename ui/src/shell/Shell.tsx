/** The frame of every page: navigation, the state of the link, the reader, and the place of the page. */
import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect } from "preact/hooks";
import { Button } from "../design/Button";
import { Dialogs } from "../design/Dialog";
import { Icon, Logo } from "../design/Icon";
import { Toasts } from "../design/toasts";
import { sentence } from "../lib/announce";
import { compact, span } from "../lib/format";
import { age, link, overview, pause, paused, type Link } from "../lib/live";
import { route, segments } from "../lib/route";
import { access, canEnqueue, me, signOut } from "../lib/session";
import { isDark, switchTheme, theme } from "../lib/settings";
import { openEnqueue, openHelp, openPalette, openSettings } from "../parts/open";
import { PLACES } from "./places";
import { Expired } from "./SignIn";
import { Tray } from "./Tray";
import { useShellKeys } from "./ShellKeys";

export function Shell({ children }: { children: ComponentChildren }): JSX.Element {
  const open = useSignal(false);
  useShellKeys();
  const path = route.value.path;
  useEffect(() => {
    open.value = false;
  }, [path]);
  return (
    <div class="shell">
      <a class="skip" href="#main">
        Skip to the page
      </a>
      <header class={open.value ? "rail open" : "rail"}>
        <div class="brand">
          <a href="." aria-label="Treadle, overview">
            <Logo />
            <b>Treadle</b>
          </a>
          <div class="narrow row push">
            <LinkState />
            <Button kind="plain" icon="search" label="Go to" onClick={openPalette} />
            <button
              type="button"
              class="button plain icon"
              aria-label="Menu"
              aria-expanded={open.value}
              aria-controls="nav"
              onClick={() => (open.value = !open.value)}
            >
              <Icon name={open.value ? "close" : "menu"} />
            </button>
          </div>
        </div>
        <div class="rail-body" id="nav">
          <div class="row quick">
            <button type="button" class="find" onClick={openPalette} aria-keyshortcuts="Control+K">
              <Icon name="search" />
              <span>Go to…</span>
              <kbd>Ctrl K</kbd>
            </button>
            {canEnqueue.value && <Button icon="plus" label="Enqueue a job" onClick={() => openEnqueue()} />}
          </div>
          <Places />
          <Foot />
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        {children}
      </main>
      <div class="hidden" role="status">
        {sentence}
      </div>
      <Tray />
      <Toasts />
      <Dialogs />
      {access.value === "expired" && <Expired />}
    </div>
  );
}

function Places(): JSX.Element {
  const here = segments(route.value.path)[0] ?? ".";
  const { failed, queued, capped } = { ...overview.value?.totals };
  const seen = overview.value;
  const warnings = seen?.health ?? seen?.notices.filter((each) => each.level !== "info").length;
  const counts: Record<string, [number | undefined, boolean, string]> = {
    jobs: [queued, capped?.includes("queued") ?? false, "queued"],
    failures: [failed, capped?.includes("failed") ?? false, "failed"],
    health: [warnings, false, "to look at"],
  };
  return (
    <nav aria-label="Pages">
      {PLACES.map((group, at) => (
        <ul key={at}>
          {group.map(({ to, words, icon, keys }) => {
            const [value, more, what] = counts[to] ?? [];
            return (
              <li key={to}>
                <a href={to} aria-current={here === to ? "page" : undefined} aria-keyshortcuts={keys}>
                  <Icon name={icon} />
                  {words}
                  {value ? (
                    <span class={to === "jobs" ? "n" : "n alert"}>
                      {compact(value)}
                      {more && "+"}
                      <span class="hidden"> {what}</span>
                    </span>
                  ) : null}
                </a>
              </li>
            );
          })}
        </ul>
      ))}
    </nav>
  );
}

const LINKS: Record<Link, [tone: string, words: string, title: string]> = {
  live: ["good", "Live", "The figures arrive as they change. Press p to pause."],
  connecting: ["warn", "Connecting", "The page connects to the event stream."],
  polling: ["good", "Polling", "No event stream came through, so the page reads the figures every 5 s."],
  paused: ["quiet", "Paused", "The page stands still. Press p to resume."],
  lost: ["bad", "No connection", "The server does not answer. The page tries again every 5 s."],
};

export function LinkState(): JSX.Element {
  const [tone, label, title] = LINKS[link.value];
  const old = age.value > 10 && overview.value;
  return (
    <button type="button" class={`link-state t-${tone}`} title={title} aria-keyshortcuts="p" onClick={() => pause()}>
      <svg viewBox="0 0 10 10" width="10" height="10" aria-hidden="true" class={link.value}>
        {paused.value ? (
          <path d="M2.5 1v8M7.5 1v8" stroke="currentColor" stroke-width="2" />
        ) : (
          <circle cx="5" cy="5" r="4" />
        )}
      </svg>
      {label}
      {old ? <span class="quiet">, {span(age.value)} old</span> : null}
    </button>
  );
}

function Foot(): JSX.Element {
  const caller = me.value;
  theme.value; // the icon follows it
  return (
    <div class="rail-foot">
      <div class="wide-only">
        <LinkState />
      </div>
      <div class="row who">
        <div class="clip">
          <b class="clip">{caller?.auth === "none" ? "No sign-in" : caller?.name}</b>
          <span class="quiet small clip" title={caller?.storage}>
            {caller?.scopes.includes("operate") ? "" : "read-only · "}
            {caller?.storage}
          </span>
        </div>
      </div>
      <div class="row">
        <Button
          kind="plain"
          icon={isDark() ? "sun" : "moon"}
          label={isDark() ? "Light theme" : "Dark theme"}
          keys="t"
          onClick={switchTheme}
        />
        <Button kind="plain" icon="gear" label="Settings" onClick={openSettings} />
        <Button kind="plain" icon="keyboard" label="Keyboard" keys="?" onClick={openHelp} />
        {caller?.auth === "session" && <Button kind="plain" icon="exit" label="Sign out" onClick={signOut} />}
        <span class="quiet small push">{caller?.version}</span>
      </div>
    </div>
  );
}
