/** The checks of `treadle doctor`, and what this dashboard costs. */
import type { JSX } from "preact";
import type { Examined } from "../api";
import { Badge, Time } from "../design/Badge";
import { Button } from "../design/Button";
import { Loaded } from "../design/Empty";
import { Prose } from "../design/Prose";
import { Facts, Panel, Table } from "../design/Table";
import { brief, duration, plural } from "../lib/format";
import { useLoad } from "../lib/load";
import { link, overview } from "../lib/live";
import { me } from "../lib/session";
import { PageHead } from "../shell/PageHead";

const LOOK = 60; // s; the server looks once in 30 s at most
const ORDER = { error: 0, warning: 1, ok: 2 };

export function Health(): JSX.Element {
  const load = useLoad<Examined>("doctor", LOOK);
  const checks = load.data?.checks.toSorted((a, b) => ORDER[a.verdict] - ORDER[b.verdict]);
  const bad = checks?.filter((each) => each.verdict !== "ok").length ?? 0;
  return (
    <>
      <PageHead
        title="Health"
        beside={
          checks && (
            <Badge of={bad ? (checks[0]!.verdict as string) : "ok"} filled>
              {bad ? `${plural(bad, "check")} to look at` : "all well"}
            </Badge>
          )
        }
        acts={<Button onClick={load.reload}>Check again</Button>}
      />
      <section class="panel">
        <Loaded of={load}>
          {(report) => (
            <Table caption="Checks" columns={[{ words: "verdict" }, { words: "check" }, { words: "found" }]}>
              {checks!.map((each) => (
                <tr key={each.name}>
                  <td>
                    <Badge of={each.verdict} />
                  </td>
                  <th scope="row">{each.name}</th>
                  <td class="any check-text">
                    <Prose text={each.text} />
                    {each.advice && (
                      <span class="advice">
                        <Prose text={each.advice} />
                      </span>
                    )}
                  </td>
                </tr>
              ))}
              <tr>
                <td colSpan={3} class="quiet small">
                  Checked <Time at={report.at} />. The server checks once in 30 s at most.
                </td>
              </tr>
            </Table>
          )}
        </Loaded>
      </section>
      <Cost />
    </>
  );
}

function Cost(): JSX.Element | null {
  const look = overview.value;
  if (!look) return null;
  const share = look.cost_ms / 1000 / Math.max(look.every, 0.001);
  return (
    <Panel title="What this dashboard costs" pad>
      <Facts
        rows={[
          ["storage", <code>{me.value?.storage}</code>],
          ["last look", <Time at={look.at} />],
          ["a look takes", duration(look.cost_ms / 1000)],
          ["between looks", `${duration(look.every)}, for all readers of this server together`],
          ["share of time", `${brief(share * 100)} %`],
          ["figures come by", link.value === "live" ? "event stream" : link.value],
          ["version", me.value?.version],
        ]}
      />
    </Panel>
  );
}
