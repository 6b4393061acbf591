/** Opens the dialogs. Their code arrives with the first of them. */
import type { Act, Job, LimitUse, Schedule } from "../api";
import { openDialog } from "../design/Dialog";
import { lazy } from "../lib/lazy";
import type { Target } from "./Bulk";

const dialogs = () => import("../dialogs");

const Bulk = lazy(() => dialogs().then((module) => module.Bulk));
const CancelJob = lazy(() => dialogs().then((module) => module.CancelJob));
const DeleteJob = lazy(() => dialogs().then((module) => module.DeleteJob));
const DeleteSchedule = lazy(() => dialogs().then((module) => module.DeleteSchedule));
const Enqueue = lazy(() => dialogs().then((module) => module.Enqueue));
const Help = lazy(() => dialogs().then((module) => module.Help));
const LimitDialog = lazy(() => dialogs().then((module) => module.LimitDialog));
const Palette = lazy(() => dialogs().then((module) => module.Palette));
const RemoveLimit = lazy(() => dialogs().then((module) => module.RemoveLimit));
const RerunJob = lazy(() => dialogs().then((module) => module.RerunJob));
const ScheduleDialog = lazy(() => dialogs().then((module) => module.ScheduleDialog));
const SendSignal = lazy(() => dialogs().then((module) => module.SendSignal));
const Settings = lazy(() => dialogs().then((module) => module.Settings));

export function openEnqueue(of: { job?: Job; task?: string } = {}): void {
  openDialog(<Enqueue {...of} />);
}

export function openPalette(): void {
  openDialog(<Palette enqueue={openEnqueue} />);
}

export function openHelp(): void {
  openDialog(<Help />);
}

export function openSettings(): void {
  openDialog(<Settings />);
}

/** Ask about an act on many jobs, after a dry run; `done` is called when it has begun. */
export function askBulk(act: Act, target: Target, done?: () => void): void {
  openDialog(<Bulk act={act} target={target} done={done} />);
}

/** Change the rule of a limit; without one, add a rule, for `name` if it is given. */
export function editLimit(use?: LimitUse, name = ""): void {
  openDialog(<LimitDialog use={use} name={name} />);
}

export function editSchedule(of?: Schedule): void {
  openDialog(<ScheduleDialog of={of} />);
}

export function askCancel(job: Job): void {
  openDialog(<CancelJob job={job} />);
}

export function askRerun(job: Job, step: string): void {
  openDialog(<RerunJob job={job} step={step} />);
}

export function askDelete(job: Job, after?: () => void): void {
  openDialog(<DeleteJob job={job} after={after} />);
}

export function askRemoveLimit(name: string): void {
  openDialog(<RemoveLimit name={name} />);
}

export function askDeleteSchedule(name: string, after?: () => void): void {
  openDialog(<DeleteSchedule name={name} after={after} />);
}

export function askSignal(job: Job, name = ""): void {
  openDialog(<SendSignal job={job} name={name} />);
}
