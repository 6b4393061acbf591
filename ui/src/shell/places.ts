/** The pages of the navigation, in groups. */
import type { IconName } from "../design/Icon";

interface Place {
  to: string;
  words: string;
  icon: IconName;
  keys: string;
}

export const PLACES: readonly (readonly Place[])[] = [
  [{ to: ".", words: "Overview", icon: "overview", keys: "g o" }],
  [
    { to: "jobs", words: "Jobs", icon: "jobs", keys: "g j" },
    { to: "failures", words: "Failures", icon: "failures", keys: "g f" },
    { to: "workflows", words: "Workflows", icon: "workflows", keys: "g w" },
    { to: "approvals", words: "Approvals", icon: "approvals", keys: "g p" },
    { to: "schedules", words: "Schedules", icon: "schedules", keys: "g s" },
  ],
  [
    { to: "queues", words: "Queues", icon: "queues", keys: "g q" },
    { to: "limits", words: "Limits", icon: "limits", keys: "g l" },
    { to: "workers", words: "Workers", icon: "workers", keys: "g k" },
  ],
  [
    { to: "health", words: "Health", icon: "health", keys: "g h" },
    { to: "activity", words: "Activity", icon: "activity", keys: "g a" },
  ],
];
