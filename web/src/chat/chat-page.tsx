// The shown conversation and the place to write.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { current, isKept, isLoaded } from "../state/conversations.ts";
import { isAnswering } from "../state/generate.ts";
import { currentId } from "../state/route.ts";
import { childrenOf, shownPath } from "../state/tree.ts";
import type { Conversation, Node, ToolNode } from "../types.ts";
import { Icon } from "../ui/icons.tsx";
import { Composer } from "./composer.tsx";
import { EmptyChat } from "./empty.tsx";
import { Message } from "./message.tsx";

export function ChatPage(): JSX.Element {
  const conversation = current.value;
  const isMissing = currentId.value !== null && conversation === null && isLoaded.value;
  return (
    <div class={conversation ? "chat" : "chat new"}>
      {!isKept.value && (
        <p class="notice" role="status">
          This browser keeps nothing here: chats are lost when the page is closed. Export what you need.
        </p>
      )}
      {conversation ? <Messages key={conversation.id} conversation={conversation} /> : isMissing ? <Missing /> : <EmptyChat />}
      <div class="composer-area">
        <Composer />
        <p class="fine">Answers may be wrong. Check what matters.</p>
      </div>
    </div>
  );
}

function Missing(): JSX.Element {
  return (
    <div class="empty">
      <h1>This chat is gone</h1>
      <p class="muted">It was deleted, or belongs to another browser. What you write below begins a new one.</p>
    </div>
  );
}

const NEAR_PX = 60;

function Messages({ conversation }: { conversation: Conversation }): JSX.Element {
  const scroller = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const [isAway, setAway] = useState(false);
  const path = useMemo(() => shownPath(conversation), [conversation]);
  const isBusy = isAnswering(conversation.id);

  const toEnd = () => {
    const element = scroller.current;
    if (element) element.scrollTop = element.scrollHeight;
  };
  useLayoutEffect(() => {
    if (follows.current) toEnd();
  }, [conversation]);
  useEffect(() => {
    // what comes late (fonts, colours of code, the phone's keyboard) must not leave the end below the fold
    const observer = new ResizeObserver(() => follows.current && toEnd());
    const element = scroller.current;
    if (element?.firstElementChild) {
      observer.observe(element);
      observer.observe(element.firstElementChild);
    }
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    follows.current = true; // a message was sent
    toEnd();
  }, [path.filter((node) => node.role === "user").length]);

  const onScroll = () => {
    const element = scroller.current;
    if (!element) return;
    const isNear = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_PX;
    follows.current = isNear;
    setAway(!isNear);
  };
  return (
    <div class="messages-area">
      <div class="messages" ref={scroller} onScroll={onScroll} tabIndex={0} role="region" aria-label="Conversation">
        <div class="column">
          {path.map((node, i) =>
            node.role === "tool" ? null : (
              <Message
                key={node.id}
                node={node}
                place={placeOf(conversation, node)}
                results={resultsAfter(path, i)}
                isLast={path.slice(i + 1).every((one) => one.role === "tool")}
                isBusy={isBusy}
              />
            ),
          )}
        </div>
      </div>
      {isAway && (
        <button
          type="button"
          class="to-end"
          aria-label="To the end"
          title="To the end"
          onClick={() => {
            follows.current = true;
            toEnd();
          }}
        >
          <Icon name="down" size={18} />
        </button>
      )}
      <p class="hidden" role="status">
        {isBusy ? "Answering" : path.at(-1)?.role === "assistant" ? "Answered" : ""}
      </p>
    </div>
  );
}

function placeOf(conversation: Conversation, node: Node): { at: number; of: number } {
  const siblings = childrenOf(conversation, node.parent).filter(({ role }) => role === node.role);
  return { at: siblings.findIndex(({ id }) => id === node.id) + 1, of: siblings.length };
}

function resultsAfter(path: Node[], index: number): ToolNode[] {
  const results: ToolNode[] = [];
  for (const node of path.slice(index + 1)) {
    if (node.role !== "tool") break;
    results.push(node);
  }
  return results;
}
