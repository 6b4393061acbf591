/** Fails the type check where the API answers something else than the pages read. It has no code of its own.
 *
 * `openapi.ts` is written from the API, `api.ts` by hand, because the pages need narrower names than a schema has.
 */
import type * as used from "./api";
import type { Answers } from "./openapi";

/** The same type with `string` in place of its words, which a schema does not list, and with any JSON where JSON is. */
type Loose<T> = [used.Json] extends [T]
  ? unknown
  : T extends string
    ? string
    : T extends object
      ? { [Name in keyof T]: Loose<T[Name]> }
      : T;

type Fits<Answer extends Loose<Wanted>, Wanted> = [Answer, Wanted];

export type Checked = [
  Fits<Answers["GET /v1/me"], used.Me>,
  Fits<Answers["GET /v1/overview"], used.Overview>,
  Fits<Answers["GET /v1/metrics"], used.Metrics>,
  Fits<Answers["GET /v1/tasks"], { tasks: used.Task[] }>,
  Fits<Answers["GET /v1/jobs"], used.Page>,
  Fits<Answers["GET /v1/jobs/{id}"], used.Job>,
  Fits<Answers["GET /v1/jobs/{id}/explain"], used.Explanation>,
  Fits<Answers["GET /v1/jobs/{id}/eta"], used.Estimate>,
  Fits<Answers["GET /v1/jobs/{id}/history"], used.History>,
  Fits<Answers["GET /v1/workflows"], used.Workflows>,
  Fits<Answers["GET /v1/workflows/{id}/graph"], used.Graph>,
  Fits<Answers["GET /v1/failures"], used.Failures>,
  Fits<Answers["GET /v1/schedules"], { schedules: used.Schedule[] }>,
  Fits<Answers["GET /v1/schedules/{name}"], used.Schedule>,
  Fits<Answers["POST /v1/schedules/preview"], used.SchedulePreview>,
  Fits<Answers["GET /v1/doctor"], used.Doctor>,
  Fits<Answers["GET /v1/audit"], used.Audit>,
  Fits<Answers["GET /v1/operations/{id}"], used.Operation>,
];
