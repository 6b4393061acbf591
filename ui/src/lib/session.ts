/** The reader of the page: the answer of `/v1/me`, and whether a sign-in is needed. */
import { computed, signal } from "@preact/signals";
import type { Me, Scope } from "../api";
import { setServerTime } from "./clock";
import { get, Problem, send, whenSignedOut, wordsOf } from "./http";

export type Access = "loading" | "in" | "out" | "expired" | "unreachable";

export const me = signal<Me | null>(null);
export const access = signal<Access>("loading");
export const trouble = signal("");
/** Grows when everything on the page should be read again: after a sign-in, and after an act. */
export const epoch = signal(0);

/** The right to a scope. It decides what the page offers; the server refuses the rest all the same. */
export function may(scope: Scope): boolean {
  return me.value?.scopes.includes(scope) ?? false;
}

export const canOperate = computed(() => may("operate"));
export const canEnqueue = computed(() => may("enqueue"));
/** Limits, schedules and workflows belong to all queues: a token bound to some of them may not change them. */
export const servesAll = computed(() => me.value?.queues.length === 0);

whenSignedOut(() => {
  access.value = me.value ? "expired" : "out";
});

export function reloadAll(): void {
  epoch.value += 1;
}

export async function enter(): Promise<void> {
  const key = oneTimeKey();
  if (key) await send("POST", "session", { token: key }).catch(() => undefined);
  await readMe();
}

export async function readMe(): Promise<void> {
  try {
    const began = Date.now();
    const answer = await get<Me>("me");
    setServerTime(answer.now, (Date.now() - began) / 1000);
    me.value = answer;
    access.value = "in";
  } catch (error) {
    if (error instanceof Problem && error.status === 401) return; // whenSignedOut has acted
    trouble.value = wordsOf(error);
    if (!me.value) access.value = "unreachable";
  }
}

/** Returns a sentence for the reader if the token was refused, otherwise null. */
export async function signIn(token: string): Promise<string | null> {
  try {
    await send("POST", "session", { token });
  } catch (error) {
    if (error instanceof Problem && error.status === 401)
      return "This token is not known. Check it for missing characters.";
    return wordsOf(error);
  }
  await readMe();
  reloadAll();
  return null;
}

export async function signOut(): Promise<void> {
  await send("DELETE", "session").catch(() => undefined);
  me.value = null;
  access.value = "out";
}

/** The key of a sign-in link, `#k=...`. It leaves the address at once, so that no history or screenshot keeps it. */
function oneTimeKey(): string | null {
  const key = new URLSearchParams(location.hash.slice(1)).get("k");
  if (key) history.replaceState(null, "", location.pathname + location.search);
  return key;
}
