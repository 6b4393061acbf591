/** Signs of states (12 px) and of pages (16 px), as paths: no font decides how they look. */
import type { JSX } from "preact";

const STATE_PATHS: Record<string, string> = {
  queued: "M3 3.5h6M3 6h6M3 8.5h3.5",
  ready: "M3 3.5h6M3 6h6M3 8.5h3.5",
  running: "M4 2.6v6.8L9.5 6z",
  scheduled: "M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M6 3.5V6l1.8 1.2",
  deferred: "M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M6 3.5V6l1.8 1.2",
  blocked: "M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M3.8 6h4.4",
  paused: "M4 2.5v7M8 2.5v7",
  suspect: "M4 2.5v7M8 2.5v7",
  waiting: "M3.3 1.5h5.4M3.3 10.5h5.4M4 1.5c0 3 4 3.2 4 4.5S4 7.5 4 10.5M8 1.5c0 3-4 3.2-4 4.5s4 1.5 4 4.5",
  succeeded: "M2 6.4 4.7 9 10 3.2",
  ok: "M2 6.4 4.7 9 10 3.2",
  done: "M2 6.4 4.7 9 10 3.2",
  failed: "m3 3 6 6M9 3 3 9",
  expired: "m3 3 6 6M9 3 3 9",
  error: "m3 3 6 6M9 3 3 9",
  cancelled: "M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M3 9l6-6",
  stopped: "M3.5 3.5h5v5h-5z",
  retrying: "M9.8 4.5A4.2 4.2 0 1 0 10 7.2M10 2v2.7H7.3",
  lost: "M6 1.7 10.8 10H1.2zM6 4.8v2.4M6 8.5v.2",
  warning: "M6 1.7 10.8 10H1.2zM6 4.8v2.4M6 8.5v.2",
  info: "M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M6 5.6v2.6M6 3.7v.2",
};

export function Sign({ of }: { of: string }): JSX.Element {
  return (
    <svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
      <path
        d={STATE_PATHS[of] ?? STATE_PATHS["info"]!}
        fill={of === "running" ? "currentColor" : "none"}
        stroke="currentColor"
        stroke-width="1.5"
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}

const PATHS = {
  overview: "M2.5 9.5 6 6l2.5 2.5 5-5M2.5 13.5h11",
  queues: "M2.5 4h11M2.5 8h11M2.5 12h7",
  limits: "M2.5 11.5a5.5 5.5 0 1 1 11 0M8 11.5 10.5 7",
  jobs: "M5.5 3.5h8M5.5 8h8M5.5 12.5h8M2.5 3.5h.1M2.5 8h.1M2.5 12.5h.1",
  workflows: "M2.5 2.5h4v4h-4zM9.5 9.5h4v4h-4zM4.5 6.5v5h5",
  schedules: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11M8 5v3l2 1.5",
  approvals: "M2.5 3.5h11v9h-11zM5 8.2l2 2 4-4",
  failures: "M8 2.5 14 13H2zM8 6.5v3M8 11.2v.1",
  workers: "M2.5 3.5h11v4h-11zM2.5 9.5h11v4h-11zM5 5.5h.1M5 11.5h.1",
  health: "M2 8.5h3l1.5-4 3 7 1.5-3h3",
  activity: "M3 3v10h10M6 10V8M9 10V5M12 10V7",
  sun: "M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6M8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M3.4 12.6l.7-.7M11.9 4.1l.7-.7",
  moon: "M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8",
  gear: "M8 5.8a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.4M8 1.8v1.7M8 12.5v1.7M1.8 8h1.7M12.5 8h1.7M3.6 3.6l1.2 1.2M11.2 11.2l1.2 1.2M3.6 12.4l1.2-1.2M11.2 4.8l1.2-1.2",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M10.3 10.3l3.2 3.2",
  close: "m4 4 8 8M12 4l-8 8",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  plus: "M8 3v10M3 8h10",
  copy: "M5.5 5.5h8v8h-8zM3 10.5h-.5v-8h8V3",
  more: "M3.5 8h.1M8 8h.1M12.5 8h.1",
  left: "M10 3.5 5.5 8l4.5 4.5",
  right: "M6 3.5 10.5 8 6 12.5",
  exit: "M6.5 2.5h-4v11h4M6 8h7.5M10.5 5l3 3-3 3",
  keyboard: "M1.5 4h13v8h-13zM4 6.5h.1M6.7 6.5h.1M9.3 6.5h.1M12 6.5h.1M5 9.5h6",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }): JSX.Element {
  return (
    <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      <path
        d={PATHS[name]}
        fill="none"
        stroke="currentColor"
        stroke-width="1.4"
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}

/** Three warp threads and the weft between them. */
export function Logo(): JSX.Element {
  return (
    <svg viewBox="0 0 20 20" width="20" height="20" aria-hidden="true" class="logo">
      <path
        d="M5 2v16M10 2v4.5M10 9.5V18M15 2v16"
        fill="none"
        stroke="currentColor"
        stroke-width="2"
        stroke-linecap="round"
      />
      <path
        d="M2 8h1.2M6.8 8h6.4M16.8 8H18M2 13h6.2M11.8 13H18"
        class="weft"
        fill="none"
        stroke-width="2"
        stroke-linecap="round"
      />
    </svg>
  );
}
