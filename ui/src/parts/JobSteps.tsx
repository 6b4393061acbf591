/** The progress that a job has stored: steps, sleeps, signals, published values, and the jobs that it has created. */
import type { JSX } from "preact";
import type { Job as Row, JobHistory, Step } from "../api";
import { Badge, Time } from "../design/Badge";
import { Button } from "../design/Button";
import { Bar } from "../design/Chart";
import { Json } from "../design/Json";
import { Panel } from "../design/Table";
import { plural } from "../lib/format";
import { href } from "../lib/route";
import { canOperate } from "../lib/session";
import { isFinal } from "../lib/status";
import { askRerun, askSignal } from "./open";

/** Sleeps and waits are stored under their kind and name: "sleep:sleep", "wait:approved", "receive:add". */
function plain(name: string): string {
  return name.replace(/^(sleep|timeout|wait|receive|patched|lock|approve):/, "");
}

const WITHOUT_VALUE = new Set<Step["kind"]>(["sleep", "timeout", "patch"]);

/** The state of a job whose colour a step has. */
function stateOf(step: Step): string {
  if (step.kind === "lock" && !step.done) return step.value === null ? "waiting" : "running";
  if (step.failed) return step.done ? "failed" : "scheduled";
  if (step.kind === "approval" && !step.done) return "waiting";
  return step.done ? "succeeded" : step.kind === "sleep" ? "scheduled" : "running";
}

export function Steps({ job, history }: { job: Row; history: JobHistory }): JSX.Element | null {
  const { signals } = history;
  const names = new Set(signals.map((each) => each.name));
  const values = Object.entries(history.values);
  const steps = history.steps.filter((each) => each.kind !== "signal" || !names.has(plain(each.name)));
  if (!steps.length && !signals.length && !values.length) return null;
  return (
    <Panel title="Steps and signals">
      <ul class="steps">
        {steps.map((step) => (
          <li key={`${step.kind} ${step.name}`}>
            <Badge of={stateOf(step)}>{step.kind}</Badge>
            <b class="any">{plain(step.name)}</b>
            {step.until !== null && !step.done && (
              <span class="quiet">
                until <Time at={step.until} exact />
              </span>
            )}
            {canOperate.value && step.kind !== "once" && step.kind !== "patch" && job.state !== "running" && (
              <Button slim kind="plain" onClick={() => askRerun(job, step.name)}>
                Again from here…
              </Button>
            )}
            {step.kind === "timeout" && step.failed && <span class="quiet">has passed at {String(step.value)}</span>}
            {step.done && !WITHOUT_VALUE.has(step.kind) && <Json value={step.value} />}
          </li>
        ))}
        {signals.map((signal, number) => (
          <li key={`signal ${number}`}>
            <Badge of={signal.given ? "succeeded" : "waiting"}>signal</Badge>
            <b class="any">{signal.name}</b>
            <span class="quiet">{signal.given ? <Time at={signal.at} /> : "awaited"}</span>
            {!signal.given && canOperate.value && !isFinal(job.state) && (
              <Button slim onClick={() => askSignal(job, signal.name)}>
                Send…
              </Button>
            )}
            {signal.given && <Json value={signal.value} />}
          </li>
        ))}
        {values.map(([name, value]) => (
          <li key={`value ${name}`}>
            <Badge of="succeeded">published</Badge>
            <b class="any">{name}</b>
            <Json value={value} />
          </li>
        ))}
      </ul>
    </Panel>
  );
}

export function Children({ job, history }: { job: Row; history: JobHistory }): JSX.Element | null {
  const states = Object.entries(history.children).filter(([, number]) => number);
  const root = job.workflow === job.id;
  if (!states.length && job.workflow === job.id && !job.parent) return null;
  const done = (history.children.succeeded ?? 0) + (history.children.failed ?? 0) + (history.children.cancelled ?? 0);
  const all = states.reduce((sum, [, number]) => sum + number, 0);
  return (
    <Panel title="Workflow" pad>
      <div class="stack">
        {all > 0 && (
          <>
            <div>
              <div class="row spread">
                <a href={href(["jobs"], { parent: job.id })}>
                  {plural(all, "child").replace(/childs$/, "children")}
                  {history.children_capped && " or more"}
                </a>
                <span class="quiet">{done} ended</span>
              </div>
              <Bar share={all ? done / all : 0} tone={history.children.failed ? "bad" : "good"} />
            </div>
            <div class="row">
              {states.map(([state, number]) => (
                <Badge key={state} of={state}>
                  {number} {state}
                </Badge>
              ))}
            </div>
          </>
        )}
        <div class="row">
          {(states.length > 0 || !root) && (
            <a class="button slim" href={href(["workflows", job.workflow])}>
              Show the graph
            </a>
          )}
        </div>
      </div>
    </Panel>
  );
}
