import type { JSX } from "preact";

/** A sentence of the server, in which commands and names stand between backticks. */
export function Prose({ text }: { text: string }): JSX.Element {
  return <>{text.split("`").map((part, n) => (n % 2 ? <code key={n}>{part}</code> : part))}</>;
}
