// The text format of /metrics, as far as it is needed here, and quantiles of its histograms.

export interface Sample {
  labels: Record<string, string>;
  value: number;
}

/** Name of a series -> its samples. */
export type Metrics = Map<string, Sample[]>;

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES: Record<string, string> = { "\\\\": "\\", '\\"': '"', "\\n": "\n" };

export function parse(text: string): Metrics {
  const metrics: Metrics = new Map();
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : LINE.exec(line);
    if (!match?.[1] || !match[3]) continue;
    const labels: Record<string, string> = {};
    for (const [, name = "", value = ""] of (match[2] ?? "").matchAll(LABEL))
      labels[name] = value.replace(/\\[\\"n]/g, (escape) => ESCAPES[escape] ?? escape);
    const samples = metrics.get(match[1]) ?? [];
    samples.push({ labels, value: numberOf(match[3]) });
    metrics.set(match[1], samples);
  }
  return metrics;
}

function numberOf(text: string): number {
  if (text === "+Inf" || text === "Inf") return Number.POSITIVE_INFINITY;
  return text === "-Inf" ? Number.NEGATIVE_INFINITY : Number(text);
}

/** The sum over all label sets; null where there is no such series. */
export function total(metrics: Metrics, name: string): number | null {
  const samples = metrics.get(name);
  return samples ? samples.reduce((sum, sample) => sum + sample.value, 0) : null;
}

/** Upper bounds of the buckets, and how many values lie at or below each. */
export interface Histogram {
  bounds: number[];
  counts: number[];
}

export function histogram(metrics: Metrics, name: string): Histogram | null {
  const counts = new Map<number, number>();
  for (const { labels, value } of metrics.get(`${name}_bucket`) ?? []) {
    const bound = numberOf(labels.le ?? "+Inf");
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  if (counts.size === 0) return null;
  const bounds = [...counts.keys()].sort((a, b) => a - b);
  return { bounds, counts: bounds.map((bound) => counts.get(bound) ?? 0) };
}

/** What came since `before`. A server that was started again counts from nothing. */
export function since(now: Histogram, before: Histogram | null): Histogram {
  if (before?.bounds.length !== now.bounds.length || (before.counts.at(-1) ?? 0) > (now.counts.at(-1) ?? 0)) return now;
  return { bounds: now.bounds, counts: now.counts.map((count, i) => count - (before.counts[i] ?? 0)) };
}

/** As Prometheus' histogram_quantile: linear within a bucket. null without values. */
export function quantile({ bounds, counts }: Histogram, share: number): number | null {
  const all = counts.at(-1) ?? 0;
  if (all <= 0) return null;
  const rank = share * all;
  const index = counts.findIndex((count) => count >= rank);
  const upper = bounds[index] ?? Number.POSITIVE_INFINITY;
  const lower = index > 0 ? (bounds[index - 1] ?? 0) : 0;
  if (!Number.isFinite(upper)) return lower;
  const below = index > 0 ? (counts[index - 1] ?? 0) : 0;
  const inside = (counts[index] ?? 0) - below;
  return inside > 0 ? lower + ((upper - lower) * (rank - below)) / inside : upper;
}
