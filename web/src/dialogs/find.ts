// Which conversations hold all words, and where.
import type { Conversation } from "../types.ts";

export interface Found {
  id: string;
  title: string;
  /** A line with the first word that was found in a message; all empty where the title has it. */
  before: string;
  match: string;
  after: string;
}

const AROUND_CHARS = 50;

export function search(conversations: Conversation[], text: string, max: number): Found[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found: Found[] = [];
  for (const conversation of conversations) {
    if (found.length >= max) break;
    const title = conversation.title.toLowerCase();
    const contents = Object.values(conversation.nodes).map((node) => node.content);
    const lower = contents.map((content) => content.toLowerCase());
    if (!words.every((word) => title.includes(word) || lower.some((content) => content.includes(word)))) continue;
    const word = words.find((one) => !title.includes(one));
    const index = word === undefined ? -1 : lower.findIndex((content) => content.includes(word));
    const place = { before: "", match: "", after: "" };
    const { id } = conversation;
    if (word === undefined || index < 0) found.push({ id, title: conversation.title, ...place });
    else found.push({ id, title: conversation.title, ...around(contents[index] ?? "", lower[index]?.indexOf(word) ?? 0, word.length) });
  }
  return found;
}

function around(content: string, at: number, length: number): Pick<Found, "before" | "match" | "after"> {
  const start = Math.max(0, at - AROUND_CHARS);
  const before = content.slice(start, at).replaceAll(/\s+/g, " ");
  return {
    before: start > 0 ? `…${before}` : before,
    match: content.slice(at, at + length),
    after: content.slice(at + length, at + length + 2 * AROUND_CHARS).replaceAll(/\s+/g, " "),
  };
}
