import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { LimitUse, WhenFull } from "../api";
import { Button } from "../design/Button";
import { closeDialog, Dialog } from "../design/Dialog";
import { SelectField, TextField } from "../design/Field";
import { failed, toast } from "../design/toasts";
import { part, send } from "../lib/http";
import { refreshAll } from "./acts";

interface Texts {
  name: string;
  slots: string;
  rate: string;
  per: string;
  how: "window" | "bucket";
  burst: string;
  hold: "running" | "ended";
  most: string;
  full: WhenFull;
}

function textsOf(use: LimitUse | undefined, name: string): Texts {
  const rule = use && (use.behind ?? use.rule);
  const text = (value: number | null | undefined): string =>
    value === null || value === undefined ? "" : String(value);
  return {
    name: rule?.name ?? name,
    slots: text(rule?.slots),
    rate: text(rule?.rate),
    per: text(rule?.per ?? 1),
    how: rule?.how ?? "window",
    burst: text(rule?.burst),
    hold: rule?.hold ?? "running",
    most: text(rule?.max_waiting),
    full: rule?.when_full ?? "refuse",
  };
}

/** The mistake in the text of a field, in words for the reader. */
type Wrong = Partial<Record<keyof Texts, string>>;

/** The body of `PUT /v1/limits/NAME`, and what is wrong with it, by field. */
function bodyOf(texts: Texts): [body: Record<string, unknown>, wrong: Wrong] {
  const wrong: Wrong = {};
  const whole = (field: "slots" | "rate" | "burst" | "most"): number | null => {
    const value = Number(texts[field]);
    if (!texts[field].trim()) return null;
    if (!Number.isInteger(value) || value < 0) wrong[field] = `Expected a whole number, found ${texts[field]}.`;
    return value;
  };
  const slots = whole("slots");
  const rate = whole("rate");
  const most = ofQueue(texts) ? whole("most") : null;
  const burst = texts.how === "bucket" ? whole("burst") : null;
  const per = Number(texts.per || 1);
  if (!(per > 0)) wrong.per = "Expected more than 0 s.";
  if (slots === null && rate === null && most === null)
    wrong.slots = `Give slots, starts${ofQueue(texts) ? " or waiting jobs" : " or both"}.`;
  const rule = { slots, rate, per, how: texts.how, burst, hold: texts.hold };
  return [{ ...rule, max_waiting: most, when_full: most === null ? "refuse" : texts.full }, wrong];
}

/** Whether the rule is that of a queue, the only one with a bound. */
function ofQueue({ name }: Texts): boolean {
  return /^queue(:|$)/.test(name.trim());
}

export function LimitDialog({ use, name }: { use: LimitUse | undefined; name: string }): JSX.Element {
  const texts = useSignal(textsOf(use, name));
  const wrong = useSignal<Wrong>({});
  const fixed = use !== undefined || name !== "";
  const set = (change: Partial<Texts>): void => {
    texts.value = { ...texts.value, ...change };
  };
  const submit = async (): Promise<void> => {
    const [body, problems] = bodyOf(texts.value);
    wrong.value = problems;
    if (Object.keys(problems).length) return;
    try {
      const answer = await send<{ warning?: string } | null>("PUT", `limits/${part(texts.value.name.trim())}`, body);
      toast(`Limit ${texts.value.name} set. ${answer?.warning ?? ""}`.trim(), {
        tone: answer?.warning ? "warn" : "good",
      });
      closeDialog();
      refreshAll();
    } catch (error) {
      failed(error);
    }
  };
  const { value } = texts;
  return (
    <Dialog
      title={fixed ? `Limit ${value.name}` : "Add a limit"}
      onSubmit={submit}
      footer={
        <>
          <Button onClick={closeDialog}>Close</Button>
          <Button kind="primary" type="submit" disabled={!value.name.trim()}>
            Set the limit
          </Button>
        </>
      }
    >
      {!fixed && (
        <TextField
          label="Name"
          first
          value={value.name}
          onInput={(name) => set({ name })}
          hint="As jobs name it. “queue:mail” is the limit of the queue mail; each partition “tenant:42” obeys the rule “tenant”."
        />
      )}
      <div class="pair">
        <TextField
          label="Slots"
          type="number"
          optional
          first={fixed}
          value={value.slots}
          onInput={(slots) => set({ slots })}
          hint="Jobs that may run at once, in each partition."
          wrong={wrong.value.slots}
        />
        <SelectField
          label="A slot is free when"
          value={value.hold}
          choices={[
            ["running", "the run ends"],
            ["ended", "the job has ended, retries included"],
          ]}
          onChange={(hold) => set({ hold: hold as Texts["hold"] })}
        />
      </div>
      <div class="pair">
        <TextField
          label="Starts"
          type="number"
          optional
          value={value.rate}
          onInput={(rate) => set({ rate })}
          hint="Jobs that may start in each period."
          wrong={wrong.value.rate}
        />
        <TextField
          label="Period"
          type="number"
          value={value.per}
          onInput={(per) => set({ per })}
          hint="Seconds."
          wrong={wrong.value.per}
        />
      </div>
      <div class="pair">
        <SelectField
          label="Counted"
          value={value.how}
          choices={[
            ["window", "in every rolling period, exactly"],
            ["bucket", "as a bucket that refills"],
          ]}
          onChange={(how) => set({ how: how as Texts["how"] })}
        />
        {value.how === "bucket" && (
          <TextField
            label="Burst"
            type="number"
            optional
            value={value.burst}
            onInput={(burst) => set({ burst })}
            hint="Starts that a full bucket allows at once."
            wrong={wrong.value.burst}
          />
        )}
      </div>
      {ofQueue(value) && (
        <div class="pair">
          <TextField
            label="Waiting jobs"
            type="number"
            optional
            value={value.most}
            onInput={(most) => set({ most })}
            hint="Jobs that may wait to be started."
            wrong={wrong.value.most}
          />
          <SelectField
            label="When the queue is full"
            value={value.full}
            choices={[
              ["refuse", "refuse new jobs"],
              ["drop_oldest", "cancel the oldest"],
              ["drop_lowest", "cancel those of a lower priority"],
            ]}
            onChange={(full) => set({ full: full as WhenFull })}
          />
        </div>
      )}
    </Dialog>
  );
}
