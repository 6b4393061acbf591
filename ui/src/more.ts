/** The pages that are not read with the first one. They are one file of the build. */
export { Activity } from "./pages/Activity";
export { Approvals } from "./pages/Approvals";
export { Failure } from "./pages/Failure";
export { Failures } from "./pages/Failures";
export { Health } from "./pages/Health";
export { Limits } from "./pages/Limits";
export { Queue } from "./pages/Queue";
export { Queues } from "./pages/Queues";
export { Schedule } from "./pages/Schedule";
export { Schedules } from "./pages/Schedules";
export { Worker } from "./pages/Worker";
export { Workers } from "./pages/Workers";
export { Workflow } from "./pages/Workflow";
export { Workflows } from "./pages/Workflows";
