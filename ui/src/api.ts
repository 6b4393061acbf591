/** The types of the HTTP API. Durations are in seconds, instants in seconds since 1970. */
export type * from "./api/common";
export type * from "./api/jobs";
export type * from "./api/operations";
export type * from "./api/overview";
export type * from "./api/workflows";
