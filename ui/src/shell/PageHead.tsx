import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { route } from "../lib/route";

interface Props {
  /** The heading, and the title of the window. */
  title: string;
  /** A text before the title, in the window only, such as the kind of the thing. */
  kind?: string;
  crumbs?: readonly (readonly [to: string, words: string])[];
  mono?: boolean;
  /** Next to the title. */
  beside?: ComponentChildren;
  acts?: ComponentChildren;
  children?: ComponentChildren;
}

/** The one h1 of a page. It takes the focus when the reader comes from another page. */
export function PageHead({ title, kind, crumbs, mono, beside, acts, children }: Props): JSX.Element {
  const heading = useRef<HTMLHeadingElement>(null);
  const { visit } = route.value;
  useEffect(() => {
    document.title = `${kind ? `${kind} ` : ""}${title} · Treadle`;
  }, [title, kind]);
  useEffect(() => {
    if (visit > 0) heading.current?.focus({ preventScroll: true });
  }, [visit]);
  return (
    <header class="page-head">
      {crumbs && (
        <nav aria-label="Path" class="crumbs">
          {crumbs.map(([to, words], at) => (
            <span key={to}>
              {at > 0 && <span aria-hidden="true"> / </span>}
              <a href={to}>{words}</a>
            </span>
          ))}
        </nav>
      )}
      <div class="page-title">
        <h1 ref={heading} tabIndex={-1} class={mono ? "mono any" : "any"}>
          {title}
        </h1>
        {beside}
        {acts && <div class="row push acts">{acts}</div>}
      </div>
      {children}
    </header>
  );
}
