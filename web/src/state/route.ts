// Which page is shown, by the part of the address behind #: nothing of it reaches the server.
import { batch, signal } from "@preact/signals";

export const page = signal<"chat" | "load">("chat");
export const currentId = signal<string | null>(null);

export function go(hash: string): void {
  if (location.hash !== hash) location.hash = hash;
  follow();
}

export function follow(): void {
  batch(() => {
    page.value = location.hash === "#/load" ? "load" : "chat";
    currentId.value = /^#\/c\/([\w-]+)$/.exec(location.hash)?.[1] ?? null;
  });
}
