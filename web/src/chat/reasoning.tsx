// What the model thought, folded. Open while it thinks and has said nothing yet.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import type { AssistantNode } from "../types.ts";
import { count } from "../ui/format.ts";
import { Icon } from "../ui/icons.tsx";
import { MarkdownView } from "./markdown-view.tsx";

export function Reasoning({ node }: { node: AssistantNode }): JSX.Element {
  const isThinking = node.state === "streaming" && node.content === "" && node.toolCalls.length === 0;
  const [isOpen, setOpen] = useState(isThinking);
  const hasTouched = useRef(false);
  useEffect(() => {
    if (!hasTouched.current) setOpen(isThinking);
  }, [isThinking]);
  const tokens = node.usage?.reasoningTokens ?? 0;
  return (
    <details class={isThinking ? "fold thinking" : "fold"} open={isOpen}>
      <summary
        onClick={(event) => {
          event.preventDefault();
          hasTouched.current = true;
          setOpen(!isOpen);
        }}
      >
        <Icon name="thought" size={16} />
        <span>{isThinking ? "Thinking…" : "Thoughts"}</span>
        <span class="fold-state">{tokens > 0 && !isThinking ? `${count(tokens)} tokens` : ""}</span>
        <Icon name="chevron" size={16} />
      </summary>
      <div class="fold-body">
        <MarkdownView text={node.reasoning} isGrowing={isThinking} />
      </div>
    </details>
  );
}
