// What is known of the server: whether it is ready, and its models.
import { computed, signal } from "@preact/signals";

import { ApiError, call, url } from "../api/http.ts";
import { lastModel } from "./preferences.ts";

/** The `status` of /health; "unreachable" and "unknown" are this page's own words. */
export type Health = "unknown" | "ok" | "loading" | "restarting" | "draining" | "failed" | "closed" | "unreachable";

export interface Model {
  id: string;
  maxModelLen: number | null;
}

export const health = signal<Health>("unknown");
export const isReady = computed(() => health.value === "ok");
/** Whether waiting leads to nothing: the server answers, and says why not. */
const isHopeless = computed(() => ["failed", "draining", "closed"].includes(health.value));
export const models = signal<Model[]>([]);
/** Whether the key is missing or wrong. */
export const needsKey = signal(false);
export const model = computed(
  () => models.value.find(({ id }) => id === lastModel.value)?.id ?? models.value[0]?.id ?? null,
);

const SLOW_MS = 15_000;
const QUICK_MS = 1_000;
const waiting = new Set<() => void>();
let timer: ReturnType<typeof setTimeout> | undefined;

/** Looks now, and then every while: often as long as the server isn't ready. */
export async function watch(): Promise<void> {
  clearTimeout(timer);
  const was = health.value;
  health.value = await look();
  const isNews = isReady.value && was !== "ok";
  if (isNews || (models.value.length === 0 && health.value !== "unreachable")) await loadModels();
  if (isReady.value || isHopeless.value) {
    for (const go of waiting) go();
    waiting.clear();
  }
  clearTimeout(timer);
  timer = setTimeout(() => void watch(), isReady.value || document.hidden ? SLOW_MS : QUICK_MS);
}

async function look(): Promise<Health> {
  let response: Response;
  try {
    response = await fetch(url("/health"), { cache: "no-store" });
  } catch {
    return "unreachable";
  }
  if (response.ok) return "ok";
  try {
    const { status } = (await response.json()) as { status?: Health };
    return status ?? "unreachable";
  } catch {
    return "unreachable";
  }
}

export async function loadModels(): Promise<void> {
  try {
    const response = await call("/v1/models");
    const { data } = (await response.json()) as { data: { id: string; max_model_len?: number | null }[] };
    models.value = data.map(({ id, max_model_len: length }) => ({ id, maxModelLen: length ?? null }));
    needsKey.value = false;
  } catch (error) {
    if (error instanceof ApiError && error.failure.status === 401) needsKey.value = true;
  }
}

/** Until the server takes requests, or will never. Rejects when the signal says so. */
export function untilReady(signal: AbortSignal): Promise<void> {
  if (isReady.value || isHopeless.value) return Promise.resolve();
  void watch();
  return new Promise((resolve, reject) => {
    waiting.add(resolve);
    signal.addEventListener("abort", () => {
      waiting.delete(resolve);
      reject(new DOMException("Stopped", "AbortError"));
    });
  });
}
