// A runner for Node 18 or newer, without dependencies: claims jobs, runs them side by side, keeps their leases alive.
//
//   TREADLE_SERVER=http://127.0.0.1:7373 node runner.mjs
//
// Everything it needs of the protocol is here: claim (with a wait), heartbeat, settle, steps. A function that throws has
// failed; whether the job is tried again is the server's business. SIGTERM: claim no more, finish, leave.

import { hostname } from "node:os";

const server = process.env.TREADLE_SERVER ?? "http://127.0.0.1:7373";
const token = process.env.TREADLE_TOKEN;
const slots = 8, lease = Number(process.env.TREADLE_LEASE ?? 30);
const name = `${hostname()}:${process.pid}`;

const tasks = {
  "text.shout": async (text) => text.toUpperCase(),
  "text.fail": async () => { throw new Error("no luck") },
  "math.sum": async (...numbers) => numbers.reduce((a, b) => a + b, 0),
  // Called twice: it starts a job for each word, and is called again when they have ended.
  "text.shoutAll": async function (...words) {
    if (!this.after.length) return new Children(words.map((word) => job("text.shout", word)), true);
    return (await results(this.after)).join(" ");
  },
  // Called once: its result is that of the job it goes on as.
  "text.shoutLater": async (text) => new Children([job("text.shout", text)]),
  // Durable: a later run, after a crash, a sleep or a wait, gets what is done from the history and goes on behind it.
  "order.ship": async function (order) {
    const { durable } = this;
    const receipt = await durable.step("charge", () => post(`charge/${order}`));
    try {
      await durable.step("reserve", () => post(`reserve/${order}`));
      await durable.sleep("packing", 0.1);
      const address = await durable.wait("address", 3600); // treadle jobs signal ID address '"Rome"'
      const label = await durable.call("label", job("order.label", order, address));
      return await durable.step("send", () => post(`send/${label}`));
    } catch (error) {
      await durable.step("refund", () => post(`refund/${receipt}`));
      throw error;
    }
  },
  "order.label": async (order, address) => post(`label/${order}/${address}`),
};
const post = async (path) => { // an effect outside
  const answer = await fetch(`${process.env.SHOP ?? "http://127.0.0.1:8080"}/${path}`, { method: "POST" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return await answer.text();
};

class Durable { // the steps of one run; the function never returns from a step that suspends or loses the job
  constructor(row) {
    this.run = { id: row.job.id, version: row.version, lease, after: "" };
    this.left = new Promise((leave) => { this.leave = leave; });
  }
  async take(name, fields) {
    const answer = await call("steps", { ...this.run, name, ...fields });
    if (answer.status === "suspended" || answer.status === "lost") { this.leave(LEFT); await new Promise(() => {}); }
    if (answer.status === "done") this.run.after = answer.step;
    return answer;
  }
  async next(name, fields = {}) {
    const caught = this.caught; // the function has caught the failure of its last step: that is history, too
    this.caught = null;
    if (caught) await this.take(caught.name, { failure: caught.text });
    const { status, result, failure } = await this.take(name, fields);
    if (failure) throw Object.assign(new Error(`${failure.type}: ${failure.message}`), { final: true });
    return { status, result };
  }
  async step(name, effect) {
    const known = await this.next(name);
    if (known.status === "done") return known.result;
    const result = await effect().catch((error) => { this.caught = { name, text: `${error}` }; throw error; });
    return (await this.next(name, { result: result ?? null })).result;
  }
  sleep = async (name, seconds) => { await this.next(name, { sleep: seconds }); };
  wait = async (name, timeout) => (await this.next(name, { wait: { timeout } })).result;
  call = async (name, job) => (await this.next(name, { call: job })).result;
}
const LEFT = Symbol("left");

class Children { // stored with the report; the job waits for them and is ended by the server, or called again
  constructor(jobs, again = false) { this.report = { followups: jobs, ...(again && { again }) }; }
}
const job = (task, ...args) => ({ id: "", task, payload: JSON.stringify(args) }); // the server derives the id
const results = async (ids) => (await call("get", { ids })).records.map((row) => JSON.parse(row.result));

const running = new Map(); // id -> { version, lost }
let stopping = false, claims = 0;

async function call(verb, body) {
  for (let pause = 100; ; pause = Math.min(2 * pause, 10_000)) {
    try {
      const answer = await fetch(`${server}/v1/work/${verb}`, {
        method: "POST",
        redirect: "error", // jobs and token are for this server
        headers: { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) },
        body: JSON.stringify(body),
      });
      if (answer.ok) return await answer.json();
      const problem = await answer.json();
      if (answer.status !== 429 && answer.status < 500) throw Object.assign(new Error(problem.message), { final: true });
      console.error(`${verb}: ${answer.status} ${problem.message}`);
    } catch (error) {
      if (error.final) throw error;
      console.error(`${verb}: ${error.cause?.code ?? error.message}`);
    }
    // Every verb may be repeated: a claim under the same claim id returns the same jobs, a report says the same again.
    await new Promise((wake) => setTimeout(wake, pause));
  }
}

async function run(row) {
  const { job, version } = row;
  const given = JSON.parse(job.payload); // an array of arguments, or { args, kwargs }
  const args = Array.isArray(given) ? given : [...given.args, given.kwargs];
  const durable = new Durable(row);
  let report;
  try {
    const value = (await Promise.race([tasks[job.task].apply({ ...row, durable }, args), durable.left])) ?? null;
    report = value instanceof Children ? value.report : { succeed: value };
    if (value === LEFT) running.get(job.id).lost = true; // the server has settled it
  } catch (error) {
    const text = `${error.stack ?? ""}\n${error}`.slice(-10_000); // the last line is what people see first
    report = error.final ? { abort: text } : { fail: text }; // final: each further run would throw it again
  }
  const mine = running.get(job.id);
  if (!mine.lost) await call("settle", { outcomes: [{ id: job.id, version, ...report }] });
  running.delete(job.id);
}

async function beat() {
  const renewals = [...running].map(([id, { version }]) => ({ id, version }));
  // `queues` and `tasks`: without them `treadle jobs explain` says that no worker can run the job.
  const worker = {
    worker: name, host: hostname(), pid: process.pid, queues: ["default"], tasks: Object.keys(tasks), slots, running: renewals.length,
  };
  const { ids } = await call("heartbeat", { worker, renewals, lease });
  for (const id of ids) if (running.has(id)) running.get(id).lost = true; // cancelled, or given to somebody else
}

process.on("SIGTERM", () => { stopping = true; });
process.on("SIGINT", () => { stopping = true; });
const heart = setInterval(() => beat().catch(console.error), (lease * 1000) / 3);
await beat();
console.error(`runner ${name}: ${Object.keys(tasks).join(", ")}`);

while (!stopping) {
  const room = slots - running.size;
  if (room === 0) { await new Promise((wake) => setTimeout(wake, 10)); continue; }
  const wanted = Object.fromEntries(Object.keys(tasks).map((task) => [task, [room, lease]]));
  const { records } = await call("claim", {
    worker: `${name}#${++claims}`, tasks: wanted, limit: room, lease, running: [...running.keys()],
    wait: running.size ? 0.2 : 2, max_lost: 3,
  });
  for (const row of records) {
    running.set(row.job.id, { version: row.version, lost: false });
    run(row).catch(console.error);
  }
}
while (running.size) await new Promise((wake) => setTimeout(wake, 10));
clearInterval(heart);
await call("heartbeat", { worker: { worker: name, gone: true }, renewals: [], lease });
