// Curves over the last minute, by uPlot.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { colour, dark } from "../theme";

export interface Curve {
  name: string;
  colour: string; // a custom property
  values: number[];
}

const kSpanSeconds = 60;
const kHeight = 168;

function options(curves: Curve[], width: number): uPlot.Options {
  const ink = colour("--ink-3");
  const line = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: ink, font: '11px "Geist Variable", sans-serif', ticks: { show: false } };
  return {
    width,
    height: kHeight,
    legend: { show: false },
    cursor: { show: false },
    padding: [10, 18, 0, 0],
    scales: {
      x: { time: false, range: (_plot, _min, max) => [max - kSpanSeconds, max] },
      y: { range: (_plot, _min, max) => [0, Math.max(4, max * 1.1)] },
    },
    axes: [
      {
        ...axis,
        grid: { show: false },
        size: 24,
        splits: (_plot, _axis, min, max) => [min, min + 15, min + 30, min + 45, max],
        values: (_plot, at) => at.map((s) => (s === at.at(-1) ? "now" : `−${Math.round(at.at(-1)! - s)} s`)),
      },
      { ...axis, grid: line, size: 46, space: 40 },
    ],
    series: [
      {},
      ...curves.map(({ name, colour: property }) => {
        const stroke = colour(property);
        return {
          label: name,
          stroke,
          width: 1.75,
          points: { show: false },
          fill: stroke.replace("rgb(", "rgba(").replace(")", ", 0.1)"),
        };
      }),
    ],
  };
}

export function Chart({
  title,
  unit,
  seconds,
  curves,
}: {
  title: string;
  unit: string;
  seconds: number[];
  curves: Curve[];
}) {
  const holder = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const data = [seconds, ...curves.map((curve) => curve.values)] as uPlot.AlignedData;
  useEffect(() => {
    const element = holder.current!;
    plot.current = new uPlot(options(curves, element.clientWidth), data, element);
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: kHeight }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
    };
  }, [dark.value]);
  useEffect(() => plot.current?.setData(data), [seconds]);
  const now = (values: number[]) => `${Math.round(values.at(-1) ?? 0)}`;
  return (
    <section class="card" aria-label={title}>
      <header>
        <h2>{title}</h2>
        <ul class="legend">
          {curves.map((curve) => (
            <li key={curve.name}>
              <i style={{ background: `var(${curve.colour})` }} />
              {curve.name} <b>{now(curve.values)}</b> {unit}
            </li>
          ))}
        </ul>
      </header>
      <div ref={holder} aria-hidden="true" />
    </section>
  );
}
