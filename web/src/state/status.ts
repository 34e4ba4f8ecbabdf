// GET /v1/status: which requests are open, and memory. Servers without it are no poorer for charts.
import { signal } from "@preact/signals";

import { call } from "../api/http.ts";

export interface OpenRequest {
  request_id: string;
  stage: string;
  age_s: number;
  prompt_tokens: number;
  cached_tokens: number;
  output_tokens: number;
}

export interface Status {
  version?: string;
  model?: string;
  uptime_s?: number;
  engine?: { restarts?: number; backend?: string | null; weights?: string | null; max_model_len?: number | null };
  memory?: { kv_budget_bytes?: number; kv_used_bytes?: number; kv_kept_bytes?: number; active_bytes?: number | null };
  rows?: OpenRequest[];
}

/** null where the server tells none. */
export const status = signal<Status | null>(null);

export async function readStatus(): Promise<void> {
  try {
    status.value = (await (await call("/v1/status")).json()) as Status;
  } catch {
    status.value = null;
  }
}
