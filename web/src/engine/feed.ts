// What /debug/steps says, asked four times a second while somebody looks: the last steps, and how the engine stands.
import { signal } from "@preact/signals";
import { getJson } from "../api";

/** Times in us on one clock; begun and done are the device's. */
export interface Step {
  step: number;
  rows: number;
  decodeRows: number;
  tokens: number;
  slab: boolean;
  plan: number;
  launch: number;
  launched: number;
  begun: number;
  done: number;
  result: number;
  processed: number;
  idle: number; // before it
  cause: number; // index of `causes`
}

export interface Percentiles {
  count: number;
  p50: number;
  p90: number;
  p99: number;
}

export interface KvGroup {
  window: number;
  total: number;
  free: number;
  cached: number;
  owned: number;
}

export interface Engine {
  ready: boolean;
  running: number;
  waiting: number;
  computed_tokens: number;
  generated_tokens: number;
  prompt_tokens: number;
  cached_tokens: number;
  preemptions: number;
  kv: KvGroup[];
}

interface Reply {
  next: number;
  now_ns: number;
  fields: string[];
  causes: string[];
  steps: number[][];
  engine: Engine;
  ttft_ms: Percentiles;
  inter_token_ms: Percentiles;
}

/** Columns of equal length, one entry an answer. */
export interface History {
  seconds: number[]; // the server's clock
  decode: number[]; // tokens a second
  prefill: number[];
  running: number[];
  waiting: number[];
}

const kTurnMs = 250;
const kMaxSteps = 20_000;
const kMaxHistory = 240; // a minute
const kRateTurns = 4; // rates are of a second: answers come in bursts

export const latest = signal<Reply | null>(null);
export const history = signal<History>({ seconds: [], decode: [], prefill: [], running: [], waiting: [] });
export const failure = signal("");
export const causes = signal<string[]>([]);
/** Oldest first. Grows in place: `latest` tells when. */
export const steps: Step[] = [];
const lastReplies: Reply[] = [];

function toStep(row: number[], column: Record<string, number>): Step {
  const at = (name: string) => row[column[name]!]!;
  const us = (name: string) => at(`${name}_ns`) / 1e3;
  return {
    step: at("step"),
    rows: at("rows"),
    decodeRows: at("decode_rows"),
    tokens: at("tokens"),
    slab: at("slab") === 1,
    plan: us("plan"),
    launch: us("launch"),
    launched: us("launched"),
    begun: us("begun"),
    done: us("done"),
    result: us("result"),
    processed: us("processed"),
    idle: us("idle"),
    cause: at("idle_cause"),
  };
}

function forget(): void {
  steps.length = 0;
  lastReplies.length = 0;
  latest.value = null;
  history.value = { seconds: [], decode: [], prefill: [], running: [], waiting: [] };
}

function remember(reply: Reply): void {
  const before = lastReplies.at(-kRateTurns) ?? lastReplies[0];
  const column = Object.fromEntries(reply.fields.map((name, at) => [name, at]));
  for (const row of reply.steps) steps.push(toStep(row, column));
  if (steps.length > kMaxSteps) steps.splice(0, steps.length - kMaxSteps);
  causes.value = reply.causes;
  if (before) {
    const passed = (reply.now_ns - before.now_ns) / 1e9;
    const generated = reply.engine.generated_tokens - before.engine.generated_tokens;
    const computed = reply.engine.computed_tokens - before.engine.computed_tokens;
    const add = (list: number[], value: number) => [...list, value].slice(-kMaxHistory);
    const h = history.value;
    history.value = {
      seconds: add(h.seconds, reply.now_ns / 1e9),
      decode: add(h.decode, generated / passed),
      prefill: add(h.prefill, Math.max(0, computed - generated) / passed),
      running: add(h.running, reply.engine.running),
      waiting: add(h.waiting, reply.engine.waiting),
    };
  }
  lastReplies.push({ ...reply, steps: [] });
  if (lastReplies.length > kRateTurns) lastReplies.shift();
  latest.value = reply;
}

async function poll(abort: AbortSignal): Promise<void> {
  const known = latest.value;
  const reply = await getJson<Reply>(`/debug/steps${known ? `?since=${known.next}` : ""}`, abort);
  if (known && reply.now_ns < known.now_ns)
    forget(); // another process
  else remember(reply);
}

/** Polls until the returned function is called; rests while the page is hidden. */
export function watch(): () => void {
  const abort = new AbortController();
  let timer = 0;
  const turn = async () => {
    try {
      if (!document.hidden) await poll(abort.signal);
      failure.value = "";
    } catch (error) {
      if (!abort.signal.aborted) failure.value = (error as Error).message;
    }
    if (!abort.signal.aborted) timer = window.setTimeout(() => void turn(), failure.value ? 4 * kTurnMs : kTurnMs);
  };
  void turn();
  return () => {
    abort.abort();
    clearTimeout(timer);
  };
}
