// What a conversation is. Conversations are kept as they are here, so a change of these types needs a new version of
// the database (state/storage.ts) and of exported files (state/transfer.ts).

export type NodeId = string;

export interface ToolCall {
  id: string;
  name: string;
  /** JSON text as the model wrote it. */
  arguments: string;
}

export interface Usage {
  promptTokens: number;
  completionTokens: number;
  cachedTokens: number;
  reasoningTokens: number;
}

/** Measured in the browser, from the moment the request was sent. */
export interface Timing {
  ttftMs: number | null;
  totalMs: number;
  /** From the first token to the last. */
  decodeMs: number;
}

export interface Failure {
  /** Of the HTTP answer; 0 when there was none, or when the stream broke. */
  status: number;
  message: string;
  code: string | null;
  param: string | null;
  retryAfterS: number | null;
}

export type AnswerState = "waiting" | "streaming" | "done" | "stopped" | "failed";

interface NodeBase {
  id: NodeId;
  parent: NodeId | null;
  createdAt: number;
  content: string;
}

export interface UserNode extends NodeBase {
  role: "user";
}

export interface ToolNode extends NodeBase {
  role: "tool";
  toolCallId: string;
  name: string;
}

export interface AssistantNode extends NodeBase {
  role: "assistant";
  reasoning: string;
  toolCalls: ToolCall[];
  state: AnswerState;
  model: string;
  finishReason: string | null;
  usage: Usage | null;
  timing: Timing | null;
  failure: Failure | null;
  /** Whether it was asked for as JSON. */
  isJson: boolean;
}

export type Node = UserNode | ToolNode | AssistantNode;

export const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"] as const;
export type Effort = (typeof EFFORTS)[number];

/** null: not sent, so that the model's own default holds. */
export interface Sampling {
  temperature: number | null;
  topP: number | null;
  topK: number | null;
  minP: number | null;
  maxTokens: number | null;
  seed: number | null;
  presencePenalty: number | null;
  frequencyPenalty: number | null;
  repetitionPenalty: number | null;
}

export interface Settings {
  system: string;
  sampling: Sampling;
  stop: string[];
  effort: Effort | null;
  format: "text" | "json_object" | "json_schema";
  /** As typed, whether or not it is JSON. */
  schema: string;
  /** JSON text of an array of tools, as typed. */
  tools: string;
  toolChoice: "auto" | "required" | "none";
}

export interface Conversation {
  id: string;
  title: string;
  /** Whether the user gave the title. */
  isNamed: boolean;
  createdAt: number;
  updatedAt: number;
  model: string | null;
  settings: Settings;
  nodes: Record<NodeId, Node>;
  /** Which child of a node is shown; the key of the roots is "". A node that is not here shows its last child. */
  shown: Record<NodeId, NodeId>;
}

export const EMPTY_SETTINGS: Settings = {
  system: "",
  sampling: {
    temperature: null,
    topP: null,
    topK: null,
    minP: null,
    maxTokens: null,
    seed: null,
    presencePenalty: null,
    frequencyPenalty: null,
    repetitionPenalty: null,
  },
  stop: [],
  effort: null,
  format: "text",
  schema: "",
  tools: "",
  toolChoice: "auto",
};
