// A line chart over time, drawn as SVG in the size that it has on the page.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { type LoadPoint, WINDOW_MS } from "../state/load.ts";
import { agoTicks, niceTop } from "./scale.ts";

export interface Series {
  name: string;
  colour: 1 | 2 | 3;
  of: (point: LoadPoint) => number | null;
  isArea?: boolean;
}

interface Props {
  title: string;
  points: LoadPoint[];
  series: Series[];
  format: (value: number) => string;
  /** For the scale, where that is to be shorter. */
  tick?: (value: number) => string;
  /** The scale reaches so far at least. */
  smallestTop: number;
}

const HEIGHT = 168;
const LEFT = 56; // for the numbers of the scale
const RIGHT = 8;
/** So much time is shown at least; as more is known, the axis grows with it. */
const SHORTEST_MS = 60_000;
const BOTTOM = 22;
const TOP = 10;
/** After a gap this long the line begins anew. */
const GAP_MS = 10_000;

export function Chart({ title, points, series, format, tick, smallestTop }: Props): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(480);
  const [hoverX, setHoverX] = useState<number | null>(null);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => entry && setWidth(entry.contentRect.width));
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);

  const end = points.at(-1)?.timeMs ?? 0;
  const spanMs = Math.min(WINDOW_MS, Math.max(SHORTEST_MS, end - (points[0]?.timeMs ?? end)));
  const values = points.flatMap((point) => series.map(({ of }) => of(point) ?? 0));
  const top = niceTop(Math.max(smallestTop, ...values));
  const x = (timeMs: number) => width - RIGHT - ((end - timeMs) / spanMs) * (width - LEFT - RIGHT);
  const y = (value: number) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  const hovered = hoverX === null ? points.at(-1) : nearest(points, hoverX, x);
  const summary = series.map(({ name, of }) => `${name} ${textOf(points.at(-1), of, format)}`).join(", ");

  return (
    <section class="card chart" aria-label={title}>
      <header>
        <h2>{title}</h2>
        <ul class="legend">
          {series.map(({ name, colour, of }) => (
            <li key={name}>
              <i class={`dot c${colour}`} /> {name} <b>{textOf(hovered, of, format)}</b>
            </li>
          ))}
        </ul>
      </header>
      <div
        ref={box}
        class="plot"
        onPointerMove={(event) => setHoverX(event.clientX - event.currentTarget.getBoundingClientRect().left)}
        onPointerLeave={() => setHoverX(null)}
      >
        <svg width={width} height={HEIGHT} role="img" aria-label={`${title}: ${summary}`}>
          {[0, 0.5, 1].map((share) => (
            <g key={share}>
              <line class="grid" x1={LEFT} x2={width - RIGHT} y1={y(share * top)} y2={y(share * top)} />
              <text class="tick" x={LEFT - 8} y={y(share * top) + 4} text-anchor="end">
                {share === 0 ? "0" : (tick ?? format)(share * top)}
              </text>
            </g>
          ))}
          {agoTicks(spanMs / 1000).map(([ago, label]) => (
            <text
              key={ago}
              class="tick"
              x={x(end - ago * 1000)}
              y={HEIGHT - 5}
              text-anchor={ago === 0 ? "end" : x(end - ago * 1000) < LEFT + 20 ? "start" : "middle"}
            >
              {label}
            </text>
          ))}
          {series.map(({ name, colour, of, isArea }) =>
            runs(points, of).map((run, i) => {
              const line = run.map(([timeMs, value]) => `${x(timeMs).toFixed(1)},${y(value).toFixed(1)}`).join("L");
              const from = x(run[0]?.[0] ?? end).toFixed(1);
              const to = x(run.at(-1)?.[0] ?? end).toFixed(1);
              return (
                <g key={`${name}${i}`}>
                  {isArea && <path class={`area c${colour}`} d={`M${from},${y(0)}L${line}L${to},${y(0)}Z`} />}
                  <path class={`line c${colour}`} d={`M${line}`} />
                </g>
              );
            }),
          )}
          {hoverX !== null && hovered && (
            <line class="cursor" x1={x(hovered.timeMs)} x2={x(hovered.timeMs)} y1={TOP} y2={HEIGHT - BOTTOM} />
          )}
        </svg>
      </div>
    </section>
  );
}

function textOf(point: LoadPoint | undefined, of: Series["of"], format: Props["format"]): string {
  const value = point ? of(point) : null;
  return value === null ? "–" : format(value);
}

/** Time and value, cut where there are none. */
function runs(points: LoadPoint[], of: Series["of"]): [number, number][][] {
  const result: [number, number][][] = [];
  let last = Number.NEGATIVE_INFINITY;
  for (const point of points) {
    const value = of(point);
    if (value === null) continue;
    if (point.timeMs - last > GAP_MS) result.push([]);
    result.at(-1)?.push([point.timeMs, value]);
    last = point.timeMs;
  }
  return result;
}

function nearest(points: LoadPoint[], at: number, x: (timeMs: number) => number): LoadPoint | undefined {
  let best: LoadPoint | undefined;
  for (const point of points) if (!best || Math.abs(x(point.timeMs) - at) < Math.abs(x(best.timeMs) - at)) best = point;
  return best;
}
