/** Follows one stream of a job: by server-sent events, and by pages where no events come through.
 *
 * Entries are kept in blocks, so that a page with 10,000 of them draws only the blocks that have changed.
 */
import { signal } from "@preact/signals";
import type { Json, StreamEntry, StreamPage } from "../api";
import { get, part, Problem, urlOf, withQuery } from "../lib/http";

export const BLOCK = 200; // entries of one block
const KEPT = 100; // blocks that are drawn: 20,000 entries
const POLL = 5_000; // ms between two reads without events
const AGAIN = 60_000; // ms until events are tried again
const PATIENCE = 8_000; // ms until a stream that has not opened counts as failed

export type State = "connecting" | "live" | "polling" | "ended" | "paused";

export interface Chunk {
  offset: number;
  step: string;
  value: Json;
  void: boolean;
}

/** A chunk, or the place where the chunks before it became void. */
export type Item = Chunk | { offset: number; step: string; voided: number };

export class Stream {
  readonly state = signal<State>("connecting");
  readonly problem = signal<string | null>(null);
  /** Grows with each change of the entries, at most once for each frame. */
  readonly version = signal(0);
  readonly blocks: Item[][] = [];
  /** The blocks that have changed since they were drawn. */
  readonly stale = new Set<number>();
  count = 0;
  voided = 0;
  dropped = 0;
  private next = 0;
  private source: EventSource | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private failures = 0;
  private pollUntil = 0;
  private round = 0; // grows at each stop, so that a late answer changes nothing
  private drawing = false;

  constructor(
    private readonly id: string,
    private readonly name: string,
  ) {}

  start(): void {
    this.stop();
    if (this.state.value === "ended") return;
    if (this.failures >= 2 && Date.now() < this.pollUntil) return void this.poll(this.round);
    this.state.value = "connecting";
    const source = (this.source = new EventSource(urlOf(this.path())));
    const take = (event: MessageEvent<string>): void => {
      this.failures = 0;
      this.live();
      this.add(JSON.parse(event.data) as StreamEntry);
    };
    source.onopen = () => {
      clearTimeout(this.timer);
      this.live();
    };
    source.addEventListener("chunk", take);
    source.addEventListener("reset", take);
    source.addEventListener("end", () => this.end());
    source.onerror = () => this.fail();
    this.timer = setTimeout(() => this.fail(), PATIENCE);
  }

  stop(): void {
    this.round += 1;
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  pause(): void {
    this.stop();
    if (this.state.value !== "ended") this.state.value = "paused";
  }

  private path(): string {
    return withQuery(`jobs/${part(this.id)}/streams/${part(this.name)}`, { from: this.next });
  }

  private live(): void {
    this.state.value = "live";
    this.problem.value = null;
  }

  private end(): void {
    this.stop();
    this.state.value = "ended";
    this.problem.value = null;
  }

  private fail(): void {
    this.stop();
    this.failures += 1;
    if (this.failures === 2) this.pollUntil = Date.now() + AGAIN;
    if (this.failures >= 2) void this.poll(this.round);
    else this.timer = setTimeout(() => this.start(), 1_000);
  }

  private async poll(round: number): Promise<void> {
    try {
      let page: StreamPage;
      do {
        page = await get<StreamPage>(this.path());
        if (round !== this.round) return;
        page.entries.forEach((entry) => this.add(entry));
        this.state.value = "polling";
        this.problem.value = null;
      } while (page.entries.length && !page.ended);
      if (page.ended) return this.end();
    } catch (error) {
      if (round !== this.round) return;
      this.problem.value = error instanceof Problem ? error.message : String(error);
    }
    this.timer = setTimeout(() => {
      if (Date.now() >= this.pollUntil) this.failures = 1;
      this.start();
    }, POLL);
  }

  private add(entry: StreamEntry): void {
    if (entry.offset < this.next) return; // sent again after the connection was cut
    this.next = entry.offset + 1;
    if (entry.to === undefined) {
      this.put({ offset: entry.offset, step: entry.step, value: entry.value as Json, void: false });
      this.count += 1;
    } else this.put({ offset: entry.offset, step: entry.step, voided: this.void(entry.step, entry.to) });
    this.draw();
  }

  private put(item: Item): void {
    let last = this.blocks.at(-1);
    if (!last || last.length >= BLOCK) {
      this.blocks.push((last = []));
      if (this.blocks.length > KEPT) {
        this.dropped += this.blocks[this.blocks.length - KEPT - 1]!.length;
        this.blocks[this.blocks.length - KEPT - 1] = [];
      }
    }
    last.push(item);
    this.stale.add(this.blocks.length - 1);
  }

  /** Make the chunks of this step from this offset on void -> how many there were. */
  private void(step: string, to: number): number {
    let number = 0;
    for (let index = this.blocks.length - 1; index >= 0; index -= 1) {
      const block = this.blocks[index]!;
      for (const item of block) {
        if ("value" in item && item.offset >= to && item.step === step && !item.void) {
          item.void = true;
          number += 1;
          this.stale.add(index);
        }
      }
      if (block.length && block[0]!.offset < to) break;
    }
    this.voided += number;
    return number;
  }

  private draw(): void {
    if (this.drawing) return;
    this.drawing = true;
    setTimeout(() => {
      this.drawing = false;
      this.version.value += 1;
    }, 30);
  }
}
