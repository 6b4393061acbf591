/** Enqueues a job: a form from the JSON Schema of a task, or the arguments as JSON. Also "send again" of a job. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { Job, Json, Task } from "../api";
import { Note } from "../design/Badge";
import { Button } from "../design/Button";
import { closeDialog, Dialog } from "../design/Dialog";
import { Segments, SelectField, TextField } from "../design/Field";
import { failed, toast } from "../design/toasts";
import { part, send } from "../lib/http";
import { useLoad } from "../lib/load";
import { overview } from "../lib/live";
import { go } from "../lib/route";
import { refreshAll } from "./acts";
import { copyWords } from "./withheld";
import { inputsOf, parseJson, textOf, valueOf, type Input } from "./schema";

interface Options {
  queue: string;
  priority: string;
  delay: string;
  key: string;
  lane: string;
  labels: string;
}

type Texts = Record<string, string>;

const STARS = "***"; // what the server shows in place of a secret

function optionsOf(job: Job | undefined): Options {
  return {
    queue: job?.queue ?? "",
    priority: job?.priority ? String(job.priority) : "",
    delay: "",
    key: "",
    lane: job?.lane ?? "",
    labels: job?.labels.join(", ") ?? "",
  };
}

/** The body of `POST /v1/jobs` for the options that have a value. Throws an Error with words for the reader. */
function optionsBody(options: Options): Record<string, Json> {
  const body: Record<string, Json> = {};
  for (const name of ["queue", "key", "lane"] as const) if (options[name].trim()) body[name] = options[name].trim();
  for (const name of ["priority", "delay"] as const) {
    if (!options[name].trim()) continue;
    const value = Number(options[name]);
    if (!Number.isFinite(value)) throw new Error(`Expected a number for ${name}.`);
    body[name] = value;
  }
  const labels = options.labels.split(",").map((each) => each.trim());
  if (labels.some(Boolean)) body["labels"] = labels.filter(Boolean);
  return body;
}

/** The options of an equal job, with those of the form in place of its own. */
function optionsLike(job: Job, given: Record<string, Json>): Record<string, unknown> {
  const { queue: _, lane: __, ...rest } = job.again?.options ?? {};
  return { ...rest, labels: [], ...given };
}

/** Throws an Error if the value still has the stars that the server shows in place of a secret. */
function withoutStars<T>(value: T): T {
  if (JSON.stringify(value)?.includes(STARS)) throw new Error(`Replace ${STARS}: the server hides this value.`);
  return value;
}

/** The texts of the form for a job's arguments. Those by position are the first parameters. */
function filled(inputs: readonly Input[], job: Job | undefined): Texts | null {
  if (job && job.args.length > inputs.length) return null;
  return Object.fromEntries(
    inputs.map((input, at) => [
      input.name,
      textOf(input.kind, job ? (job.kwargs[input.name] ?? job.args[at]) : input.fallback),
    ]),
  );
}

