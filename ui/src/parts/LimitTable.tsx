import type { JSX } from "preact";
import type { Limit, LimitUse } from "../api";
import { Badge, Time } from "../design/Badge";
import { Button } from "../design/Button";
import { Bar } from "../design/Chart";
import { Num, Table } from "../design/Table";
import { brief, count, duration, plural } from "../lib/format";
import { overview } from "../lib/live";
import { canOperate, servesAll } from "../lib/session";
import { pauseLimit, pauseQueue } from "./acts";
import { askRemoveLimit, editLimit } from "./open";

const PER: Record<number, string> = { 1: "second", 60: "minute", 3600: "hour", 86400: "day" };

/** A rule in words: "4 slots, 100 starts per minute". */
export function ruleWords(rule: Limit): string {
  const parts: string[] = [];
  if (rule.slots !== null)
    parts.push(plural(rule.slots, "slot") + (rule.hold === "ended" ? " until the job has ended" : ""));
  if (rule.rate !== null) {
    const bucket = rule.how === "bucket" ? `, bursts of ${count(rule.burst ?? rule.rate)}` : "";
    parts.push(`${plural(rule.rate, "start")} per ${PER[rule.per] ?? duration(rule.per)}${bucket}`);
  }
  if (rule.max_waiting !== null)
    parts.push(`${count(rule.max_waiting)} waiting, then ${rule.when_full.replace("_", " the ")}`);
  return parts.join(", ") || "none";
}

/** The rule that an operator or code has set: a pause does not hide it. */
export function ownRule(use: LimitUse): Limit {
  return use.behind ?? use.rule;
}

export function isPaused(use: LimitUse): boolean {
  return use.pauses.length > 0 || use.rule.slots === 0;
}

/** Whether the queue of this rule has as many waiting jobs as the rule allows; a rule for all queues: any queue. */
function isFullQueue({ key }: LimitUse): boolean {
  const { queues = [], limits = [] } = overview.value ?? {};
  const own = new Set(limits.filter((each) => each.key === ownRule(each).name).map((each) => each.key));
  return queues.some((each) => {
    const of = `queue:${each.name}`;
    return (key === of || (key === "queue" && !own.has(of))) && each.full;
  });
}

/** The limits that a queue obeys: its own, otherwise that of all queues, with its use by this queue. */
export function limitsOf(queue: string, limits: readonly LimitUse[]): readonly LimitUse[] {
  const own = limits.filter((each) => each.key === `queue:${queue}`);
  if (own.some((each) => ownRule(each).name === each.key)) return own;
  return [...limits.filter((each) => each.key === "queue"), ...own];
}

export function LimitTable({ limits }: { limits: readonly LimitUse[] }): JSX.Element {
  const can = canOperate.value && servesAll.value;
  return (
    <Table
      caption="Limits"
      columns={[
        { words: "limit" },
        { words: "rule", class: "mid" },
        { words: "state" },
        { words: "slots in use" },
        { words: "starts", class: "num mid" },
        { words: "blocked", class: "num" },
        { words: "next start", class: "num mid" },
        can && { words: "acts", hidden: true, class: "num" },
      ]}
    >
      {limits.map((use) => (
        <Row key={use.key} use={use} can={can} />
      ))}
    </Table>
  );
}

function State({ use }: { use: LimitUse }): JSX.Element {
  if (isPaused(use)) {
    const held = use.pauses.find((each) => each.why === "held");
    const rests = held && use.pauses.every((each) => each.why === "held");
    return (
      <>
        <Badge of="paused">{rests ? "rests" : "paused"}</Badge>
        {held?.until && (
          <span class="quiet small">
            {" "}
            until <Time at={held.until} />
          </span>
        )}
      </>
    );
  }
  const { slots } = use.rule;
  if (isFullQueue(use)) return <Badge of="blocked">full</Badge>;
  if (use.blocked || (slots !== null && use.used >= slots)) return <Badge of="blocked">full</Badge>;
  return <Badge of="ok">open</Badge>;
}

function Row({ use, can }: { use: LimitUse; can: boolean }): JSX.Element {
  const rule = ownRule(use);
  const partition = use.key !== rule.name;
  const share = rule.slots ? use.used / rule.slots : 0;
  return (
    <tr data-row={use.key}>
      <th scope="row" class={partition ? "name partition" : "name"}>
        <span class="row tight">
          <span class="clip" title={use.key} tabIndex={-1} data-main>
            {use.key}
          </span>
          {use.declared && !partition && <span class="chip">in code</span>}
        </span>
      </th>
      <td class="mid">{partition ? <span class="zero">as {rule.name}</span> : ruleWords(rule)}</td>
      <td class="nowrap">
        <State use={use} />
      </td>
      <td>
        <span class="load">
          <span class="num">
            {brief(use.used)}
            {rule.slots !== null && <span class="quiet"> / {count(rule.slots)}</span>}
          </span>
          {rule.slots ? <Bar share={share} tone={share >= 1 ? "warn" : "live"} /> : null}
        </span>
      </td>
      <td class="num mid">
        {rule.rate === null ? <span class="zero">–</span> : `${count(use.starts)} / ${count(rule.rate)}`}
      </td>
      <td class="num">
        <Num value={use.blocked} />
      </td>
      <td class="num mid">
        <Time at={use.opens ?? use.next_start} />
      </td>
      {can && (
        <td class="num">
          {!partition && (
            <span class="row tight end">
              <Button
                slim
                kind="plain"
                onClick={() => toggle(rule.name, !isPaused(use))}
                label={`${isPaused(use) ? "Resume" : "Pause"} ${rule.name}`}
              >
                {isPaused(use) ? "Resume" : "Pause"}
              </Button>
              <Button slim kind="plain" onClick={() => editLimit(use)} label={`Edit ${rule.name}`}>
                Edit
              </Button>
              <Button slim kind="plain" onClick={() => askRemoveLimit(rule.name)} label={`Remove ${rule.name}`}>
                Remove
              </Button>
            </span>
          )}
        </td>
      )}
    </tr>
  );
}

/** The limit of a queue is paused with the queue, so that both pages say the same. */
function toggle(name: string, on: boolean): Promise<void> {
  return name.startsWith("queue:") ? pauseQueue(name.slice("queue:".length), on) : pauseLimit(name, on);
}
