import { signal, useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { Button } from "./Button";

const shown = signal<JSX.Element | null>(null);

export function openDialog(element: JSX.Element): void {
  shown.value = element;
}

export function closeDialog(): void {
  shown.value = null;
}

/** The place of the one open dialog. */
export function Dialogs(): JSX.Element | null {
  return shown.value;
}

interface Props {
  title: string;
  children: ComponentChildren;
  footer?: ComponentChildren;
  wide?: boolean;
  /** Makes the body and the footer a form. It is not called again before it has ended: a double click acts once. */
  onSubmit?: () => Promise<void>;
  class?: string;
}

/** A modal dialog. The browser keeps the focus inside, closes it on Escape and returns the focus. */
export function Dialog({ title, children, footer, wide, onSubmit, class: more }: Props): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  const busy = useSignal(false);
  const submit = async (): Promise<void> => {
    if (busy.value) return;
    busy.value = true;
    await onSubmit?.().finally(() => (busy.value = false));
  };
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    box.current?.showModal();
    box.current?.querySelector<HTMLElement>("[data-first]")?.focus();
    return () => before?.focus?.();
  }, []);
  const inside = (
    <>
      <div class="body">{children}</div>
      {footer && <footer>{footer}</footer>}
    </>
  );
  return (
    <dialog
      ref={box}
      class={[wide && "wide", more].filter(Boolean).join(" ")}
      aria-labelledby={id}
      onClose={closeDialog}
      onPointerDown={(event) => event.target === event.currentTarget && outside(event) && closeDialog()}
    >
      <header>
        <h2 id={id}>{title}</h2>
        <Button kind="plain" icon="close" label="Close" onClick={closeDialog} />
      </header>
      {onSubmit ? (
        <form
          noValidate
          aria-busy={busy.value || undefined}
          onSubmit={(event) => {
            event.preventDefault();
            void submit();
          }}
        >
          {inside}
        </form>
      ) : (
        inside
      )}
    </dialog>
  );
}

function outside(event: PointerEvent): boolean {
  const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
  return event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom;
}
