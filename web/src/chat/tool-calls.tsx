// What the model wants to have called, folded, and a place for what it gave.
import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { sendResults } from "../state/generate.ts";
import type { AssistantNode, ToolCall, ToolNode } from "../types.ts";
import { Button } from "../ui/button.tsx";
import { Icon } from "../ui/icons.tsx";
import { CodeView } from "./markdown-view.tsx";

interface Props {
  node: AssistantNode;
  /** Given already. */
  results: ToolNode[];
}

export function ToolCalls({ node, results }: Props): JSX.Element {
  const [texts, setTexts] = useState<string[]>([]);
  const isOpen = node.state === "done" && results.length === 0;
  return (
    <form
      class="tool-calls"
      onSubmit={(event) => {
        event.preventDefault();
        sendResults(node.id, node.toolCalls.map((_, i) => texts[i] ?? ""));
      }}
    >
      {node.toolCalls.map((call, i) => (
        <details class="fold" key={i} open={isOpen}>
          <summary>
            <Icon name="tool" size={16} />
            <span>
              Calls <code>{call.name || "…"}</code>
            </span>
            <span class="fold-state">{node.state === "streaming" ? "writing" : results[i] ? "answered" : ""}</span>
            <Icon name="chevron" size={16} />
          </summary>
          <div class="fold-body">
            <CodeView text={prettyArguments(call)} language="json" />
            {results[i] && (
              <>
                <p class="label">Result</p>
                <pre class="result">{results[i].content}</pre>
              </>
            )}
            {isOpen && (
              <label class="label">
                Result of {call.name}
                <textarea
                  rows={2}
                  value={texts[i] ?? ""}
                  placeholder="What the tool gave, as text or JSON"
                  onInput={(event) => {
                    const changed = [...texts];
                    changed[i] = event.currentTarget.value;
                    setTexts(changed);
                  }}
                />
              </label>
            )}
          </div>
        </details>
      ))}
      {isOpen && (
        <div class="row">
          <Button kind="main" type="submit">
            {node.toolCalls.length > 1 ? "Send results" : "Send result"}
          </Button>
        </div>
      )}
    </form>
  );
}

function prettyArguments(call: ToolCall): string {
  try {
    return JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch {
    return call.arguments; // not whole yet
  }
}
