// POST /v1/chat/completions: a conversation as a request, and its stream as what each piece adds.
import type { AssistantNode, Conversation, Node, Settings, ToolCall, Usage } from "../types.ts";
import { ApiError, call, errorObject, lost } from "./http.ts";
import { eventsOf } from "./sse.ts";

export interface ToolCallDelta {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

export interface Delta {
  content: string;
  reasoning: string;
  toolCalls: ToolCallDelta[];
  finishReason: string | null;
  usage: Usage | null;
}

interface Chunk {
  choices?: {
    delta?: {
      content?: string | null;
      reasoning_content?: string | null;
      reasoning?: string | null;
      refusal?: string | null;
      tool_calls?: ToolCallDelta[];
    };
    finish_reason?: string | null;
  }[];
  usage?: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_tokens_details?: { cached_tokens?: number } | null;
    completion_tokens_details?: { reasoning_tokens?: number } | null;
  } | null;
}

/** The JSON body. `path` ends before the answer that is asked for. Raises SyntaxError where tools or schema are no JSON. */
export function bodyOf(conversation: Conversation, path: Node[], model: string): Record<string, unknown> {
  const { settings } = conversation;
  const { sampling } = settings;
  const body: Record<string, unknown> = {
    model,
    messages: messagesOf(settings.system, path),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    temperature: sampling.temperature,
    top_p: sampling.topP,
    top_k: sampling.topK,
    min_p: sampling.minP,
    max_tokens: sampling.maxTokens,
    seed: sampling.seed,
    presence_penalty: sampling.presencePenalty,
    frequency_penalty: sampling.frequencyPenalty,
    repetition_penalty: sampling.repetitionPenalty,
    stop: settings.stop.length > 0 ? settings.stop : null,
    reasoning_effort: settings.effort,
    response_format: formatOf(settings),
    ...toolsOf(settings),
  };
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null));
}

function formatOf(settings: Settings): unknown {
  if (settings.format === "text") return null;
  if (settings.format === "json_object") return { type: "json_object" };
  const schema = JSON.parse(settings.schema) as unknown;
  return { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
}

function toolsOf(settings: Settings): Record<string, unknown> {
  if (!settings.tools.trim()) return {};
  const tools = toolList(settings.tools);
  return tools.length === 0 ? {} : { tools, tool_choice: settings.toolChoice };
}

/** Tools as OpenAI has them, or functions alone, as an array or a single one. Raises SyntaxError. */
export function toolList(text: string): unknown[] {
  const parsed = JSON.parse(text) as unknown;
  const list: unknown[] = Array.isArray(parsed) ? parsed : [parsed];
  return list.map((item) =>
    typeof item === "object" && item !== null && !("function" in item) ? { type: "function", function: item } : item,
  );
}

export function messagesOf(system: string, path: Node[]): Record<string, unknown>[] {
  const messages: Record<string, unknown>[] = system.trim() ? [{ role: "system", content: system }] : [];
  for (const node of path) {
    if (node.role === "user") messages.push({ role: "user", content: node.content });
    else if (node.role === "tool") messages.push({ role: "tool", tool_call_id: node.toolCallId, content: node.content });
    else if (hasSaidSomething(node)) messages.push(assistantMessage(node));
  }
  return messages;
}

function hasSaidSomething(node: AssistantNode): boolean {
  return node.content !== "" || node.toolCalls.length > 0;
}

function assistantMessage(node: AssistantNode): Record<string, unknown> {
  const message: Record<string, unknown> = { role: "assistant", content: node.content };
  if (node.toolCalls.length > 0)
    message.tool_calls = node.toolCalls.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
  return message;
}

/** Asks and gives what comes, until the answer ends. Raises ApiError, also for an error within the stream. */
export async function* stream(body: Record<string, unknown>, signal: AbortSignal): AsyncGenerator<Delta> {
  const response = await call("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.body) throw new ApiError(lost("The answer has no body."));
  let hasEnded = false;
  try {
    for await (const data of eventsOf(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data) as Chunk;
      const error = errorObject(chunk);
      if (error.message) throw new ApiError({ ...lost(error.message), ...error });
      const delta = deltaOf(chunk);
      hasEnded ||= delta.finishReason !== null;
      yield delta;
    }
  } catch (error) {
    if (signal.aborted || error instanceof ApiError) throw error;
    throw new ApiError(lost("The connection was lost while the answer came."));
  }
  if (!hasEnded) throw new ApiError(lost("The connection was closed before the answer was complete."));
}

function deltaOf(chunk: Chunk): Delta {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta;
  return {
    content: delta?.content ?? delta?.refusal ?? "",
    reasoning: delta?.reasoning_content ?? delta?.reasoning ?? "",
    toolCalls: delta?.tool_calls ?? [],
    finishReason: choice?.finish_reason ?? null,
    usage: chunk.usage ? usageOf(chunk.usage) : null,
  };
}

function usageOf(usage: NonNullable<Chunk["usage"]>): Usage {
  return {
    promptTokens: usage.prompt_tokens,
    completionTokens: usage.completion_tokens,
    cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
    reasoningTokens: usage.completion_tokens_details?.reasoning_tokens ?? 0,
  };
}

/** The calls so far and one piece more. */
export function withToolCalls(calls: ToolCall[], deltas: ToolCallDelta[]): ToolCall[] {
  if (deltas.length === 0) return calls;
  const result = calls.map((known) => ({ ...known }));
  for (const delta of deltas) {
    const known = (result[delta.index] ??= { id: "", name: "", arguments: "" });
    known.id ||= delta.id ?? "";
    known.name ||= delta.function?.name ?? "";
    known.arguments += delta.function?.arguments ?? "";
  }
  return result;
}
