// What /v1/status tells beside the charts: the engine, its memory, and the requests that are open.
import type { JSX } from "preact";

import { type OpenRequest, type Status, status } from "../state/status.ts";
import { bytes, count, seconds } from "../ui/format.ts";

export function EngineCard(): JSX.Element | null {
  const told = status.value;
  if (!told) return null;
  return (
    <section class="card totals wide" aria-label="Engine and memory">
      <h2>Engine and memory</h2>
      <dl>
        {facts(told).map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function facts({ engine, memory, uptime_s: uptime, version }: Status): [string, string][] {
  const all: [string, string | null | undefined][] = [
    ["Version", version],
    ["Running for", uptime === undefined ? null : seconds(uptime * 1000)],
    ["Backend", engine?.backend],
    ["Weights", engine?.weights],
    ["Restarts of the engine", engine?.restarts === undefined ? null : count(engine.restarts)],
    ["K/V in use", kv(memory?.kv_used_bytes, memory?.kv_budget_bytes)],
    ["K/V kept for later prompts", memory?.kv_kept_bytes === undefined ? null : bytes(memory.kv_kept_bytes)],
    ["Arrays in memory", memory?.active_bytes == null ? null : bytes(memory.active_bytes)],
  ];
  return all.filter((fact): fact is [string, string] => Boolean(fact[1]));
}

function kv(used: number | undefined, budget: number | undefined): string | null {
  return used === undefined || !budget ? null : `${bytes(used)} of ${bytes(budget)}`;
}

const MAX_SHOWN = 50;

export function OpenRequests(): JSX.Element | null {
  const rows = status.value?.rows;
  if (!rows) return null;
  return (
    <section class="card open-requests" aria-label="Open requests">
      <h2>Open requests</h2>
      {rows.length === 0 ? (
        <p class="muted">None at the moment.</p>
      ) : (
        <div class="table-box" tabIndex={0} role="region" aria-label="Table of open requests">
          <table>
            <thead>
              <tr>
                <th>Request</th>
                <th>Stage</th>
                <th class="number">Age</th>
                <th class="number">Prompt</th>
                <th class="number">Cached</th>
                <th class="number">Written</th>
              </tr>
            </thead>
            <tbody>{rows.slice(0, MAX_SHOWN).map((row, i) => <Row key={i} row={row} />)}</tbody>
          </table>
        </div>
      )}
      {rows.length > MAX_SHOWN && <p class="muted">And {count(rows.length - MAX_SHOWN)} more.</p>}
    </section>
  );
}

function Row({ row }: { row: OpenRequest }): JSX.Element {
  return (
    <tr>
      <td class="id" title={row.request_id}>
        {row.request_id}
      </td>
      <td>
        <span class="stage" data-stage={row.stage}>{row.stage}</span>
      </td>
      <td class="number">{seconds(row.age_s * 1000)}</td>
      <td class="number">{count(row.prompt_tokens)}</td>
      <td class="number">{count(row.cached_tokens)}</td>
      <td class="number">{count(row.output_tokens)}</td>
    </tr>
  );
}
