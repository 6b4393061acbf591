/** The dashboard: one page for each address. */
import { effect, untracked } from "@preact/signals";
import { render, type JSX } from "preact";
import "./design/tokens.css";
import "./design/base.css";
import "./design/controls.css";
import "./design/panels.css";
import "./design/data.css";
import "./design/shell.css";
import "./design/layout.css";
import "./design/lists.css";
import "./design/job.css";
import "./design/workflows.css";
import "./design/narrow.css";
import { lazy, readAhead } from "./lib/lazy";
import { start } from "./lib/live";
import { route, segments } from "./lib/route";
import { access, enter } from "./lib/session";
import { NotFound } from "./pages/NotFound";
import { Overview } from "./pages/Overview";
import { Shell } from "./shell/Shell";
import { SignIn, Unreachable } from "./shell/SignIn";

const AHEAD = 1_500; // ms after the first page until the others are read

const jobs = () => import("./jobs");
const more = () => import("./more");
const Job = lazy(() => jobs().then((module) => module.Job));
const Jobs = lazy(() => jobs().then((module) => module.Jobs));
const Activity = lazy(() => more().then((module) => module.Activity));
const Approvals = lazy(() => more().then((module) => module.Approvals));
const Failure = lazy(() => more().then((module) => module.Failure));
const Failures = lazy(() => more().then((module) => module.Failures));
const Health = lazy(() => more().then((module) => module.Health));
const Limits = lazy(() => more().then((module) => module.Limits));
const Queue = lazy(() => more().then((module) => module.Queue));
const Queues = lazy(() => more().then((module) => module.Queues));
const Schedule = lazy(() => more().then((module) => module.Schedule));
const Schedules = lazy(() => more().then((module) => module.Schedules));
const Worker = lazy(() => more().then((module) => module.Worker));
const Workers = lazy(() => more().then((module) => module.Workers));
const Workflow = lazy(() => more().then((module) => module.Workflow));
const Workflows = lazy(() => more().then((module) => module.Workflows));

/** The page of a path. The key makes another thing of the same kind a new page, with its own state. */
function pageOf(path: string): JSX.Element {
  const [place, name, ...below] = segments(path);
  if (below.length) return <NotFound />;
  if (name !== undefined) {
    switch (place) {
      case "jobs":
        return <Job key={name} id={name} />;
      case "queues":
        return <Queue key={name} name={name} />;
      case "workflows":
        return <Workflow key={name} id={name} />;
      case "schedules":
        return <Schedule key={name} name={name} />;
      case "failures":
        return <Failure key={name} group={name} />;
      case "workers":
        return <Worker key={name} name={name} />;
      default:
        return <NotFound />;
    }
  }
  switch (place) {
    case undefined:
      return <Overview />;
    case "jobs":
      return <Jobs />;
    case "queues":
      return <Queues />;
    case "limits":
      return <Limits />;
    case "workflows":
      return <Workflows />;
    case "schedules":
      return <Schedules />;
    case "failures":
      return <Failures />;
    case "workers":
      return <Workers />;
    case "approvals":
      return <Approvals />;
    case "health":
      return <Health />;
    case "activity":
      return <Activity />;
    default:
      return <NotFound />;
  }
}

function App(): JSX.Element | null {
  switch (access.value) {
    case "loading":
      return null;
    case "out":
      return <SignIn />;
    case "unreachable":
      return <Unreachable />;
    default:
      return <Shell>{pageOf(route.value.path)}</Shell>;
  }
}

effect(() => {
  if (access.value === "in") untracked(start);
});

render(<App />, document.getElementById("app")!);
void enter();
addEventListener("load", () => setTimeout(readAhead, AHEAD));
