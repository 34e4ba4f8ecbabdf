// Conversations as a file, and from one.
import type { AssistantNode, Conversation, Node, Sampling, Settings } from "../types.ts";
import { EFFORTS, EMPTY_SETTINGS } from "../types.ts";

const FORMAT = "anllm-conversations";
const VERSION = 1;

export function exported(conversations: Conversation[]): string {
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 2);
}

/** Raises Error with a sentence for the user. Takes nothing on trust: each field is looked at. */
export function imported(text: string): Conversation[] {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  const { format, version, conversations } = asRecord(file);
  if (format !== FORMAT) throw new Error("This file was not exported from here.");
  if (version !== VERSION) throw new Error(`This file has version ${String(version)}; only version ${VERSION} is read.`);
  if (!Array.isArray(conversations)) throw new Error("This file holds no conversations.");
  return conversations.map(conversationFrom);
}

function conversationFrom(value: unknown): Conversation {
  const given = asRecord(value);
  const nodes: Record<string, Node> = {};
  for (const one of Object.values(asRecord(given.nodes))) {
    const node = nodeFrom(one);
    if (node) nodes[node.id] = node;
  }
  for (const node of Object.values(nodes))
    if (node.parent !== null && (!nodes[node.parent] || isInCircle(node, nodes)))
      throw new Error("A message in this file answers to none.");
  const shown = Object.entries(asRecord(given.shown)).filter(([, id]) => typeof id === "string");
  return {
    id: text(given.id),
    title: text(given.title) || "New chat",
    isNamed: given.isNamed === true,
    createdAt: number(given.createdAt) ?? Date.now(),
    updatedAt: number(given.updatedAt) ?? Date.now(),
    model: text(given.model) || null,
    settings: settingsFrom(asRecord(given.settings)),
    nodes,
    shown: Object.fromEntries(shown) as Record<string, string>,
  };
}

function isInCircle(node: Node, nodes: Record<string, Node>): boolean {
  const seen = new Set<string>();
  for (let one: Node | undefined = node; one; one = one.parent === null ? undefined : nodes[one.parent]) {
    if (seen.has(one.id)) return true;
    seen.add(one.id);
  }
  return false;
}

function nodeFrom(value: unknown): Node | null {
  const given = asRecord(value);
  const base = {
    id: text(given.id),
    parent: typeof given.parent === "string" ? given.parent : null,
    createdAt: number(given.createdAt) ?? 0,
    content: text(given.content),
  };
  if (!base.id) return null;
  if (given.role === "user") return { ...base, role: "user" };
  if (given.role === "tool") return { ...base, role: "tool", toolCallId: text(given.toolCallId), name: text(given.name) };
  return given.role === "assistant" ? answerFrom(base, given) : null;
}

function answerFrom(base: Pick<Node, "id" | "parent" | "createdAt" | "content">, given: Json): AssistantNode {
  const calls: unknown[] = Array.isArray(given.toolCalls) ? given.toolCalls : [];
  const usage = asRecord(given.usage);
  const timing = asRecord(given.timing);
  const failure = asRecord(given.failure);
  return {
    ...base,
    role: "assistant",
    reasoning: text(given.reasoning),
    toolCalls: calls.map(asRecord).map((call) => ({
      id: text(call.id),
      name: text(call.name),
      arguments: text(call.arguments),
    })),
    state: given.state === "done" || given.state === "failed" ? given.state : "stopped",
    model: text(given.model),
    finishReason: text(given.finishReason) || null,
    usage: given.usage
      ? {
          promptTokens: number(usage.promptTokens) ?? 0,
          completionTokens: number(usage.completionTokens) ?? 0,
          cachedTokens: number(usage.cachedTokens) ?? 0,
          reasoningTokens: number(usage.reasoningTokens) ?? 0,
        }
      : null,
    timing: given.timing
      ? { ttftMs: number(timing.ttftMs), totalMs: number(timing.totalMs) ?? 0, decodeMs: number(timing.decodeMs) ?? 0 }
      : null,
    failure: given.failure
      ? {
          status: number(failure.status) ?? 0,
          message: text(failure.message),
          code: text(failure.code) || null,
          param: text(failure.param) || null,
          retryAfterS: number(failure.retryAfterS),
        }
      : null,
    isJson: given.isJson === true,
  };
}

function settingsFrom(given: Json): Settings {
  const sampling = asRecord(given.sampling);
  const names = Object.keys(EMPTY_SETTINGS.sampling) as (keyof Sampling)[];
  const stop: unknown[] = Array.isArray(given.stop) ? given.stop : [];
  return {
    system: text(given.system),
    sampling: Object.fromEntries(names.map((name) => [name, number(sampling[name])])) as unknown as Sampling,
    stop: stop.filter((one): one is string => typeof one === "string" && one !== ""),
    effort: EFFORTS.find((effort) => effort === given.effort) ?? null,
    format: given.format === "json_object" || given.format === "json_schema" ? given.format : "text",
    schema: text(given.schema),
    tools: text(given.tools),
    toolChoice: given.toolChoice === "required" || given.toolChoice === "none" ? given.toolChoice : "auto",
  };
}

type Json = Record<string, unknown>;

function asRecord(value: unknown): Json {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {};
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function number(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
