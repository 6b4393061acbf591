import type { ComponentChildren, JSX } from "preact";
import type { Load } from "../lib/load";
import { Button, Copy } from "./Button";

interface Props {
  title: string;
  children?: ComponentChildren;
  /** Commands or code that change the emptiness. */
  code?: string;
  acts?: ComponentChildren;
}

export function Empty({ title, children, code, acts }: Props): JSX.Element {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children && <p class="text">{children}</p>}
      {code && (
        <div class="code">
          <pre tabIndex={0}>{code}</pre>
          <Copy text={code} what="the code" />
        </div>
      )}
      {acts && <div class="row">{acts}</div>}
    </div>
  );
}

function Skeleton(): JSX.Element {
  return (
    <div class="pad stack" role="status">
      <span class="hidden">Reading…</span>
      {[88, 72, 80, 56].map((width) => (
        <div key={width} class="skeleton" style={{ width: `${width}%` }} />
      ))}
    </div>
  );
}

/** The data of an address, or what there is to say without it. An error next to older data does not hide the data. */
export function Loaded<T>({ of, children }: { of: Load<T>; children: (data: T) => JSX.Element }): JSX.Element {
  const { data, error, reload } = of;
  const problem = error && (
    <div class="note t-bad" role="alert">
      <span>{error.message}</span>
      {error.status !== 404 && (
        <Button slim onClick={reload}>
          Try again
        </Button>
      )}
    </div>
  );
  if (data === null) return problem ? <div class="pad">{problem}</div> : <Skeleton />;
  return (
    <>
      {problem}
      {children(data)}
    </>
  );
}
