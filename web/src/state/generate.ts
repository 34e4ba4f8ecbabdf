// Sends, stops, asks anew. Several conversations may be answered at once.
import { signal } from "@preact/signals";

import { ApiError, lost } from "../api/http.ts";
import { bodyOf, stream, withToolCalls } from "../api/chat.ts";
import type { AssistantNode, Conversation, Failure, Node, NodeId, ToolNode } from "../types.ts";
import { NOW_AND_THEN_MS, begin, conversations, current, open, put, saveNow, update } from "./conversations.ts";
import { newId } from "./id.ts";
import { isReady, model, needsKey, untilReady, watch } from "./server.ts";
import { pathTo, shownPath, titleFrom, withChange, withNode } from "./tree.ts";

/** Conversation -> what stops its answer. */
const running = signal<ReadonlyMap<string, AbortController>>(new Map());

export function isAnswering(id: string | undefined): boolean {
  return id !== undefined && running.value.has(id);
}

// Else a stream that ends with the page would be kept as one that was lost.
window.addEventListener("pagehide", () => [...running.peek().keys()].forEach(stop));

export function stop(id: string): void {
  running.peek().get(id)?.abort();
}

/** Adds a message at the end of what is shown, in a new conversation if there is none, and asks for the answer. */
export function send(text: string): void {
  const existing = current.peek();
  const conversation = existing ?? begin(titleFrom(text), model.peek());
  addUserMessage(conversation, shownPath(conversation).at(-1)?.id ?? null, text);
  if (!existing) open(conversation.id);
}

/** A sibling of the message with other words, and its answer. */
export function resend(id: NodeId, text: string): void {
  const conversation = current.peek();
  const node = conversation?.nodes[id];
  if (conversation && node) addUserMessage(conversation, node.parent, text);
}

function addUserMessage(conversation: Conversation, parent: NodeId | null, text: string): void {
  const node: Node = { id: newId(), role: "user", parent, createdAt: Date.now(), content: text };
  put(withNode(conversation, node));
  answer(conversation.id, node.id);
}

/** Another answer beside this one. */
export function regenerate(id: NodeId): void {
  const conversation = current.peek();
  const node = conversation?.nodes[id];
  if (conversation && node?.parent) answer(conversation.id, node.parent);
}

/** What the tools gave, for each call of this answer; then the model goes on. */
export function sendResults(id: NodeId, results: string[]): void {
  const conversation = current.peek();
  const caller = conversation?.nodes[id];
  if (!conversation || caller?.role !== "assistant") return;
  let changed = conversation;
  let parent = id;
  for (const [i, call] of caller.toolCalls.entries()) {
    const node: ToolNode = {
      id: newId(),
      role: "tool",
      parent,
      createdAt: Date.now() + i,
      content: results[i] ?? "",
      toolCallId: call.id,
      name: call.name,
    };
    changed = withNode(changed, node);
    parent = node.id;
  }
  put(changed);
  answer(conversation.id, parent);
}

function answer(conversationId: string, parent: NodeId): void {
  const conversation = conversations.peek().get(conversationId);
  const asked = model.peek() ?? conversation?.model ?? "";
  if (!conversation || running.peek().has(conversationId)) return;
  const node: AssistantNode = {
    id: newId(),
    role: "assistant",
    parent,
    createdAt: Date.now() + 1,
    content: "",
    reasoning: "",
    toolCalls: [],
    state: "waiting",
    model: asked,
    finishReason: null,
    usage: null,
    timing: null,
    failure: null,
    isJson: conversation.settings.format !== "text",
  };
  put(withNode({ ...conversation, model: asked, updatedAt: Date.now() }, node));
  void run(conversationId, node);
}

async function run(conversationId: string, node: AssistantNode): Promise<void> {
  const controller = new AbortController();
  running.value = new Map(running.peek()).set(conversationId, controller);
  const draft = new Draft(conversationId, node);
  try {
    await untilReady(controller.signal);
    await receive(draft, controller.signal);
    draft.end({ state: "done" });
  } catch (error) {
    if (controller.signal.aborted) draft.end({ state: "stopped" });
    else draft.end({ state: "failed", failure: failureOf(error) });
  } finally {
    const rest = new Map(running.peek());
    rest.delete(conversationId);
    running.value = rest;
    saveNow(conversationId);
  }
}

async function receive(draft: Draft, signal: AbortSignal): Promise<void> {
  for (;;) {
    const conversation = conversations.peek().get(draft.conversationId);
    if (!conversation) return;
    const path = pathTo(conversation, draft.node.id).slice(0, -1);
    const body = bodyOf(conversation, path, model.peek() ?? draft.node.model);
    draft.start(String(body.model));
    try {
      for await (const delta of stream(body, signal)) {
        draft.add({
          content: draft.node.content + delta.content,
          reasoning: draft.node.reasoning + delta.reasoning,
          toolCalls: withToolCalls(draft.node.toolCalls, delta.toolCalls),
          finishReason: delta.finishReason ?? draft.node.finishReason,
          usage: delta.usage ?? draft.node.usage,
        });
      }
      return;
    } catch (error) {
      if (!(error instanceof ApiError) || !(await becomesReady(error.failure, signal))) throw error;
    }
  }
}

/** Whether the server was only loading, and has loaded now. */
async function becomesReady({ status }: Failure, signal: AbortSignal): Promise<boolean> {
  if (status === 401) needsKey.value = true;
  if (status === 0) void watch();
  if (status !== 503) return false;
  await watch();
  if (isReady.value) return false;
  await untilReady(signal);
  return isReady.value;
}

function failureOf(error: unknown): Failure {
  if (error instanceof ApiError) return error.failure;
  if (error instanceof SyntaxError) return lost("The tools or the JSON schema in the settings are not JSON.");
  return lost(error instanceof Error ? error.message : String(error));
}

/** The answer while it comes: written into the conversation once a frame. */
class Draft {
  readonly conversationId: string;
  node: AssistantNode;
  private startedMs = 0;
  private firstMs: number | null = null;
  private lastMs = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(conversationId: string, node: AssistantNode) {
    this.conversationId = conversationId;
    this.node = node;
  }

  start(model: string): void {
    this.startedMs = performance.now();
    this.node = { ...this.node, model };
  }

  add(change: Partial<AssistantNode>): void {
    const before = this.node;
    this.node = { ...before, ...change, state: "streaming" };
    const hasCome =
      this.node.content !== before.content ||
      this.node.reasoning !== before.reasoning ||
      this.node.toolCalls !== before.toolCalls;
    if (hasCome) {
      this.lastMs = performance.now();
      this.firstMs ??= this.lastMs;
    }
    // the longer the text, the rarer it is drawn, since all of it is looked through
    this.timer ??= setTimeout(() => this.write(), this.node.content.length > 20_000 ? 120 : 33);
  }

  end(change: Partial<AssistantNode>): void {
    this.node = { ...this.node, ...change };
    this.write();
  }

  private write(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    const now = performance.now();
    const timing = {
      ttftMs: this.firstMs === null ? null : this.firstMs - this.startedMs,
      totalMs: this.startedMs ? now - this.startedMs : 0,
      decodeMs: this.firstMs === null ? 0 : this.lastMs - this.firstMs,
    };
    this.node = { ...this.node, timing };
    update(this.conversationId, (one) => withChange<AssistantNode>(one, this.node.id, this.node), NOW_AND_THEN_MS);
  }
}
