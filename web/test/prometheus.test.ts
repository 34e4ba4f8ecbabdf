import assert from "node:assert/strict";
import { test } from "node:test";

import { histogram, parse, quantile, since, total } from "../src/api/prometheus.ts";
import { agoTicks, niceTop } from "../src/load/scale.ts";

const TEXT = `# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a\\"b,c}",engine="0"} 3.0
vllm:num_requests_running{model_name="d"} 4 1700000000000
plain 1e3
vllm:ttft_bucket{le="0.1"} 1
vllm:ttft_bucket{le="1.0"} 3
vllm:ttft_bucket{le="+Inf"} 4
vllm:ttft_count 4
`;

test("samples are summed over their labels", () => {
  const metrics = parse(TEXT);
  assert.equal(total(metrics, "vllm:num_requests_running"), 7);
  assert.equal(total(metrics, "plain"), 1000);
  assert.equal(total(metrics, "nothing"), null);
  assert.equal(metrics.get("vllm:num_requests_running")?.[0]?.labels.model_name, 'a"b,c}');
});

test("quantiles are those of Prometheus", () => {
  const found = histogram(parse(TEXT), "vllm:ttft");
  assert(found);
  assert.equal(quantile(found, 0.25), 0.1);
  assert.equal(quantile(found, 0.5), 0.1 + 0.9 / 2);
  assert.equal(quantile(found, 0.99), 1); // in the last bucket: its lower bound
  assert.equal(quantile({ bounds: [1], counts: [0] }, 0.5), null);
  assert.equal(histogram(parse(TEXT), "nothing"), null);
});

test("since takes what was before away, but not after a restart", () => {
  const now = { bounds: [1, 2], counts: [3, 5] };
  assert.deepEqual(since(now, { bounds: [1, 2], counts: [1, 1] }).counts, [2, 4]);
  assert.equal(since(now, { bounds: [1, 2], counts: [9, 9] }), now);
  assert.equal(since(now, null), now);
});

test("scales end at a plain number", () => {
  assert.deepEqual([0.29, 1, 3, 17, 41, 99, 1049].map(niceTop), [0.3, 1, 3, 20, 50, 100, 2000]);
});

test("a time axis has at most six marks", () => {
  assert.deepEqual(agoTicks(60).map(([, label]) => label), ["now", "−15 s", "−30 s", "−45 s", "−1 min"]);
  assert.deepEqual(agoTicks(300).map(([ago]) => ago), [0, 60, 120, 180, 240, 300]);
  for (let seconds = 60; seconds <= 300; seconds++) assert(agoTicks(seconds).length <= 6);
});
