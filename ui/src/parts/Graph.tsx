/** A workflow as a picture. The server places the nodes; this draws them, follows what runs and unfolds groups. */
import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Graph as Layout, Node as GraphNode, State } from "../api";
import { Button } from "../design/Button";
import { CheckField } from "../design/Field";
import { Sign } from "../design/Icon";
import { count, shortName } from "../lib/format";
import { href } from "../lib/route";
import { toneOf } from "../lib/status";

const PAD = 16; // px around the picture
const ROUND = 8; // px of the corners of edges
const ZOOMS = [0.4, 0.55, 0.75, 1, 1.3, 1.7];

/** A path along the points with rounded corners. */
export function edgePath(points: readonly (readonly [number, number])[]): string {
  return points
    .map(([x, y], n) => {
      const before = points[n - 1];
      const after = points[n + 1];
      if (!before) return `M${x} ${y}`;
      if (!after) return `L${x} ${y}`;
      const into = Math.min(ROUND, Math.hypot(x - before[0], y - before[1]) / 2);
      const out = Math.min(ROUND, Math.hypot(after[0] - x, after[1] - y) / 2);
      const a = towards([x, y], before, into);
      const b = towards([x, y], after, out);
      return `L${a[0]} ${a[1]}Q${x} ${y} ${b[0]} ${b[1]}`;
    })
    .join("");
}

function towards([x, y]: readonly [number, number], [tx, ty]: readonly [number, number], by: number): [number, number] {
  const long = Math.hypot(tx - x, ty - y) || 1;
  return [x + ((tx - x) * by) / long, y + ((ty - y) * by) / long];
}

/** The order in which the states of a folded group matter. */
const ORDER: readonly State[] = ["failed", "running", "cancelled", "ready", "waiting", "succeeded"];

/** The state that a folded group shows: the worst one, else what runs. */
function leading(node: GraphNode): State {
  if (node.kind !== "fold") return node.state;
  return ORDER.find((state) => node.states[state]) ?? node.state;
}

interface Props {
  of: Layout;
  focus: string | null;
  onOpen: (group: string) => void;
  /** The first controls above the picture. */
  children: ComponentChildren;
}

export function Graph({ of, focus, onOpen, children }: Props): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const zoom = useSignal(1);
  const follow = useSignal(true);
  const running = of.nodes.filter((node) => leading(node) === "running");
  useEffect(() => {
    const width = box.current?.clientWidth ?? 0;
    const fit = width / (of.width + 2 * PAD);
    if (fit < 1) zoom.value = Math.max(ZOOMS[0]!, ZOOMS.findLast((each) => each <= fit) ?? ZOOMS[0]!);
  }, []);
  const wanted = follow.value ? (running.at(-1) ?? null) : null;
  useEffect(() => {
    const center = wanted ?? (focus ? of.nodes.find((node) => node.id === focus) : null);
    if (!center || !box.current) return;
    const { clientWidth, clientHeight } = box.current;
    const scale = zoom.value;
    box.current.scrollTo({
      left: (center.x + center.width / 2) * scale - clientWidth / 2,
      top: (center.y + center.height / 2) * scale - clientHeight / 2,
      behavior: "smooth",
    });
  }, [wanted?.id, zoom.value]);
  const step = (by: number): void => {
    const step = ZOOMS.findIndex((each) => each >= zoom.value - 0.01);
    zoom.value = ZOOMS[Math.min(ZOOMS.length - 1, Math.max(0, step + by))]!;
  };
  const width = of.width + 2 * PAD;
  const height = of.height + 2 * PAD;
  return (
    <div class="graph">
      <header>
        {children}
        <span class="row push">
          <CheckField label="Follow what runs" value={follow.value} onChange={(value) => (follow.value = value)} />
          <Button slim kind="plain" label="Smaller" onClick={() => step(-1)}>
            −
          </Button>
          <span class="small quiet num zoom">{Math.round(zoom.value * 100)} %</span>
          <Button slim kind="plain" label="Larger" onClick={() => step(1)}>
            +
          </Button>
        </span>
      </header>
      <div class="graph-box" ref={box} tabIndex={0} role="region" aria-label="Graph of the workflow">
        <svg
          width={width * zoom.value}
          height={height * zoom.value}
          viewBox={`${-PAD} ${-PAD} ${width} ${height}`}
          role="group"
          aria-label={`Graph: ${count(of.total)} jobs. The table below lists them.`}
        >
          <defs>
            <marker
              id="arrow"
              viewBox="0 0 8 8"
              refX="7"
              refY="4"
              markerWidth="7"
              markerHeight="7"
              orient="auto-start-reverse"
            >
              <path d="M1 1 7 4 1 7" class="arrow" />
            </marker>
          </defs>
          {of.edges.map((edge) => (
            <path key={`${edge.from} ${edge.to}`} class="edge" d={edgePath(edge.path)} marker-end="url(#arrow)" />
          ))}
          {of.nodes.map((node) => (
            <Node key={node.id} node={node} here={node.id === focus} onOpen={onOpen} />
          ))}
        </svg>
      </div>
    </div>
  );
}

function foldWords(node: GraphNode): string {
  const parts = ORDER.flatMap((state) =>
    node.states[state] ? [`${count(node.states[state])} ${state === "ready" ? "queued" : state}`] : [],
  );
  return parts.join(", ");
}

function Node({
  node,
  here,
  onOpen,
}: {
  node: GraphNode;
  here: boolean;
  onOpen: (group: string) => void;
}): JSX.Element {
  const state = leading(node);
  const { x, y, width, height } = node;
  if (node.kind === "joint") {
    return (
      <g class={`node joint t-${toneOf(state)}`}>
        <circle cx={x + width / 2} cy={y + height / 2} r={Math.min(width, height) / 2}>
          <title>{`join: ${state}`}</title>
        </circle>
      </g>
    );
  }
  const fold = node.kind === "fold";
  const room = Math.floor((width - 34) / 7);
  const name = shortName(node.task);
  const title = name.length > room ? `${name.slice(0, room - 1)}…` : name;
  const below = fold ? foldWords(node) : (node.note ?? state);
  const fits = Math.floor((width - 34) / 5.6);
  const inside = (
    <>
      {fold && <rect class="behind" x={x + 4} y={y + 4} width={width} height={height} rx="6" />}
      <rect class="box" x={x} y={y} width={width} height={height} rx="6" />
      <g transform={`translate(${x + 10} ${y + height / 2 - 6})`} class="sign">
        <Sign of={state} />
      </g>
      <text x={x + 28} y={y + height / 2 - 2} class="name">
        {title}
        {fold && <tspan class="times"> × {count(node.jobs)}</tspan>}
      </text>
      <text x={x + 28} y={y + height / 2 + 12} class="note-text">
        {below.length > fits ? `${below.slice(0, fits - 1)}…` : below}
      </text>
      <title>{`${node.task}: ${below}${fold ? ". Unfold" : ""}`}</title>
    </>
  );
  const classes = `node ${node.kind} t-${toneOf(state)}${here ? " here" : ""}${state === "running" ? " running" : ""}`;
  if (!fold) {
    return (
      <a href={href(["jobs", node.id])} class={classes}>
        {inside}
      </a>
    );
  }
  const open = (): void => onOpen(node.id);
  return (
    <g
      class={classes}
      role="button"
      tabIndex={0}
      onClick={open}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        open();
      }}
    >
      {inside}
    </g>
  );
}
