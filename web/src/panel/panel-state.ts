import { signal } from "@preact/signals";

export const isPanelOpen = signal(false);
