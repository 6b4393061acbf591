import type { JSX } from "preact";
import { Dialog } from "../design/Dialog";
import { SelectField } from "../design/Field";
import { zone } from "../lib/format";
import {
  refresh,
  rows,
  singleKeys,
  theme,
  times,
  type Keys,
  type Refresh,
  type Rows,
  type Theme,
  type Times,
} from "../lib/settings";

/** Settings of this browser. Each acts at once, so there is nothing to save. */
export function Settings(): JSX.Element {
  return (
    <Dialog title="Settings">
      <p class="quiet">These settings stay in this browser.</p>
      <div class="pair">
        <SelectField
          label="Theme"
          value={theme.value}
          choices={[
            ["system", "As the system"],
            ["light", "Light"],
            ["dark", "Dark"],
          ]}
          onChange={(value) => (theme.value = value as Theme)}
        />
        <SelectField
          label="Times"
          hint={`Your zone is ${zone()}. Every time shows UTC when you point at it.`}
          value={times.value}
          choices={[
            ["relative", "Relative: 4 min ago"],
            ["local", "In my zone"],
            ["utc", "In UTC"],
          ]}
          onChange={(value) => (times.value = value as Times)}
        />
        <SelectField
          label="Refresh"
          hint="How often lists are read again. The overview follows the server."
          value={refresh.value}
          choices={[
            ["live", "Live"],
            ["15", "Every 15 s"],
            ["60", "Every minute"],
            ["off", "Only when I reload"],
          ]}
          onChange={(value) => (refresh.value = value as Refresh)}
        />
        <SelectField
          label="Rows on a page"
          value={rows.value}
          choices={[
            ["25", "25"],
            ["50", "50"],
            ["100", "100"],
            ["200", "200"],
          ]}
          onChange={(value) => (rows.value = value as Rows)}
        />
        <SelectField
          label="Single keys"
          hint="Keys such as j, r and g o. Switch them off if you use speech input."
          value={singleKeys.value}
          choices={[
            ["on", "On"],
            ["off", "Off"],
          ]}
          onChange={(value) => (singleKeys.value = value as Keys)}
        />
      </div>
    </Dialog>
  );
}
