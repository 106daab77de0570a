// The timeline with its controls: how long a time it shows, holding still, the step under the pointer or chosen by key.
import { computed, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { dark } from "../theme";
import { causes, latest, steps, type Step } from "./feed";
import { causeColours, draw, kHeight, kindOf, kLeft, stepAt, timeText, type Picture } from "./timeline";

const spans = [
  { us: 100e3, name: "100 ms" },
  { us: 500e3, name: "500 ms" },
  { us: 2e6, name: "2 s" },
  { us: 10e6, name: "10 s" },
];
const span = signal(2e6);
const held = signal<Step[] | null>(null);
const chosen = signal<Step | undefined>(undefined);

function within(all: Step[], from: number): Step[] {
  let low = 0;
  for (let high = all.length; low < high;) {
    const middle = (low + high) >> 1;
    if (all[middle]!.done < from) low = middle + 1;
    else high = middle;
  }
  return all.slice(low);
}

/** Ends with the last step, so that what happened stays in view when nothing happens any more. */
const picture = computed<Picture | null>(() => {
  void latest.value;
  const all = held.value ?? steps;
  const last = all.at(-1);
  if (!last) return null;
  const to = Math.max(last.done, last.processed);
  return { steps: within(all, to - span.value), from: to - span.value, to, chosen: chosen.value };
});

function describe(step: Step): string {
  const extend = step.tokens - step.decodeRows;
  const parts = [`step ${step.step}`, kindOf(step)];
  if (step.decodeRows > 0) parts.push(`${step.decodeRows} decode ${step.decodeRows > 1 ? "rows" : "row"}`);
  if (extend > 0) parts.push(`${extend} prompt tokens in ${step.rows - step.decodeRows}`);
  parts.push(`${timeText(step.done - step.begun)} on the device`);
  if (step.idle > 0)
    parts.push(`${timeText(step.idle)} idle before (${(causes.value[step.cause] ?? "").replace("_", " ")})`);
  if (step.slab) parts.push("metadata sent");
  return parts.join(" · ");
}

function choose(by: number): void {
  held.value ??= [...steps];
  const shown = picture.value?.steps ?? [];
  const at = chosen.value ? shown.indexOf(chosen.value) : shown.length;
  chosen.value = shown[Math.min(Math.max(at + by, 0), shown.length - 1)];
}

function onKeyDown(event: KeyboardEvent): void {
  const moves: Record<string, number> = {
    ArrowLeft: -1,
    ArrowRight: 1,
    PageUp: -20,
    PageDown: 20,
    Home: -1e9,
    End: 1e9,
  };
  const by = moves[event.key];
  if (event.key === "Escape") release();
  if (by === undefined) return;
  event.preventDefault();
  choose(by);
}

function release(): void {
  held.value = null;
  chosen.value = undefined;
}

function Shares() {
  const shown = picture.value;
  if (!shown) return null;
  const total = shown.to - shown.from;
  const within = (from: number, to: number) => Math.max(0, Math.min(to, shown.to) - Math.max(from, shown.from));
  const busy = shown.steps.reduce((sum, s) => sum + within(s.begun, s.done), 0);
  const idle = causes.value.map((_, cause) =>
    shown.steps.reduce((sum, s) => sum + (s.cause === cause ? within(s.begun - s.idle, s.begun) : 0), 0),
  );
  const percent = (us: number) => (us > 0 && us / total < 0.001 ? "< 0.1 %" : `${((100 * us) / total).toFixed(1)} %`);
  return (
    <ul class="shares" aria-label="The device's time">
      <li>
        <i style={{ background: "var(--step-decode)" }} />
        busy <b>{percent(busy)}</b>
      </li>
      {causes.value.map((name, cause) => (
        <li key={name}>
          <i style={{ background: `var(${causeColours[cause]})` }} />
          {name.replace("_", " ")} <b>{percent(idle[cause]!)}</b>
        </li>
      ))}
    </ul>
  );
}

function Controls() {
  return (
    <div class="timeline-controls">
      <div class="segments" role="radiogroup" aria-label="Time shown">
        {spans.map(({ us, name }) => (
          <label key={us}>
            <input type="radio" name="span" checked={span.value === us} onChange={() => (span.value = us)} />
            <span>{name}</span>
          </label>
        ))}
      </div>
      <button
        type="button"
        class="quiet-button"
        aria-pressed={held.value !== null}
        onClick={() => (held.value ? release() : (held.value = [...steps]))}
      >
        Hold
      </button>
    </div>
  );
}

export function Timeline() {
  const canvas = useRef<HTMLCanvasElement>(null);
  const shown = picture.value;
  const drawNow = () => {
    if (canvas.current && picture.value) draw(canvas.current, picture.value);
  };
  useEffect(drawNow, [shown, dark.value]);
  useEffect(() => {
    const observer = new ResizeObserver(drawNow);
    if (canvas.current) observer.observe(canvas.current);
    return () => observer.disconnect();
  }, [shown === null]);
  const onMove = (event: PointerEvent) => {
    if (!shown || event.offsetX < kLeft) return;
    chosen.value = stepAt(shown, event.offsetX, canvas.current!.clientWidth);
  };
  const last = shown?.steps.at(-1);
  const step = shown?.steps.find((s) => s.step === chosen.value?.step);
  return (
    <section class="card timeline" aria-labelledby="timeline-title">
      <header>
        <h2 id="timeline-title">Steps</h2>
        {shown && <Controls />}
      </header>
      {shown ? (
        <>
          <canvas
            ref={canvas}
            style={{ height: `${kHeight}px` }}
            tabIndex={0}
            role="slider"
            aria-label="Step"
            aria-valuemin={shown.steps[0]?.step ?? 0}
            aria-valuemax={last?.step ?? 0}
            aria-valuenow={(step ?? last)?.step ?? 0}
            aria-valuetext={step ? describe(step) : last && describe(last)}
            onKeyDown={onKeyDown}
            onPointerMove={onMove}
            onPointerLeave={() => {
              if (!held.value) chosen.value = undefined;
            }}
          />
          <p class="step-text">
            {step ? describe(step) : <span class="quiet">Point at a step, or choose one with the arrow keys.</span>}
          </p>
          <Shares />
        </>
      ) : (
        <div class="empty-steps">
          <p>No steps yet.</p>
          <p class="quiet">
            Each forward pass of the model is a step. <a href="#chat">Ask something</a>, and they show here.
          </p>
        </div>
      )}
    </section>
  );
}
