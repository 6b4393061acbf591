/** Calls of the HTTP API, with its errors as `Problem`. Every address is relative to the mount that the server names. */
import type { Json, Problem as ProblemBody } from "../api";

const TIMEOUT = 30_000; // ms; the server ends a request earlier

const meta = document.querySelector<HTMLMetaElement>('meta[name="treadle-api"]');
export const apiRoot = new URL(meta?.content || "../v1/", document.baseURI);

/** A refusal of the server, or the reason why it could not be reached (status 0). */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly word: string,
    message: string,
    readonly details: Record<string, Json> = {},
  ) {
    super(message);
  }
}

/** Called at each 401, so that the page can offer to sign in again. */
let onSignedOut = (): void => {};
export function whenSignedOut(act: () => void): void {
  onSignedOut = act;
}

export type Params = Record<string, string | number | boolean | null | undefined>;

/** "jobs" and {state: "failed", q: ""} -> "jobs?state=failed". Empty values are left out. */
export function withQuery(path: string, params: Params): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) query.set(name, String(value));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** One segment of a path: names may contain any character. The server and `segments` remove a space in front, because
 * no URL has "." or ".." as a segment, in whatever encoding. */
export function part(name: string): string {
  return name === "." || name === ".." ? `%20${name}` : encodeURIComponent(name);
}

export function urlOf(path: string): string {
  return new URL(path, apiRoot).href;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return send<T>("GET", path, undefined, { signal });
}

export async function send<T = unknown>(
  method: "GET" | "POST" | "PUT" | "DELETE",
  path: string,
  body?: unknown,
  { signal, headers }: { signal?: AbortSignal | undefined; headers?: Record<string, string> } = {},
): Promise<T> {
  const limit = AbortSignal.timeout(TIMEOUT);
  const init: RequestInit = {
    method,
    headers: { Accept: "application/json", ...headers },
    credentials: "same-origin",
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
  };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { ...init.headers, "Content-Type": "application/json" };
  }
  let answer: Response;
  let text: string;
  try {
    answer = await fetch(urlOf(path), init);
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    const late = error instanceof DOMException && error.name === "TimeoutError";
    throw new Problem(
      0,
      "unreachable",
      late ? "The server did not answer within 30 s." : "The server cannot be reached.",
    );
  }
  const content = parsed(text);
  if (answer.ok) return content as T;
  if (answer.status === 401 && path !== "session") onSignedOut();
  throw refusal(answer.status, content);
}

function parsed(text: string): unknown {
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null; // a proxy's page instead of an answer: its status is reported
  }
}

function refusal(status: number, answer: unknown): Problem {
  if (typeof answer === "object" && answer !== null && "message" in answer) {
    const body = answer as ProblemBody;
    return new Problem(status, String(body.error), String(body.message), body.details ?? {});
  }
  return new Problem(status, "http", `The server answered with status ${status}.`);
}

export function wordsOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
