// A conversation is a tree: an edited message and an answer asked for anew are siblings of the old one. Pure functions;
// each gives a new conversation.
import type { Conversation, Node, NodeId } from "../types.ts";

const ROOT = "";

export function childrenOf(conversation: Conversation, parent: NodeId | null): Node[] {
  return Object.values(conversation.nodes)
    .filter((node) => node.parent === parent)
    .sort((a, b) => a.createdAt - b.createdAt || (a.id < b.id ? -1 : 1));
}

/** The nodes that are shown, from the first message on. */
export function shownPath(conversation: Conversation): Node[] {
  const children = new Map<NodeId | null, Node[]>();
  for (const node of Object.values(conversation.nodes)) {
    const siblings = children.get(node.parent);
    if (siblings) siblings.push(node);
    else children.set(node.parent, [node]);
  }
  const path: Node[] = [];
  let parent: NodeId | null = null;
  for (;;) {
    const siblings = children.get(parent);
    if (!siblings) return path;
    const chosen: NodeId | undefined = conversation.shown[parent ?? ROOT];
    const latest = siblings.reduce((a, b) => (b.createdAt >= a.createdAt ? b : a));
    const node: Node = siblings.find((sibling) => sibling.id === chosen) ?? latest;
    path.push(node);
    parent = node.id;
  }
}

/** From the first message to this one. */
export function pathTo(conversation: Conversation, id: NodeId): Node[] {
  const path: Node[] = [];
  for (let node = conversation.nodes[id]; node; node = node.parent === null ? undefined : conversation.nodes[node.parent])
    path.unshift(node);
  return path;
}

/** Adds the node and shows it. */
export function withNode(conversation: Conversation, node: Node): Conversation {
  return {
    ...conversation,
    updatedAt: Math.max(conversation.updatedAt, node.createdAt),
    nodes: { ...conversation.nodes, [node.id]: node },
    shown: { ...conversation.shown, [node.parent ?? ROOT]: node.id },
  };
}

export function withChange<N extends Node>(conversation: Conversation, id: NodeId, change: Partial<N>): Conversation {
  const node = conversation.nodes[id];
  if (!node) return conversation;
  return { ...conversation, nodes: { ...conversation.nodes, [id]: { ...node, ...change } } };
}

/** Shows the sibling that is `step` places further. */
export function withSibling(conversation: Conversation, id: NodeId, step: number): Conversation {
  const node = conversation.nodes[id];
  if (!node) return conversation;
  const siblings = childrenOf(conversation, node.parent);
  const next = siblings[siblings.findIndex((sibling) => sibling.id === id) + step];
  if (!next) return conversation;
  return { ...conversation, shown: { ...conversation.shown, [node.parent ?? ROOT]: next.id } };
}

const MAX_TITLE_CHARS = 60;

/** The first line of a message, short enough for a list. */
export function titleFrom(text: string): string {
  const line = text.trim().split("\n", 1)[0]?.replace(/^#+\s*/, "").trim() ?? "";
  if (line.length <= MAX_TITLE_CHARS) return line || "New chat";
  const cut = line.slice(0, MAX_TITLE_CHARS);
  const space = cut.lastIndexOf(" ");
  return `${cut.slice(0, space > MAX_TITLE_CHARS / 2 ? space : MAX_TITLE_CHARS).trimEnd()}…`;
}
