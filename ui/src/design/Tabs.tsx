import type { JSX } from "preact";

export interface Tab {
  to: string;
  words: string;
  here: boolean;
  count?: string | null;
}

export function Tabs({ label, tabs }: { label: string; tabs: readonly Tab[] }): JSX.Element {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map(({ to, words, here, count }) => (
        <a key={words} href={to} aria-current={here ? "page" : undefined}>
          {words}
          {count && <span class="n">{count}</span>}
        </a>
      ))}
    </nav>
  );
}
