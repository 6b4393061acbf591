import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { announce } from "../lib/announce";
import { failed } from "./toasts";
import { Icon, type IconName } from "./Icon";

interface Look {
  kind?: "primary" | "danger" | "plain" | "danger primary";
  slim?: boolean | undefined;
  icon?: IconName | undefined;
}

interface Props extends Look {
  children?: ComponentChildren;
  onClick?: () => unknown;
  type?: "button" | "submit";
  disabled?: boolean | undefined;
  label?: string | undefined;
  title?: string | undefined;
  keys?: string | undefined;
}

export function buttonClass({ kind, slim, icon }: Look, bare = false): string {
  return ["button", kind, slim && "slim", icon && bare && "icon"].filter(Boolean).join(" ");
}

/** A button that is off while its act runs; an act that fails is reported. */
export function Button({
  children,
  onClick,
  type = "button",
  disabled,
  label,
  title,
  keys,
  ...look
}: Props): JSX.Element {
  const busy = useSignal(false);
  const press = async (): Promise<void> => {
    if (busy.value || !onClick) return;
    try {
      const result = onClick();
      if (!(result instanceof Promise)) return;
      busy.value = true;
      await result;
    } catch (error) {
      failed(error);
    } finally {
      busy.value = false;
    }
  };
  return (
    <button
      type={type}
      class={buttonClass(look, !children)}
      onClick={onClick ? () => void press() : undefined}
      disabled={disabled}
      aria-disabled={busy.value || undefined}
      aria-label={label}
      title={title ?? (children ? undefined : label)}
      aria-keyshortcuts={keys}
    >
      {look.icon && <Icon name={look.icon} />}
      {children}
    </button>
  );
}

/** Copies a text, and says so. */
export function Copy({
  text,
  what,
  slim = true,
}: {
  text: string | (() => string);
  what: string;
  slim?: boolean;
}): JSX.Element {
  const copied = useSignal(false);
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(typeof text === "string" ? text : text());
    copied.value = true;
    announce(`${what} copied`);
    setTimeout(() => (copied.value = false), 1500);
  };
  return (
    <Button kind="plain" slim={slim} icon="copy" label={`Copy ${what}`} onClick={copy}>
      {copied.value ? "Copied" : null}
    </Button>
  );
}
