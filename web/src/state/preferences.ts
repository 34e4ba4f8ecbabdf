// What this browser remembers beside conversations: theme, key, model, the settings of new chats.
import { effect, signal } from "@preact/signals";

import { setKey } from "../api/http.ts";
import { EMPTY_SETTINGS, type Settings } from "../types.ts";

export type Theme = "system" | "light" | "dark";

const PREFIX = "anllm.";
const KEY = `${PREFIX}key`;

export const theme = signal<Theme>(stored("theme", isTheme) ?? "system");
export const isSidebarOpen = signal(stored("sidebar", isBoolean) ?? true);
export const lastModel = signal<string | null>(stored("model", isString) ?? null);
export const defaults = signal<Settings>(withDefaults(stored("defaults", isObject) ?? {}));
export const apiKey = signal(keyIn("sessionStorage") ?? keyIn("localStorage") ?? "");

const darkQuery = window.matchMedia("(prefers-color-scheme: dark)");
/** Whether the system has a dark theme now. */
export const prefersDark = signal(darkQuery.matches);
darkQuery.addEventListener("change", () => (prefersDark.value = darkQuery.matches));

effect(() => setKey(apiKey.value));
effect(() => store("theme", theme.value));
effect(() => store("sidebar", isSidebarOpen.value));
effect(() => store("model", lastModel.value));
effect(() => store("defaults", defaults.value));
effect(() => {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
});

/** Kept for good, or until the tab is closed; an empty key is forgotten everywhere. */
export function rememberKey(key: string, isForGood: boolean): void {
  for (const name of ["localStorage", "sessionStorage"] as const) storage(name)?.removeItem(KEY);
  if (key) storage(isForGood ? "localStorage" : "sessionStorage")?.setItem(KEY, key);
  apiKey.value = key;
}

/** Settings of an older version or from a file, with what they lack. */
export function withDefaults(settings: Partial<Settings>): Settings {
  return { ...EMPTY_SETTINGS, ...settings, sampling: { ...EMPTY_SETTINGS.sampling, ...settings.sampling } };
}

function keyIn(name: "localStorage" | "sessionStorage"): string | null {
  return storage(name)?.getItem(KEY) ?? null;
}

/** undefined where the browser allows none. */
function storage(name: "localStorage" | "sessionStorage"): Storage | undefined {
  try {
    return window[name];
  } catch {
    return undefined;
  }
}

function stored<T>(name: string, is: (value: unknown) => value is T): T | undefined {
  try {
    const value = JSON.parse(storage("localStorage")?.getItem(PREFIX + name) ?? "null") as unknown;
    return is(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

function store(name: string, value: unknown): void {
  try {
    storage("localStorage")?.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // no room left: it is forgotten with the page
  }
}

function isTheme(value: unknown): value is Theme {
  return value === "system" || value === "light" || value === "dark";
}

function isBoolean(value: unknown): value is boolean {
  return typeof value === "boolean";
}

function isString(value: unknown): value is string {
  return typeof value === "string";
}

function isObject(value: unknown): value is Partial<Settings> {
  return typeof value === "object" && value !== null;
}
