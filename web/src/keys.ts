// Keys that work everywhere on the page.
import { composerFocus } from "./chat/composer.tsx";
import { openDialog } from "./dialogs/dialog-state.ts";
import { isPanelOpen } from "./panel/panel-state.ts";
import { newChat } from "./sidebar/sidebar.tsx";
import { current } from "./state/conversations.ts";
import { isAnswering, stop } from "./state/generate.ts";
import { isSidebarOpen } from "./state/preferences.ts";

const WITH_CTRL: Partial<Record<string, () => void>> = {
  k: () => openDialog("search"),
  "/": () => openDialog("help"),
  ",": () => (isPanelOpen.value = !isPanelOpen.value),
};

const WITH_CTRL_SHIFT: Partial<Record<string, () => void>> = {
  o: newChat,
  s: () => (isSidebarOpen.value = !isSidebarOpen.value),
};

export function listenForKeys(): void {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented && !document.querySelector("dialog[open]")) onEscape();
    if (!(event.ctrlKey || event.metaKey) || event.altKey) return;
    const action = (event.shiftKey ? WITH_CTRL_SHIFT : WITH_CTRL)[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

/** Stops the answer; if there is none, closes the settings. */
function onEscape(): void {
  const id = current.peek()?.id;
  if (id && isAnswering(id)) stop(id);
  else if (isPanelOpen.peek()) isPanelOpen.value = false;
  composerFocus.value += 1;
}
