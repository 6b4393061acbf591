/** The dashboard: one page for each address. */
import { effect, untracked } from "@preact/signals";
import { render, type JSX } from "preact";
import "./design/tokens.css";
import "./design/base.css";
import "./design/parts.css";
import "./design/shell.css";
import "./design/pages.css";
import { start } from "./lib/live";
import { route, segments } from "./lib/route";
import { access, enter } from "./lib/session";
import { Activity } from "./pages/Activity";
import { Failure } from "./pages/Failure";
import { Failures } from "./pages/Failures";
import { Health } from "./pages/Health";
import { Job } from "./pages/Job";
import { Jobs } from "./pages/Jobs";
import { Limits } from "./pages/Limits";
import { NotFound } from "./pages/NotFound";
import { Overview } from "./pages/Overview";
import { Queue } from "./pages/Queue";
import { Queues } from "./pages/Queues";
import { Schedule } from "./pages/Schedule";
import { Schedules } from "./pages/Schedules";
import { Worker } from "./pages/Worker";
import { Workers } from "./pages/Workers";
import { Workflow } from "./pages/Workflow";
import { Workflows } from "./pages/Workflows";
import { Shell } from "./shell/Shell";
import { SignIn, Unreachable } from "./shell/SignIn";

/** The page of a path. The key makes another thing of the same kind a new page, with its own state. */
function pageOf(path: string): JSX.Element {
  const [place, name, ...more] = segments(path);
  if (more.length) return <NotFound />;
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
