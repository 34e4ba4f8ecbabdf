// One message of a conversation, with what can be done to it.
import type { JSX } from "preact";
import { memo } from "preact/compat";
import { useEffect, useRef, useState } from "preact/hooks";

import { current, update } from "../state/conversations.ts";
import { regenerate, resend } from "../state/generate.ts";
import { health } from "../state/server.ts";
import { withSibling } from "../state/tree.ts";
import type { AssistantNode, Node, ToolNode, UserNode } from "../types.ts";
import { Button, IconButton } from "../ui/button.tsx";
import { copy } from "../ui/clipboard.ts";
import { Icon } from "../ui/icons.tsx";
import { FailureCard } from "./failure-card.tsx";
import { Figures } from "./figures.tsx";
import { CodeView, MarkdownView } from "./markdown-view.tsx";
import { Reasoning } from "./reasoning.tsx";
import { ToolCalls } from "./tool-calls.tsx";

interface Place {
  /** From 1 on, among `of` siblings. */
  at: number;
  of: number;
}

interface Props {
  node: UserNode | AssistantNode;
  place: Place;
  results: ToolNode[];
  isLast: boolean;
  isBusy: boolean;
}

export const Message = memo(
  (props: Props) => (props.node.role === "user" ? <UserMessage {...props} node={props.node} /> : <Answer {...props} node={props.node} />),
  (a: Props, b: Props) =>
    a.node === b.node &&
    a.place.at === b.place.at &&
    a.place.of === b.place.of &&
    a.isLast === b.isLast &&
    a.isBusy === b.isBusy &&
    a.results.length === b.results.length,
);

function UserMessage({ node, place, isBusy }: Props & { node: UserNode }): JSX.Element {
  const [isEditing, setEditing] = useState(false);
  if (isEditing) return <Editor node={node} onClose={() => setEditing(false)} />;
  return (
    <article class="message user" aria-label="Your message">
      <div class="bubble" dir="auto">{node.content}</div>
      <div class="actions">
        <Branches node={node} place={place} isBusy={isBusy} />
        <CopyButton text={node.content} />
        <IconButton icon="pencil" size={16} label="Edit message" disabled={isBusy} onClick={() => setEditing(true)} />
      </div>
    </article>
  );
}

function Editor({ node, onClose }: { node: UserNode; onClose: () => void }): JSX.Element {
  const [text, setText] = useState(node.content);
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    area.current?.focus();
    area.current?.setSelectionRange(node.content.length, node.content.length);
  }, []);
  const submit = () => {
    if (!text.trim()) return;
    onClose();
    resend(node.id, text);
  };
  return (
    <form
      class="message editor"
      aria-label="Edit message"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <textarea
        ref={area}
        dir="auto"
        aria-label="Message"
        value={text}
        rows={Math.min(12, text.split("\n").length + 1)}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            onClose();
          }
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            submit();
          }
        }}
      />
      <div class="row end">
        <small class="muted">The conversation branches here; the old one stays.</small>
        <Button onClick={onClose}>Cancel</Button>
        <Button kind="main" type="submit" disabled={!text.trim()}>
          Send
        </Button>
      </div>
    </form>
  );
}

function Answer({ node, place, results, isLast, isBusy }: Props & { node: AssistantNode }): JSX.Element {
  const isOpen = node.state === "waiting" || node.state === "streaming";
  const isEmpty = !node.content && !node.reasoning && node.toolCalls.length === 0;
  return (
    <article class={isLast ? "message answer last" : "message answer"} aria-label="Answer" aria-busy={isOpen}>
      {node.reasoning && <Reasoning node={node} />}
      {node.content &&
        (node.isJson ? (
          <CodeView text={prettyJson(node)} language="json" />
        ) : (
          <MarkdownView text={node.content} isGrowing={node.state === "streaming" && node.toolCalls.length === 0} />
        ))}
      {node.toolCalls.length > 0 && <ToolCalls node={node} results={results} />}
      {isEmpty && isOpen && <Waiting />}
      {isEmpty && node.state === "done" && <p class="muted">The model said nothing.</p>}
      {isEmpty && node.state === "stopped" && <p class="muted">Stopped before the first word.</p>}
      {node.failure && <FailureCard failure={node.failure} hasBegun={!isEmpty} onRetry={() => regenerate(node.id)} />}
      <div class="actions">
        <Branches node={node} place={place} isBusy={isBusy} />
        {!isOpen && (
          <>
            {node.content && <CopyButton text={node.content} />}
            {!node.failure && (
              <IconButton
                icon="refresh"
                size={16}
                label="Answer again"
                disabled={isBusy}
                onClick={() => regenerate(node.id)}
              />
            )}
          </>
        )}
        <Figures node={node} />
      </div>
    </article>
  );
}

const REASONS: Partial<Record<string, string>> = {
  loading: "The model is still loading. Your message is sent as soon as it is ready.",
  restarting: "The engine is being restarted. Your message is sent as soon as it is back.",
  unreachable: "The server can't be reached. Your message is sent as soon as it is back.",
};

function Waiting(): JSX.Element {
  const reason = REASONS[health.value];
  return (
    <div class="waiting" role="status">
      <span class="dots" aria-hidden="true">
        <i />
        <i />
        <i />
      </span>
      <span class={reason ? "muted" : "hidden"}>{reason ?? "Waiting for the answer"}</span>
    </div>
  );
}

function Branches({ node, place, isBusy }: { node: Node; place: Place; isBusy: boolean }): JSX.Element | null {
  if (place.of < 2) return null;
  const move = (step: number) => {
    const conversation = current.peek();
    if (conversation) update(conversation.id, (one) => withSibling(one, node.id, step));
  };
  return (
    <span class="branches" role="group" aria-label="Versions">
      <IconButton icon="left" size={16} label="Earlier version" disabled={isBusy || place.at === 1} onClick={() => move(-1)} />
      <span>
        {place.at} / {place.of}
      </span>
      <IconButton icon="right" size={16} label="Later version" disabled={isBusy || place.at === place.of} onClick={() => move(1)} />
    </span>
  );
}

function CopyButton({ text }: { text: string }): JSX.Element {
  const [isDone, setDone] = useState(false);
  return (
    <button
      type="button"
      class="icon-button"
      aria-label={isDone ? "Copied" : "Copy"}
      title={isDone ? "Copied" : "Copy"}
      onClick={() => {
        void copy(text).then((done) => {
          setDone(done);
          setTimeout(() => setDone(false), 1500);
        });
      }}
    >
      <Icon name={isDone ? "check" : "copy"} size={16} />
    </button>
  );
}

function prettyJson(node: AssistantNode): string {
  if (node.state === "streaming") return node.content;
  try {
    return JSON.stringify(JSON.parse(node.content), null, 2);
  } catch {
    return node.content;
  }
}