export function Enqueue({ job, task: given }: { job?: Job; task?: string }): JSX.Element {
  const tasks = useLoad<{ tasks: Task[] }>("tasks");
  const name = useSignal(job?.task ?? given ?? "");
  const known = tasks.data?.tasks.find((each) => each.name === name.value);
  const inputs = inputsOf(known?.parameters ?? null);
  const texts = useSignal<Texts>({});
  const json = useSignal({ args: textOf("json", job?.args ?? []), kwargs: textOf("json", job?.kwargs ?? {}) });
  const asJson = useSignal(false);
  const options = useSignal(optionsOf(job));
  const wrong = useSignal<Texts>({});
  const busy = useSignal(false);
  const hidden = job?.withheld.arguments === "hidden";
  const fit = inputs && filled(inputs, job?.task === name.value ? job : undefined);
  useEffect(() => {
    texts.value = fit ?? {};
    wrong.value = {};
  }, [known?.name]);
  const form = fit && !asJson.value ? inputs : null;

  const body = (): Record<string, unknown> | null => {
    const problems: Texts = {};
    const kwargs: Record<string, Json> = {};
    const checked = <T,>(where: string, act: () => T): T | undefined => {
      try {
        return act();
      } catch (error) {
        problems[where] = error instanceof Error ? error.message : String(error);
        return undefined;
      }
    };
    const own = <T,>(value: T): T => (hidden ? withoutStars(value) : value);
    for (const input of form ?? []) {
      const value = checked(input.name, () => own(valueOf(input, texts.value[input.name] ?? "")));
      if (value !== undefined) kwargs[input.name] = value;
    }
    const call = form
      ? { kwargs }
      : {
          args: checked(" args", () => own(parseJson(json.value.args || "[]"))) ?? [],
          kwargs: checked(" kwargs", () => own(parseJson(json.value.kwargs || "{}"))) ?? {},
        };
    const more = checked(" options", () => optionsBody(options.value));
    wrong.value = problems;
    if (Object.keys(problems).length) return null;
    const same = job && job.task === name.value.trim();
    return { task: name.value.trim(), ...call, ...(same ? optionsLike(job, more!) : more) };
  };
  const submit = async (): Promise<void> => {
    const sent = body();
    if (!sent) return;
    busy.value = true;
    try {
      const job = await send<Job>("POST", "jobs", sent);
      toast(job.warning ?? "Job enqueued.", {
        tone: job.warning ? "warn" : "good",
        action: { words: "Open it", run: () => go(`jobs/${part(job.id)}`) },
      });
      closeDialog();
      refreshAll();
    } catch (error) {
      failed(error);
    }
    busy.value = false;
  };
  return (
    <Dialog
      title={job ? "Send again" : "Enqueue a job"}
      wide
      onSubmit={submit}
      footer={
        <>
          <Button onClick={closeDialog}>Close</Button>
          <Button kind="primary" type="submit" disabled={busy.value || !name.value.trim()}>
            Enqueue
          </Button>
        </>
      }
    >
      {hidden && (
        <Note tone="warn" sign="warning">
          The server hides some values of this job. Replace each {STARS}: the form does not send it.
        </Note>
      )}
      {job?.withheld.arguments === "typed" && (
        <Note tone="warn" sign="warning">
          Some values have types that JSON lacks, such as dates. The new job gets them as they are shown here; a task
          with type hints converts them.
        </Note>
      )}
      <TextField
        label="Task"
        value={name.value}
        first={!name.value}
        list={tasks.data?.tasks.map((each) => each.name)}
        onInput={(text) => (name.value = text)}
        hint={known?.doc?.split("\n\n")[0]}
      />
      {fit && (
        <Segments
          label="Arguments"
          value={asJson.value ? "json" : "form"}
          choices={[
            ["form", "Form"],
            ["json", "JSON"],
          ]}
          onChange={(value) => {
            if (value === "json") json.value = toJson(inputs!, texts.value, json.value);
            asJson.value = value === "json";
          }}
        />
      )}
      {form ? (
        <div class="pair arguments">
          {form.map((input) => (
            <Argument
              key={input.name}
              input={input}
              text={texts.value[input.name] ?? ""}
              wrong={wrong.value[input.name]}
              onInput={(text) => (texts.value = { ...texts.value, [input.name]: text })}
            />
          ))}
          {!form.length && <p class="quiet">The task takes no arguments.</p>}
        </div>
      ) : (
        <>
          <TextField
            label="Arguments by position"
            rows={3}
            value={json.value.args}
            wrong={wrong.value[" args"]}
            hint="A JSON array."
            onInput={(args) => (json.value = { ...json.value, args })}
          />
          <TextField
            label="Arguments by name"
            rows={5}
            value={json.value.kwargs}
            wrong={wrong.value[" kwargs"]}
            hint="A JSON object."
            onInput={(kwargs) => (json.value = { ...json.value, kwargs })}
          />
        </>
      )}
      {job && job.task === name.value.trim() && (
        <p class="small quiet" data-testid="copied">
          {copyWords(job).join(" ")}
        </p>
      )}
      <More
        options={options.value}
        task={known}
        wrong={wrong.value[" options"]}
        onInput={(change) => (options.value = { ...options.value, ...change })}
      />
    </Dialog>
  );
}

