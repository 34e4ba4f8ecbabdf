// Under each answer: how many tokens, how fast, how soon, and how it ended.
import type { JSX } from "preact";

import type { AssistantNode } from "../types.ts";
import { count, rate, seconds } from "../ui/format.ts";

/** Below that a rate says more of the network than of the model: all may have come at once. */
const SHORTEST_MS = 50;

export function Figures({ node }: { node: AssistantNode }): JSX.Element {
  const { usage, timing } = node;
  const isMeasured = usage && timing && timing.decodeMs >= SHORTEST_MS;
  const perSecond = isMeasured ? ((usage.completionTokens - 1) * 1000) / timing.decodeMs : null;
  const cached = usage?.cachedTokens ? `, ${count(usage.cachedTokens)} of them from the prefix cache` : "";
  return (
    <ul class="figures" aria-label="Figures of this answer">
      {usage && (
        <li title={`${count(usage.promptTokens)} tokens in the prompt${cached}; ${count(usage.completionTokens)} written`}>
          <span class="wide">{count(usage.promptTokens)} → </span>
          {count(usage.completionTokens)} tokens
        </li>
      )}
      {perSecond !== null && perSecond > 0 && <li title="Tokens a second after the first">{rate(perSecond)} tok/s</li>}
      {timing?.ttftMs != null && <li title="Time to the first token">{seconds(timing.ttftMs)} TTFT</li>}
      {endOf(node)}
    </ul>
  );
}

function endOf(node: AssistantNode): JSX.Element | null {
  if (node.state === "stopped") return <li class="note">stopped</li>;
  if (node.finishReason === "length")
    return (
      <li class="note" title="The limit of tokens was reached. Raise “Max tokens”, or ask for more.">
        cut at the token limit
      </li>
    );
  if (node.isJson && node.state === "done" && node.toolCalls.length === 0)
    return isJson(node.content) ? <li class="good">valid JSON</li> : <li class="note">not JSON</li>;
  return null;
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
