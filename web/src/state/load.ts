// The load of the server over the last minutes, from /metrics. Sampled while somebody looks.
import { signal } from "@preact/signals";

import { ApiError, call } from "../api/http.ts";
import { type Histogram, type Metrics, histogram, parse, quantile, since, total } from "../api/prometheus.ts";
import { needsKey } from "./server.ts";
import { readStatus } from "./status.ts";

export interface LoadPoint {
  timeMs: number;
  running: number | null;
  waiting: number | null;
  /** 0 to 1. */
  kvUsage: number | null;
  generatedPerS: number | null;
  promptPerS: number | null;
  ttftP50S: number | null;
  ttftP95S: number | null;
  itlP50S: number | null;
  itlP95S: number | null;
}

export interface Totals {
  generated: number | null;
  prompt: number | null;
  finished: number | null;
  preemptions: number | null;
  /** Share of prompt tokens that were in the prefix cache. */
  hitRate: number | null;
}

export type Source = "unknown" | "live" | "missing" | "unreachable" | "locked";

export const WINDOW_MS = 5 * 60_000;
export const points = signal<LoadPoint[]>([]);
export const totals = signal<Totals | null>(null);
export const source = signal<Source>("unknown");

const EVERY_MS = 1000;
/** Percentiles are those of the last few seconds, since a second alone has few values. */
const QUANTILE_MS = 10_000;
/** And rates those of so long, since prompts come in pieces. */
const RATE_MS = 4_000;

interface Reading {
  timeMs: number;
  generated: number | null;
  prompt: number | null;
  ttft: Histogram | null;
  itl: Histogram | null;
}

let readings: Reading[] = [];

/** Reads every second until told to stop. */
export function watchLoad(): () => void {
  let isStopped = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const tick = async () => {
    if (!document.hidden) await read();
    if (!isStopped) timer = setTimeout(() => void tick(), source.value === "live" ? EVERY_MS : 3 * EVERY_MS);
  };
  void tick();
  return () => {
    isStopped = true;
    clearTimeout(timer);
  };
}

async function read(): Promise<void> {
  try {
    const response = await call("/metrics");
    take(parse(await response.text()), Date.now());
    void readStatus();
    source.value = "live";
  } catch (error) {
    const status = error instanceof ApiError ? error.failure.status : 0;
    if (status === 401) needsKey.value = true;
    source.value = status === 404 ? "missing" : status === 401 ? "locked" : "unreachable";
  }
}

function take(metrics: Metrics, timeMs: number): void {
  const reading: Reading = {
    timeMs,
    generated: total(metrics, "vllm:generation_tokens_total"),
    prompt: total(metrics, "vllm:prompt_tokens_total"),
    ttft: histogram(metrics, "vllm:time_to_first_token_seconds"),
    itl: histogram(metrics, "vllm:inter_token_latency_seconds"),
  };
  const before = readings.find((one) => one.timeMs >= timeMs - RATE_MS - 500) ?? readings.at(-1);
  const base = readings.find((one) => one.timeMs >= timeMs - QUANTILE_MS);
  readings = [...readings.filter((one) => one.timeMs >= timeMs - 2 * QUANTILE_MS), reading];
  const quantileOf = (kind: "ttft" | "itl", share: number) => {
    const now = reading[kind];
    return now && base ? quantile(since(now, base[kind]), share) : null;
  };
  const point: LoadPoint = {
    timeMs,
    running: total(metrics, "vllm:num_requests_running"),
    waiting: total(metrics, "vllm:num_requests_waiting"),
    kvUsage: total(metrics, "vllm:kv_cache_usage_perc"),
    generatedPerS: rate(before, reading, "generated"),
    promptPerS: rate(before, reading, "prompt"),
    ttftP50S: quantileOf("ttft", 0.5),
    ttftP95S: quantileOf("ttft", 0.95),
    itlP50S: quantileOf("itl", 0.5),
    itlP95S: quantileOf("itl", 0.95),
  };
  points.value = [...points.peek().filter((one) => one.timeMs >= timeMs - WINDOW_MS), point];
  totals.value = {
    generated: reading.generated,
    prompt: reading.prompt,
    finished: total(metrics, "vllm:request_success_total"),
    preemptions: total(metrics, "vllm:num_preemptions_total"),
    hitRate: hitRate(metrics),
  };
}

/** null for the first reading, after a pause, and when the server has begun to count anew. */
function rate(before: Reading | undefined, now: Reading, kind: "generated" | "prompt"): number | null {
  const [from, to] = [before?.[kind] ?? null, now[kind]];
  if (!before || from === null || to === null || to < from) return null;
  const seconds = (now.timeMs - before.timeMs) / 1000;
  return seconds > 0 && seconds < 10 ? (to - from) / seconds : null;
}

function hitRate(metrics: Metrics): number | null {
  const queries = total(metrics, "vllm:prefix_cache_queries_total");
  const hits = total(metrics, "vllm:prefix_cache_hits_total");
  return queries && hits !== null ? hits / queries : null;
}
