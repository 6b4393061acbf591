/** The text of an error: the last line first, frames of libraries folded. */
import type { JSX } from "preact";
import { plural } from "../lib/format";

interface Block {
  kind: "text" | "own" | "library";
  lines: string[];
}

const FRAME = /^\s+File "(.+?)", line \d+/;
const LIBRARY = /site-packages|dist-packages|[/\\]lib[/\\]python3|<frozen |[/\\]treadle[/\\]/;

/** Neighbouring frames of one kind are one block. A first line that the last one repeats is left out. */
export function blocksOf(text: string): Block[] {
  const blocks: Block[] = [];
  let kind: Block["kind"] = "text";
  const lines = text.split("\n");
  if (lines.length > 1 && lines[0] === lines.at(-1)) lines.shift();
  for (const line of lines) {
    const frame = FRAME.exec(line);
    if (frame) kind = LIBRARY.test(frame[1]!) ? "library" : "own";
    else if (!/^\s/.test(line)) kind = "text";
    const last = blocks.at(-1);
    if (last?.kind === kind) last.lines.push(line);
    else blocks.push({ kind, lines: [line] });
  }
  return blocks.filter((each) => each.lines.some((line) => line.trim()));
}

export function Trace({ text }: { text: string }): JSX.Element {
  const blocks = blocksOf(text.trimEnd());
  const many = blocks.length > 1;
  return (
    <div class="trace" tabIndex={0} role="group" aria-label="Error">
      {blocks.map((block, at) => {
        const lines = block.lines.join("\n");
        if (block.kind !== "library") {
          return (
            <pre key={at} class={at === blocks.length - 1 ? "final" : block.kind}>
              {lines}
            </pre>
          );
        }
        const frames = block.lines.filter((line) => FRAME.test(line)).length;
        return (
          <details key={at} open={!many}>
            <summary>{plural(frames, "frame")} of libraries</summary>
            <pre class="code-line">{lines}</pre>
          </details>
        );
      })}
    </div>
  );
}
