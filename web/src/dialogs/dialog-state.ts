import { signal } from "@preact/signals";

export type DialogName = "search" | "help" | "preferences";

export const shownDialog = signal<DialogName | null>(null);

export function openDialog(name: DialogName | null): void {
  shownDialog.value = name;
}
