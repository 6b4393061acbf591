/** Pages and dialogs that are read when they are first needed, and in advance once the first page rests. */
import { signal } from "@preact/signals";
import type { ComponentType, JSX } from "preact";

const loaders: (() => Promise<unknown>)[] = [];

/** `load` imports a component; until it has arrived nothing is shown in its place, which takes one round trip. */
export function lazy<P extends object>(load: () => Promise<ComponentType<P>>): (props: P) => JSX.Element | null {
  const loaded = signal<ComponentType<P> | null>(null);
  let pending: Promise<unknown> | null = null;
  const begin = (): Promise<unknown> => {
    pending ??= load().then(
      (component) => (loaded.value = component),
      () => (pending = null), // the next use tries again
    );
    return pending;
  };
  loaders.push(begin);
  return (props) => {
    const Component = loaded.value;
    if (!Component) void begin();
    return Component && <Component {...props} />;
  };
}

/** Read everything that is left, so that later pages open at once, also while the server restarts. */
export function readAhead(): void {
  for (const load of loaders) void load();
}