/** The content of the form, as JSON; fields that are not readable yet are left out. */
function toJson(
  inputs: readonly Input[],
  texts: Texts,
  before: { args: string; kwargs: string },
): { args: string; kwargs: string } {
  const kwargs: Record<string, Json> = {};
  for (const input of inputs) {
    try {
      const value = valueOf(input, texts[input.name] ?? "");
      if (value !== undefined) kwargs[input.name] = value;
    } catch {
      return before;
    }
  }
  return { args: "[]", kwargs: JSON.stringify(kwargs, null, 2) };
}

function Argument({
  input,
  text,
  wrong,
  onInput,
}: {
  input: Input;
  text: string;
  wrong: string | undefined;
  onInput: (text: string) => void;
}): JSX.Element {
  const optional = !input.required;
  const hint = [input.hint, optional && input.fallback != null && `Default: ${JSON.stringify(input.fallback)}`]
    .filter(Boolean)
    .join(" ");
  if (input.kind === "yes-no" || input.kind === "choice") {
    const choices = input.kind === "choice" ? input.choices.map((each) => textOf("choice", each)) : ["true", "false"];
    const empty = optional || !choices.includes(text) ? [["", "–"] as const] : [];
    return (
      <SelectField
        label={input.name}
        value={text}
        choices={[...empty, ...choices.map((each) => [each, each] as const)]}
        onChange={onInput}
        hint={wrong ?? hint}
      />
    );
  }
  return (
    <TextField
      label={input.name}
      value={text}
      optional={optional}
      wrong={wrong}
      hint={hint}
      rows={input.kind === "json" ? 3 : text.length > 80 || text.includes("\n") ? 3 : undefined}
      type={input.kind === "number" || input.kind === "whole" ? "number" : "text"}
      placeholder={input.kind === "moment" ? "2026-12-31T23:59:00Z" : undefined}
      onInput={onInput}
    />
  );
}

function More({
  options,
  task,
  wrong,
  onInput,
}: {
  options: Options;
  task: Task | undefined;
  wrong: string | undefined;
  onInput: (change: Partial<Options>) => void;
}): JSX.Element {
  return (
    <details class="more" open={Boolean(wrong) || undefined}>
      <summary>Options</summary>
      <div class="form">
        {wrong && <p class="wrong">{wrong}</p>}
        <div class="pair">
          <TextField
            label="Queue"
            optional
            value={options.queue}
            placeholder={task?.queue ?? "the task's"}
            list={overview.value?.queues.map((each) => each.name)}
            onInput={(queue) => onInput({ queue })}
          />
          <TextField
            label="Priority"
            optional
            type="number"
            value={options.priority}
            placeholder="0"
            onInput={(priority) => onInput({ priority })}
            hint="Higher runs first."
          />
          <TextField
            label="Delay"
            optional
            type="number"
            value={options.delay}
            placeholder="0"
            onInput={(delay) => onInput({ delay })}
            hint="Seconds until the job may start."
          />
          <TextField
            label="Key"
            optional
            value={options.key}
            onInput={(key) => onInput({ key })}
            hint="At most one unfinished job of the task has it."
          />
          <TextField
            label="Lane"
            optional
            value={options.lane}
            onInput={(lane) => onInput({ lane })}
            hint="Lanes take turns; usually a tenant."
          />
          <TextField
            label="Labels"
            optional
            value={options.labels}
            onInput={(labels) => onInput({ labels })}
            hint="Separated by commas."
          />
        </div>
      </div>
    </details>
  );
}
