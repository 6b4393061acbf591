/** Workflows and their graphs. */
import type { Scanned, State } from "./common";

export interface Workflow {
  id: string;
  task: string;
  queue: string;
  state: State;
  created_at: number;
  ended_at: number | null;
  jobs: number;
  done: number;
  failed: number;
  running: number;
  capped: boolean;
}

export interface Workflows extends Scanned {
  workflows: Workflow[];
}

export interface GraphNode {
  id: string;
  task: string;
  state: State;
  x: number;
  y: number;
  width: number;
  height: number;
  kind: "job" | "joint" | "fold";
  jobs: number;
  states: Partial<Record<State, number>>;
  note: string | null;
}

export interface Graph {
  width: number;
  height: number;
  nodes: GraphNode[];
  edges: { from: string; to: string; path: [number, number][] }[];
  total: number;
  shown: number;
  capped: boolean;
}
