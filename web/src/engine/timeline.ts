// Draws steps on a canvas: host lanes above, the device's rows, tokens and idle gaps below.
import { colour } from "../theme";
import type { Step } from "./feed";

export const causeColours = [
  "--idle-no-work",
  "--idle-result-wait",
  "--idle-host-late",
  "--idle-metadata",
  "--idle-launch",
];

export interface Picture {
  steps: Step[];
  from: number; // us
  to: number;
  chosen?: Step;
}

interface Lane {
  name: string;
  height: number;
}

const kLanes: Lane[] = [
  { name: "plan", height: 12 },
  { name: "launch", height: 12 },
  { name: "process", height: 12 },
  { name: "decode rows", height: 46 },
  { name: "extend tokens", height: 46 },
  { name: "idle", height: 14 },
];
const kGap = 10;
const kThin = 0.75;
const kTop = 24;
export const kLeft = 96;
export const kHeight = kTop + kLanes.reduce((sum, lane) => sum + lane.height + kGap, 0);

const laneTop = (at: number) => kTop + kLanes.slice(0, at).reduce((sum, lane) => sum + lane.height + kGap, 0);

/** The first of 1, 2, 5, 10 ... ms (in us) that gives few enough lines. */
function tickOf(span: number, most: number): number {
  for (let power = 1; ; power *= 10)
    for (const base of [1, 2, 5]) if (span / (base * power) <= most) return base * power;
}

export function timeText(us: number): string {
  if (us >= 1e6) return `${+(us / 1e6).toFixed(2)} s`;
  if (us >= 1e3) return `${+(us / 1e3).toFixed(us < 1e4 ? 2 : 1)} ms`;
  return `${+us.toFixed(1)} µs`;
}

export function kindOf(step: Step): "decode" | "extend" | "mixed" {
  if (step.decodeRows === step.rows) return "decode";
  return step.decodeRows > 0 ? "mixed" : "extend";
}

class Painter {
  private readonly pixelsPerUs: number;
  private readonly colours = new Map<string, string>();

  constructor(
    private readonly context: CanvasRenderingContext2D,
    private readonly width: number,
    private readonly picture: Picture,
  ) {
    this.pixelsPerUs = (width - kLeft) / (picture.to - picture.from);
  }

  paint(): void {
    const { context } = this;
    context.clearRect(0, 0, this.width, kHeight);
    context.font = '500 11px "Geist Variable", sans-serif';
    context.textBaseline = "middle";
    this.frame();
    context.save();
    context.beginPath();
    context.rect(kLeft, 0, this.width - kLeft, kHeight);
    context.clip();
    const most = (of: (step: Step) => number) => this.picture.steps.reduce((max, step) => Math.max(max, of(step)), 0);
    const mostRows = most((s) => s.decodeRows);
    const mostTokens = most((s) => s.tokens - s.decodeRows);
    for (const step of this.picture.steps) this.step(step, mostRows, mostTokens);
    context.restore();
    if (mostRows > 0) this.scale(3, `${mostRows}`);
    if (mostTokens > 0) this.scale(4, `${mostTokens}`);
    if (this.picture.chosen) this.mark(this.picture.chosen);
  }

  private colour(name: string): string {
    let found = this.colours.get(name);
    if (!found) this.colours.set(name, (found = colour(name)));
    return found;
  }

  private x(us: number): number {
    return kLeft + (us - this.picture.from) * this.pixelsPerUs;
  }

  private frame(): void {
    const { context, picture } = this;
    const tick = tickOf(picture.to - picture.from, Math.max(2, (this.width - kLeft) / 110));
    context.strokeStyle = this.colour("--line");
    context.fillStyle = this.colour("--ink-3");
    for (let ago = tick; picture.to - ago > picture.from; ago += tick) {
      const x = Math.round(this.x(picture.to - ago)) + 0.5;
      context.beginPath();
      context.moveTo(x, 16);
      context.lineTo(x, kHeight - kGap);
      context.stroke();
      if (x + 50 < this.width) context.fillText(`−${timeText(ago)}`, x + 4, 8);
    }
    kLanes.forEach((lane, at) => context.fillText(lane.name, 0, laneTop(at) + lane.height / 2));
  }

  private scale(lane: number, text: string): void {
    this.context.fillStyle = this.colour("--ink-3");
    this.context.textAlign = "right";
    this.context.fillText(text, kLeft - 6, laneTop(lane) + 5);
    this.context.textAlign = "left";
  }

  private bar(lane: number, from: number, to: number, share: number, name: string): void {
    const height = kLanes[lane]!.height * share;
    this.context.fillStyle = this.colour(name);
    const x = this.x(from);
    const width = this.x(to) - x;
    const fade = Math.max(0.18, Math.min(1, Math.sqrt(width / kThin))); // thinner than that: less ink, not less width
    this.context.globalAlpha = fade;
    this.context.fillRect(
      x,
      laneTop(lane) + kLanes[lane]!.height - height,
      Math.max(kThin, width - (width > 4 ? 1 : 0)),
      height,
    );
    this.context.globalAlpha = 1;
  }

  private step(step: Step, mostRows: number, mostTokens: number): void {
    this.bar(0, step.plan, step.launch, 1, "--host-plan");
    this.bar(1, step.launch, step.launched, 1, "--host-launch");
    this.bar(2, step.result, step.processed, 1, "--host-process");
    const extend = step.tokens - step.decodeRows;
    if (step.decodeRows > 0)
      this.bar(3, step.begun, step.done, 0.15 + (0.85 * step.decodeRows) / mostRows, "--step-decode");
    if (extend > 0) this.bar(4, step.begun, step.done, 0.15 + (0.85 * extend) / mostTokens, "--step-extend");
    if (step.idle > 0) this.bar(5, step.begun - step.idle, step.begun, 1, causeColours[step.cause]!);
  }

  private mark(step: Step): void {
    const x = this.x(step.begun);
    this.context.strokeStyle = this.colour("--ink");
    this.context.lineWidth = 1.5;
    this.context.strokeRect(x, laneTop(3) - 3, Math.max(3, this.x(step.done) - x), laneTop(5) - laneTop(3) - 4);
    this.context.lineWidth = 1;
  }
}

export function draw(canvas: HTMLCanvasElement, picture: Picture): void {
  const width = canvas.clientWidth;
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(kHeight * ratio);
  const context = canvas.getContext("2d");
  if (!context || width <= kLeft) return;
  context.scale(ratio, ratio);
  new Painter(context, width, picture).paint();
}

/** The step that is at `x` of the canvas, or the nearest. */
export function stepAt(picture: Picture, x: number, width: number): Step | undefined {
  const us = picture.from + ((x - kLeft) / (width - kLeft)) * (picture.to - picture.from);
  const distance = (step: Step) => Math.max(step.begun - us, us - step.done, 0);
  return picture.steps.reduce<Step | undefined>(
    (best, step) => (!best || distance(step) < distance(best) ? step : best),
    undefined,
  );
}
