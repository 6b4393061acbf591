import type { ComponentChildren, JSX } from "preact";
import { useId } from "preact/hooks";

interface FieldProps {
  label: string;
  hint?: ComponentChildren;
  wrong?: string | null | undefined;
  optional?: boolean | undefined;
  children: (attributes: { id: string; "aria-describedby"?: string; "aria-invalid"?: true }) => JSX.Element;
}

/** A label, its control, a hint and what is wrong with the value. */
export function Field({ label, hint, wrong, optional, children }: FieldProps): JSX.Element {
  const id = useId();
  const about = hint || wrong ? `${id}-about` : undefined;
  return (
    <div class="field">
      <label class="label" for={id}>
        {label}
        {optional && <span class="quiet small">optional</span>}
      </label>
      {children({ id, ...(about && { "aria-describedby": about }), ...(wrong && { "aria-invalid": true as const }) })}
      {about && (
        <div id={about} class={wrong ? "wrong" : "hint"}>
          {wrong || hint}
        </div>
      )}
    </div>
  );
}

interface TextProps {
  label: string;
  value: string;
  onInput: (value: string) => void;
  hint?: ComponentChildren;
  wrong?: string | null | undefined;
  optional?: boolean | undefined;
  placeholder?: string | undefined;
  type?: "text" | "number" | "password" | "datetime-local" | "search";
  list?: readonly string[] | undefined;
  rows?: number | undefined;
  first?: boolean | undefined;
  autocomplete?: "off" | "current-password";
}

export function TextField({
  label,
  value,
  onInput,
  hint,
  wrong,
  optional,
  list,
  rows,
  first,
  ...rest
}: TextProps): JSX.Element {
  const listId = useId();
  return (
    <Field label={label} hint={hint} wrong={wrong} optional={optional}>
      {(attributes) =>
        rows ? (
          <textarea
            class="input"
            rows={rows}
            spellcheck={false}
            value={value}
            placeholder={rest.placeholder}
            data-first={first || undefined}
            onInput={(event) => onInput(event.currentTarget.value)}
            {...attributes}
          />
        ) : (
          <>
            <input
              class="input"
              type={(rest.type ?? "text") as "text"}
              value={value}
              placeholder={rest.placeholder}
              autocomplete={rest.autocomplete ?? "off"}
              spellcheck={false}
              step={rest.type === "number" ? "any" : undefined}
              list={list ? listId : undefined}
              data-first={first || undefined}
              onInput={(event) => onInput(event.currentTarget.value)}
              {...attributes}
            />
            {list && (
              <datalist id={listId}>
                {list.map((each) => (
                  <option key={each} value={each} />
                ))}
              </datalist>
            )}
          </>
        )
      }
    </Field>
  );
}

type Choices = readonly (readonly [value: string, words: string])[];

interface ChoiceProps {
  label: string;
  value: string;
  choices: Choices;
  onChange: (value: string) => void;
  hint?: ComponentChildren;
}

export function SelectField({ label, value, choices, onChange, hint }: ChoiceProps): JSX.Element {
  return (
    <Field label={label} hint={hint}>
      {(attributes) => (
        <select class="input" value={value} onChange={(event) => onChange(event.currentTarget.value)} {...attributes}>
          {choices.map(([each, words]) => (
            <option key={each} value={each} selected={each === value}>
              {words}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

export function CheckField({
  label,
  value,
  onChange,
}: {
  label: string;
  value: boolean;
  onChange: (value: boolean) => void;
}): JSX.Element {
  return (
    <label class="check">
      <input type="checkbox" checked={value} onChange={(event) => onChange(event.currentTarget.checked)} />
      {label}
    </label>
  );
}

/** A few choices side by side, one of them pressed. */
export function Segments({ label, value, choices, onChange }: ChoiceProps): JSX.Element {
  return (
    <div class="segments" role="group" aria-label={label}>
      {choices.map(([each, words]) => (
        <button key={each} type="button" aria-pressed={each === value} onClick={() => onChange(each)}>
          {words}
        </button>
      ))}
    </div>
  );
}
