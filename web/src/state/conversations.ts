// All conversations, and which one is shown. Kept in the browser; other tabs learn of changes.
import { batch, computed, signal } from "@preact/signals";

import { type AssistantNode, type Conversation, EMPTY_SETTINGS, type Settings } from "../types.ts";
import { newId } from "./id.ts";
import { defaults } from "./preferences.ts";
import { currentId, go } from "./route.ts";
import * as storage from "./storage.ts";

export const conversations = signal<ReadonlyMap<string, Conversation>>(new Map());
export const isLoaded = signal(false);
/** false where the browser keeps nothing. */
export const isKept = signal(true);
/** Settings of the chat that has not begun yet. */
export const draftSettings = signal<Settings>(defaults.peek());

export const current = computed(() => conversations.value.get(currentId.value ?? "") ?? null);
export const newestFirst = computed(() => [...conversations.value.values()].sort((a, b) => b.updatedAt - a.updatedAt));
export const settings = computed(() => current.value?.settings ?? draftSettings.value);

/** For a text that grows: it would be written as a whole with each token. */
export const NOW_AND_THEN_MS = 1000;
const unsaved = new Map<string, ReturnType<typeof setTimeout>>();
const channel = "BroadcastChannel" in window ? new BroadcastChannel("anllm") : null;

export async function loadConversations(): Promise<void> {
  const found = await storage.loadAll();
  batch(() => {
    conversations.value = new Map(found.conversations.map((one) => [one.id, withoutOpenAnswers(one)]));
    isKept.value = found.isKept;
    isLoaded.value = true;
  });
  channel?.addEventListener("message", (event: MessageEvent<string>) => void reload(event.data));
  window.addEventListener("pagehide", saveAll);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) saveAll();
  });
}

/** An answer that was under way when the page was closed will not go on. */
function withoutOpenAnswers(conversation: Conversation): Conversation {
  const nodes = Object.entries(conversation.nodes).map(([id, node]) => {
    const isOpen = node.role === "assistant" && (node.state === "streaming" || node.state === "waiting");
    return [id, isOpen ? ({ ...node, state: "stopped" } satisfies AssistantNode) : node] as const;
  });
  return { ...conversation, nodes: Object.fromEntries(nodes) };
}

export function begin(title: string, model: string | null): Conversation {
  const now = Date.now();
  const conversation: Conversation = {
    id: newId(),
    title,
    isNamed: false,
    createdAt: now,
    updatedAt: now,
    model,
    settings: draftSettings.peek(),
    nodes: {},
    shown: {},
  };
  draftSettings.value = defaults.peek();
  put(conversation);
  return conversation;
}

export function put(conversation: Conversation, saveWithinMs = 0): void {
  const { id } = conversation;
  conversations.value = new Map(conversations.peek()).set(id, conversation);
  if (saveWithinMs === 0) saveNow(id); // the page may be closed at once
  else if (!unsaved.has(id)) unsaved.set(id, setTimeout(() => saveNow(id), saveWithinMs));
}

export function update(id: string, change: (conversation: Conversation) => Conversation, saveWithinMs = 0): void {
  const conversation = conversations.peek().get(id);
  if (conversation) put(change(conversation), saveWithinMs);
}

export function saveNow(id: string): void {
  clearTimeout(unsaved.get(id));
  unsaved.delete(id);
  const conversation = conversations.peek().get(id);
  if (!conversation) return;
  void storage.save(conversation).then((kept) => {
    isKept.value = kept;
    channel?.postMessage(id);
  });
}

function saveAll(): void {
  for (const id of [...unsaved.keys()]) saveNow(id);
}

/** Removes it, and gives what brings it back. */
export function remove(id: string): () => void {
  const conversation = conversations.peek().get(id);
  const rest = new Map(conversations.peek());
  rest.delete(id);
  clearTimeout(unsaved.get(id));
  unsaved.delete(id);
  batch(() => {
    conversations.value = rest;
    if (currentId.peek() === id) open(null);
  });
  void storage.remove(id).then(() => channel?.postMessage(id));
  return () => {
    if (!conversation) return;
    put(withoutOpenAnswers(conversation));
    open(id);
  };
}

/** null: a new chat. */
export function open(id: string | null): void {
  if (id === null) draftSettings.value = defaults.peek();
  go(id === null ? "#/" : `#/c/${id}`);
}

export function changeSettings(change: Partial<Settings>): void {
  const conversation = current.peek();
  if (conversation)
    update(conversation.id, (one) => ({ ...one, settings: { ...one.settings, ...change } }));
  else draftSettings.value = { ...draftSettings.peek(), ...change };
}

export function isPlain(settings: Settings): boolean {
  return JSON.stringify(settings) === JSON.stringify(EMPTY_SETTINGS);
}

async function reload(id: string): Promise<void> {
  const found = await storage.load(id);
  const all = new Map(conversations.peek());
  if (found) all.set(id, found);
  else all.delete(id);
  conversations.value = all;
}
