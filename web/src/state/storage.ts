// Conversations in IndexedDB. Where the browser keeps nothing (some private windows), they live as long as the page.
import { type DBSchema, type IDBPDatabase, openDB } from "idb";

import type { Conversation } from "../types.ts";

interface Schema extends DBSchema {
  conversations: { key: string; value: Conversation };
}

let opened: Promise<IDBPDatabase<Schema> | null> | undefined;

function database(): Promise<IDBPDatabase<Schema> | null> {
  opened ??= openDB<Schema>("anllm", 1, {
    upgrade: (db) => void db.createObjectStore("conversations", { keyPath: "id" }),
  }).catch(() => null);
  return opened;
}

/** All of them, and whether the browser keeps any. */
export async function loadAll(): Promise<{ conversations: Conversation[]; isKept: boolean }> {
  const db = await database();
  return { conversations: (await db?.getAll("conversations")) ?? [], isKept: db !== null };
}

export async function load(id: string): Promise<Conversation | undefined> {
  return (await database())?.get("conversations", id);
}

/** Whether it was kept. */
export async function save(conversation: Conversation): Promise<boolean> {
  try {
    const db = await database();
    if (db === null) return false;
    const transaction = db.transaction("conversations", "readwrite");
    const put = transaction.store.put(conversation);
    transaction.commit(); // at once: a page that is being closed does not come to the end of the request any more
    await Promise.all([put, transaction.done]);
    return true;
  } catch {
    return false; // no room left
  }
}

export async function remove(id: string): Promise<void> {
  await (await database())?.delete("conversations", id);
}
