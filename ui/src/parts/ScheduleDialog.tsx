/** Creates or changes a schedule. The next runs are shown while the timing is typed. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { Json, Schedule, Task, Timing } from "../api";
import { Button } from "../design/Button";
import { closeDialog, Dialog } from "../design/Dialog";
import { Segments, SelectField, TextField } from "../design/Field";
import { failed, toast } from "../design/toasts";
import { zone } from "../lib/format";
import { part, Problem, send, wordsOf } from "../lib/http";
import { useLoad } from "../lib/load";
import { refreshAll } from "./acts";
import { parseJson } from "./schema";
import { Upcoming } from "./Upcoming";

const TYPING = 250; // ms after the last key until the preview is read

interface Texts {
  name: string;
  kind: "cron" | "every";
  cron: string;
  every: string;
  tz: string;
  catch_up: Schedule["catch_up"];
  overlap: Schedule["overlap"];
  task: string;
  kwargs: string;
}

function textsOf(of: Schedule | undefined): Texts {
  return {
    name: of?.name ?? "",
    kind: of?.every != null ? "every" : "cron",
    cron: of?.cron ?? (of ? "" : "0 9 * * 1-5"),
    every: of?.every != null ? String(of.every) : "300",
    tz: of?.tz ?? zone(),
    catch_up: of?.catch_up ?? "one",
    overlap: of?.overlap ?? "allow",
    task: of?.task ?? "",
    kwargs: "{}",
  };
}

function timingOf(texts: Texts): { cron: string; tz: string } | { every: number; tz: string } {
  return texts.kind === "cron"
    ? { cron: texts.cron.trim(), tz: texts.tz.trim() || "UTC" }
    : { every: Number(texts.every), tz: texts.tz.trim() || "UTC" };
}

/** All zones that this browser knows, for the list below the field. */
function zones(): string[] {
  try {
    return ["UTC", ...Intl.supportedValuesOf("timeZone")];
  } catch {
    return ["UTC", zone()];
  }
}

const ZONES = zones();

export function ScheduleDialog({ of }: { of: Schedule | undefined }): JSX.Element {
  const texts = useSignal(textsOf(of));
  const wrong = useSignal<string | null>(null);
  const tasks = useLoad<{ tasks: Task[] }>(of ? null : "tasks");
  const set = (change: Partial<Texts>): void => {
    texts.value = { ...texts.value, ...change };
  };
  const { value } = texts;
  const submit = async (): Promise<void> => {
    const body: Record<string, unknown> = { ...timingOf(value), catch_up: value.catch_up, overlap: value.overlap };
    try {
      if (!of)
        body["job"] = { task: value.task.trim(), kwargs: parseJson(value.kwargs || "{}") as Record<string, Json> };
      await send("PUT", `schedules/${part(value.name.trim())}`, body);
      toast(`Schedule ${value.name} ${of ? "changed" : "created"}.`);
      closeDialog();
      refreshAll();
    } catch (error) {
      if (error instanceof Problem) failed(error);
      else wrong.value = wordsOf(error);
    }
  };
  return (
    <Dialog
      title={of ? `Schedule ${of.name}` : "Add a schedule"}
      wide
      onSubmit={submit}
      footer={
        <>
          <Button onClick={closeDialog}>Close</Button>
          <Button kind="primary" type="submit" disabled={!value.name.trim() || (!of && !value.task.trim())}>
            {of ? "Change the schedule" : "Create the schedule"}
          </Button>
        </>
      }
    >
      {!of && (
        <div class="pair">
          <TextField label="Name" first value={value.name} onInput={(name) => set({ name })} />
          <TextField
            label="Task"
            value={value.task}
            list={tasks.data?.tasks.map((each) => each.name)}
            onInput={(task) => set({ task })}
          />
        </div>
      )}
      {!of && (
        <TextField
          label="Arguments by name"
          rows={2}
          value={value.kwargs}
          onInput={(kwargs) => set({ kwargs })}
          wrong={wrong.value}
          hint="A JSON object."
        />
      )}
      <Segments
        label="Timing"
        value={value.kind}
        choices={[
          ["cron", "Cron"],
          ["every", "Interval"],
        ]}
        onChange={(kind) => set({ kind: kind as Texts["kind"] })}
      />
      <div class="pair">
        {value.kind === "cron" ? (
          <TextField
            label="Cron"
            first={of !== undefined}
            value={value.cron}
            onInput={(cron) => set({ cron })}
            hint="minute hour day month weekday"
          />
        ) : (
          <TextField
            label="Every"
            type="number"
            first={of !== undefined}
            value={value.every}
            onInput={(every) => set({ every })}
            hint="Seconds between two runs."
          />
        )}
        <TextField label="Zone" value={value.tz} list={ZONES} onInput={(tz) => set({ tz })} />
      </div>
      <Preview texts={value} />
      <div class="pair">
        <SelectField
          label="After an outage"
          value={value.catch_up}
          choices={[
            ["one", "one run for all that were missed"],
            ["all", "each missed run"],
            ["skip", "skip missed runs"],
          ]}
          onChange={(catch_up) => set({ catch_up: catch_up as Texts["catch_up"] })}
        />
        <SelectField
          label="While the last job is unfinished"
          value={value.overlap}
          choices={[
            ["allow", "enqueue the next one"],
            ["skip", "skip the run"],
          ]}
          onChange={(overlap) => set({ overlap: overlap as Texts["overlap"] })}
        />
      </div>
    </Dialog>
  );
}

function Preview({ texts }: { texts: Texts }): JSX.Element {
  const preview = useSignal<Timing | null>(null);
  const wrong = useSignal<string | null>(null);
  const timing = timingOf(texts);
  const key = JSON.stringify(timing);
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(() => {
      send<Timing>("POST", "schedules/preview", timing, { signal: stop.signal }).then(
        (answer) => {
          preview.value = answer;
          wrong.value = null;
        },
        (error: unknown) => {
          if (!stop.signal.aborted) wrong.value = wordsOf(error);
        },
      );
    }, TYPING);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [key]);
  return (
    <div class="preview" role="status">
      {wrong.value ? (
        <p class="wrong any">{wrong.value}</p>
      ) : (
        preview.value && (
          <>
            <p>
              <b>{preview.value.words}</b>
            </p>
            <Upcoming at={preview.value.upcoming} tz={texts.tz.trim() || "UTC"} />
          </>
        )
      )}
    </div>
  );
}
