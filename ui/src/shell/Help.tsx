import type { JSX } from "preact";
import { Dialog } from "../design/Dialog";
import { bindings, type Binding } from "../lib/keys";
import { singleKeys } from "../lib/settings";

const GROUPS: readonly Binding["group"][] = ["Go to", "Page", "List", "Job"];

/** All keys that act on the present page. */
export function Help(): JSX.Element {
  const newest = new Map(bindings.value.map((each) => [each.keys, each]));
  return (
    <Dialog title="Keyboard" wide>
      {singleKeys.value === "off" && (
        <p class="quiet">Single keys are switched off in the settings. Ctrl+K still works.</p>
      )}
      <div class="key-groups">
        {GROUPS.map((group) => {
          const bindings = [...newest.values()].filter((each) => each.group === group);
          return (
            bindings.length > 0 && (
              <section key={group}>
                <h3>{group}</h3>
                <dl class="keys">
                  {bindings.map((each) => (
                    <div key={each.keys}>
                      <dt>
                        {each.keys.split(/[ +]/).map((key) => (
                          <kbd key={key}>{key}</kbd>
                        ))}
                      </dt>
                      <dd>{each.words}</dd>
                    </div>
                  ))}
                  {group === "List" && (
                    <div>
                      <dt>
                        <kbd>Enter</kbd>
                      </dt>
                      <dd>Open the row</dd>
                    </div>
                  )}
                  {group === "Page" && (
                    <div>
                      <dt>
                        <kbd>Esc</kbd>
                      </dt>
                      <dd>Close a dialog</dd>
                    </div>
                  )}
                </dl>
              </section>
            )
          );
        })}
      </div>
    </Dialog>
  );
}
