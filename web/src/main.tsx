import "./styles/fonts.css";
import "./styles/theme.css";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/chat.css";
import "./styles/markdown.css";
import "./styles/panel.css";
import "./styles/dialogs.css";
import "./styles/load.css";
import "./styles/media.css";

import { effect } from "@preact/signals";
import { render } from "preact";

import { App } from "./app.tsx";
import { listenForKeys } from "./keys.ts";
import { isNarrow } from "./sidebar/sidebar.tsx";
import { current, loadConversations } from "./state/conversations.ts";
import { isSidebarOpen } from "./state/preferences.ts";
import { follow, page } from "./state/route.ts";
import { watch } from "./state/server.ts";

if (isNarrow()) isSidebarOpen.value = false;
follow();
window.addEventListener("hashchange", follow);
window.addEventListener("online", () => void watch());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) void watch();
});
effect(() => {
  const title = page.value === "load" ? "Server load" : current.value?.title;
  document.title = title ? `${title} · anllm` : "anllm";
});
listenForKeys();
void loadConversations();
void watch();

const root = document.getElementById("app");
if (root) render(<App />, root);
