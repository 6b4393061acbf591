/** The dialogs, which are one file of the build: no page needs them before somebody opens one. */
export { CancelJob, DeleteJob, DeleteSchedule, RemoveLimit, RerunJob, SendSignal } from "./parts/Asks";
export { Bulk } from "./parts/Bulk";
export { Enqueue } from "./parts/Enqueue";
export { LimitDialog } from "./parts/LimitDialog";
export { ScheduleDialog } from "./parts/ScheduleDialog";
export { Help } from "./shell/Help";
export { Palette } from "./shell/Palette";
export { Settings } from "./shell/Settings";
