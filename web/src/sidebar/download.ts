import { exported } from "../state/transfer.ts";
import type { Conversation } from "../types.ts";

/** Has the browser save the conversations as a file. */
export function download(conversations: Conversation[], name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([exported(conversations)], { type: "application/json" }));
  link.download = `${name.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "chat"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
