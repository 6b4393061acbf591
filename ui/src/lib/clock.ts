/** The present time of the server, so that ages are right on a machine whose clock is wrong. */
import { signal } from "@preact/signals";

let skew = 0; // s that the server is ahead of this machine

export const now = signal(Date.now() / 1000);

/** Take the time from an answer that came `within` so many seconds: it is up to that old. */
export function setServerTime(at: number, within: number): void {
  const ahead = at - Date.now() / 1000;
  if (ahead > skew + 1 || ahead + within < skew - 1) skew = ahead;
  tick();
}

export function present(): number {
  return Date.now() / 1000 + skew;
}

function tick(): void {
  if (!document.hidden) now.value = present();
}

setInterval(tick, 1000);
document.addEventListener("visibilitychange", tick);
