// What the server does now and did in the last minutes.
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";

import { type LoadPoint, points, source, totals, watchLoad } from "../state/load.ts";
import { health, needsKey } from "../state/server.ts";
import { Button } from "../ui/button.tsx";
import { compact, count, percent, rate, seconds } from "../ui/format.ts";
import { Icon } from "../ui/icons.tsx";
import { Chart } from "./chart.tsx";
import { EngineCard, OpenRequests } from "./engine-cards.tsx";

const orDash = (value: number | null | undefined, text: (value: number) => string) => (value == null ? "–" : text(value));
const shortMs = (value: number) => (value >= 1 ? `${+value.toFixed(1)} s` : `${+(value * 1000).toFixed(1)} ms`);
const inMs = (value: number) => seconds(value * 1000);

export function LoadPage(): JSX.Element {
  useEffect(watchLoad, []);
  return (
    <div class="load" tabIndex={0} role="region" aria-label="Server load">
      <div class="load-column">
        <header class="load-head">
          <div>
            <h1>Server load</h1>
            <p class="muted">Up to five minutes, read every second from the server’s metrics while you look.</p>
          </div>
          <span class={`state ${health.value}`} role="status">
            <i class={`health ${health.value}`} /> {health.value === "ok" ? "ready" : health.value}
          </span>
        </header>
        {source.value === "live" ? <Live /> : <NoMetrics />}
      </div>
    </div>
  );
}

function NoMetrics(): JSX.Element {
  if (source.value === "unknown") return <p class="muted">Reading…</p>;
  if (source.value === "locked")
    return (
      <div class="card message-card">
        <Icon name="key" />
        <p>The metrics of this server need its API key.</p>
        <Button kind="main" onClick={() => (needsKey.value = true)}>
          Enter the key
        </Button>
      </div>
    );
  return (
    <div class="card message-card">
      <Icon name="alert" />
      <p>
        {source.value === "missing"
          ? "This server has no /metrics, so there is nothing to draw. Chats work all the same."
          : "The server can't be reached. This page goes on as soon as it is back."}
      </p>
    </div>
  );
}

function Live(): JSX.Element {
  const now = points.value.at(-1);
  const sums = totals.value;
  return (
    <>
      <dl class="tiles">
        <Tile name="Running" value={orDash(now?.running, count)} note="requests" />
        <Tile name="Waiting" value={orDash(now?.waiting, count)} note="in the queue" />
        <Tile name="Generating" value={orDash(now?.generatedPerS, rate)} note="tokens/s" />
        <Tile name="Reading prompts" value={orDash(now?.promptPerS, rate)} note="tokens/s" />
        <Tile name="KV memory" value={orDash(now?.kvUsage, percent)} note="in use" share={now?.kvUsage ?? null} />
        <Tile name="Prefix cache" value={orDash(sums?.hitRate, percent)} note="of prompt tokens" />
      </dl>
      <div class="charts">
        <Chart
          title="Requests"
          points={points.value}
          series={[
            { name: "Running", colour: 1, of: (point: LoadPoint) => point.running, isArea: true },
            { name: "Waiting", colour: 2, of: (point: LoadPoint) => point.waiting },
          ]}
          format={count}
          smallestTop={4}
        />
        <Chart
          title="Tokens per second"
          points={points.value}
          series={[
            { name: "Generated", colour: 1, of: (point: LoadPoint) => point.generatedPerS, isArea: true },
            { name: "Prompts", colour: 3, of: (point: LoadPoint) => point.promptPerS },
          ]}
          format={compact}
          smallestTop={10}
        />
        <Chart
          title="Time to first token"
          points={points.value}
          series={[
            { name: "p50", colour: 1, of: (point: LoadPoint) => point.ttftP50S },
            { name: "p95", colour: 2, of: (point: LoadPoint) => point.ttftP95S },
          ]}
          format={inMs}
          tick={shortMs}
          smallestTop={0.01}
        />
        <Chart
          title="Inter-token latency"
          points={points.value}
          series={[
            { name: "p50", colour: 1, of: (point: LoadPoint) => point.itlP50S },
            { name: "p95", colour: 2, of: (point: LoadPoint) => point.itlP95S },
          ]}
          format={inMs}
          tick={shortMs}
          smallestTop={0.005}
        />
        <Chart
          title="KV memory in use"
          points={points.value}
          series={[{ name: "In use", colour: 3, of: (point: LoadPoint) => point.kvUsage, isArea: true }]}
          format={percent}
          smallestTop={0.1}
        />
        <section class="card totals" aria-label="Since the start of the server">
          <h2>Since the start</h2>
          <dl>
            <Sum name="Requests finished" value={sums?.finished} />
            <Sum name="Tokens generated" value={sums?.generated} />
            <Sum name="Tokens of prompts" value={sums?.prompt} />
            <Sum name="Preemptions" value={sums?.preemptions} />
          </dl>
        </section>
        <OpenRequests />
        <EngineCard />
      </div>
    </>
  );
}

function Tile({ name, value, note, share }: { name: string; value: string; note: string; share?: number | null }): JSX.Element {
  return (
    <div class="card tile">
      <dt>{name}</dt>
      <dd>
        <strong>{value}</strong>
        {share == null ? (
          <span>{note}</span>
        ) : (
          <span class="share" style={{ "--share": `${share * 100}%` }}>
            <span class="hidden">{note}</span>
          </span>
        )}
      </dd>
    </div>
  );
}

function Sum({ name, value }: { name: string; value: number | null | undefined }): JSX.Element {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{orDash(value, count)}</dd>
    </div>
  );
}
