// The live view of the engine: figures, the timeline of steps, curves, the KV cache, and a trace to keep.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { request } from "../api";
import { Chart } from "./charts";
import { failure, history, latest, watch, type KvGroup, type Percentiles } from "./feed";
import { Timeline } from "./timeline_view";

function Tile({
  name,
  value,
  unit,
  children,
}: {
  name: string;
  value: string;
  unit?: string;
  children?: ComponentChildren;
}) {
  return (
    <div class="tile">
      <dt>{name}</dt>
      <dd>
        <span class="value">{value}</span>
        {unit && <span class="unit"> {unit}</span>}
        <span class="below">{children}</span>
      </dd>
    </div>
  );
}

function ms(value: number): string {
  return value >= 1000 ? (value / 1000).toFixed(2) : value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

function Latency({ name, of }: { name: string; of?: Percentiles }) {
  if (!of || of.count === 0)
    return (
      <Tile name={name} value="–">
        no samples this minute
      </Tile>
    );
  const unit = of.p50 >= 1000 ? "s" : "ms";
  const other = (value: number) => `${ms(value)}${value >= 1000 ? " s" : ""}`;
  return (
    <Tile name={name} value={ms(of.p50)} unit={unit}>
      p90 {other(of.p90)} · p99 {other(of.p99)}
    </Tile>
  );
}

function Tiles() {
  const now = latest.value;
  const h = history.value;
  const rate = (value = 0) => (value >= 100 || value === 0 ? value.toFixed(0) : value.toFixed(1));
  return (
    <dl class="tiles">
      <Tile name="Generated" value={rate(h.decode.at(-1))} unit="tokens/s">
        {now ? `${now.engine.generated_tokens.toLocaleString("en")} so far` : ""}
      </Tile>
      <Tile name="Prefill" value={rate(h.prefill.at(-1))} unit="tokens/s">
        {now ? `${now.engine.cached_tokens.toLocaleString("en")} taken from the cache` : ""}
      </Tile>
      <Latency name="First token" of={now?.ttft_ms} />
      <Latency name="Between tokens" of={now?.inter_token_ms} />
      <Tile name="Running" value={`${now?.engine.running ?? 0}`}>
        requests
      </Tile>
      <Tile name="Queue" value={`${now?.engine.waiting ?? 0}`}>
        {now?.engine.preemptions ? `${now.engine.preemptions} preempted so far` : "waiting"}
      </Tile>
    </dl>
  );
}

function KvMeter({ group }: { group: KvGroup }) {
  const share = (blocks: number) => `${(100 * blocks) / Math.max(1, group.total)}%`;
  const used = (100 * group.owned) / Math.max(1, group.total);
  const name = group.window ? `Window of ${group.window.toLocaleString("en")}` : "Full attention";
  return (
    <li>
      <div class="kv-head">
        <span>{name}</span>
        <b>{used.toFixed(used < 10 ? 1 : 0)} %</b>
      </div>
      <div
        class="kv-bar"
        role="meter"
        aria-label={name}
        aria-valuemin={0}
        aria-valuemax={group.total}
        aria-valuenow={group.owned}
        aria-valuetext={`${group.owned} of ${group.total} blocks in use, ${group.cached} cached`}
      >
        <i class="owned" style={{ width: share(group.owned) }} />
        <i class="cached" style={{ width: share(group.cached) }} />
      </div>
      <p class="quiet">
        {group.owned.toLocaleString("en")} in use · {group.cached.toLocaleString("en")} cached · of{" "}
        {group.total.toLocaleString("en")} blocks
      </p>
    </li>
  );
}

function KvCache() {
  const groups = latest.value?.engine.kv ?? [];
  return (
    <section class="card" aria-label="KV cache">
      <header>
        <h2>KV cache</h2>
      </header>
      {groups.length > 0 ? (
        <ul class="kv">
          {groups.map((group, at) => (
            <KvMeter key={at} group={group} />
          ))}
        </ul>
      ) : (
        <p class="quiet">The model is not loaded yet.</p>
      )}
    </section>
  );
}

const recording = signal(false);
const recordError = signal("");

async function record(seconds: number): Promise<void> {
  recording.value = true;
  recordError.value = "";
  try {
    const blob = await (await request(`/debug/trace?seconds=${seconds}`)).blob();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = "tailrace-trace.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  } catch (error) {
    recordError.value = (error as Error).message;
  }
  recording.value = false;
}

function Recorder() {
  const submit = (event: Event) => {
    event.preventDefault();
    void record(Number(new FormData(event.currentTarget as HTMLFormElement).get("seconds")));
  };
  return (
    <section class="card" aria-label="Trace">
      <header>
        <h2>Trace</h2>
      </header>
      <p class="quiet">Every step of the next seconds as a file that Perfetto and chrome://tracing open.</p>
      <form class="recorder" onSubmit={submit}>
        <select name="seconds" aria-label="Seconds">
          {[1, 5, 15, 60].map((seconds) => (
            <option key={seconds} value={seconds}>
              {seconds} s
            </option>
          ))}
        </select>
        <button type="submit" class="primary" disabled={recording.value}>
          {recording.value ? "Recording…" : "Record"}
        </button>
      </form>
      {recordError.value && (
        <p class="error" role="alert">
          {recordError.value}
        </p>
      )}
    </section>
  );
}

export function EngineView() {
  useEffect(watch, []);
  const h = history.value;
  return (
    <div class="engine">
      <h1 class="hidden">Engine</h1>
      {failure.value && (
        <p class="error" role="alert">
          {failure.value}
        </p>
      )}
      <Tiles />
      <Timeline />
      <div class="charts">
        <Chart
          title="Tokens"
          unit="/s"
          seconds={h.seconds}
          curves={[
            { name: "generated", colour: "--step-decode", values: h.decode },
            { name: "prefill", colour: "--step-extend", values: h.prefill },
          ]}
        />
        <Chart
          title="Requests"
          unit=""
          seconds={h.seconds}
          curves={[
            { name: "running", colour: "--step-decode", values: h.running },
            { name: "waiting", colour: "--idle-host-late", values: h.waiting },
          ]}
        />
        <KvCache />
        <Recorder />
      </div>
    </div>
  );
}
