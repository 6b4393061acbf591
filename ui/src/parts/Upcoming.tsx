import type { JSX } from "preact";
import { moment, weekday, zone } from "../lib/format";

/** The next runs, in the zone of the schedule and in the reader's where that is another one. */
export function Upcoming({ at, tz }: { at: readonly number[]; tz: string | null }): JSX.Element {
  const own = zone();
  const its = tz ?? own;
  return (
    <ol class="upcoming">
      {at.map((each) => (
        <li key={each}>
          <span class="quiet">{weekday(each, its)}</span> {moment(each, its)}
          {own !== its && <span class="quiet small"> {moment(each)} here</span>}
        </li>
      ))}
    </ol>
  );
}
