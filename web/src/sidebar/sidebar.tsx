// The list of conversations and the ways to everything else.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { openDialog } from "../dialogs/dialog-state.ts";
import { conversations, isLoaded, newestFirst, open, remove, update } from "../state/conversations.ts";
import { isAnswering, stop } from "../state/generate.ts";
import { isSidebarOpen } from "../state/preferences.ts";
import { currentId, go, page } from "../state/route.ts";
import { health } from "../state/server.ts";
import type { Conversation } from "../types.ts";
import { IconButton } from "../ui/button.tsx";
import { Icon, Logo } from "../ui/icons.tsx";
import { Menu } from "../ui/menu.tsx";
import { keys } from "../ui/platform.ts";
import { toast } from "../ui/toast.tsx";
import { download } from "./download.ts";

export function isNarrow(): boolean {
  return window.matchMedia("(max-width: 820px)").matches;
}

/** On a narrow screen the list lies over the page, and goes once something is chosen. */
function done(): void {
  if (isNarrow()) isSidebarOpen.value = false;
}

export function newChat(): void {
  open(null);
  done();
}

export function deleteConversation(id: string): void {
  stop(id);
  const restore = remove(id);
  toast("Chat deleted", { label: "Undo", onChoose: restore });
}

export function Sidebar(): JSX.Element {
  return (
    <nav class="sidebar" aria-label="Chats" id="sidebar">
      <div class="sidebar-head">
        <span class="brand">
          <Logo />
          anllm
        </span>
        <IconButton icon="sidebar" label="Hide the sidebar" onClick={() => (isSidebarOpen.value = false)} />
      </div>
      <div class="sidebar-actions">
        <button type="button" class="nav-item" onClick={newChat}>
          <Icon name="plus" /> New chat <kbd>{keys("Shift", "O")}</kbd>
        </button>
        <button type="button" class="nav-item" onClick={() => openDialog("search")}>
          <Icon name="search" /> Search <kbd>{keys("K")}</kbd>
        </button>
      </div>
      <div class="sidebar-list">
        {isLoaded.value && newestFirst.value.length === 0 && <p class="muted small">Your chats will be listed here.</p>}
        {groups(newestFirst.value).map(([title, list]) => (
          <section key={title} aria-label={title}>
            <h2>{title}</h2>
            <ul>
              {list.map((conversation) => (
                <Item key={conversation.id} conversation={conversation} />
              ))}
            </ul>
          </section>
        ))}
      </div>
      <div class="sidebar-foot">
        <button
          type="button"
          class="nav-item"
          aria-current={page.value === "load" ? "page" : undefined}
          onClick={() => {
            go("#/load");
            done();
          }}
        >
          <Icon name="gauge" /> Server load
          <span class={`health ${health.value}`} title={`The server's state: ${health.value}`}>
            <span class="hidden">, state: {health.value}</span>
          </span>
        </button>
        <div class="foot-row">
          <button type="button" class="nav-item" onClick={() => openDialog("preferences")}>
            <Icon name="sliders" /> Preferences
          </button>
          <IconButton icon="help" label="Help and keys" onClick={() => openDialog("help")} />
        </div>
      </div>
    </nav>
  );
}

function Item({ conversation }: { conversation: Conversation }): JSX.Element {
  const [isRenaming, setRenaming] = useState(false);
  const { id, title } = conversation;
  if (isRenaming) return <Rename conversation={conversation} onClose={() => setRenaming(false)} />;
  const isCurrent = currentId.value === id && page.value === "chat";
  return (
    <li class={isCurrent ? "item current" : "item"}>
      <a
        href={`#/c/${id}`}
        aria-current={isCurrent ? "page" : undefined}
        title={title}
        onClick={done}
        onDblClick={() => setRenaming(true)}
      >
        {isAnswering(id) && <i class="answering" title="Answering" />}
        {title}
      </a>
      <Menu
        label={`More for “${title}”`}
        buttonClass="icon-button"
        align="end"
        items={[
          { label: "Rename", icon: "pencil", onChoose: () => setRenaming(true) },
          { label: "Export", icon: "download", onChoose: () => exportOne(id) },
          { label: "Delete", icon: "trash", isDanger: true, onChoose: () => deleteConversation(id) },
        ]}
      >
        <Icon name="more" size={16} />
      </Menu>
    </li>
  );
}

function exportOne(id: string): void {
  const conversation = conversations.peek().get(id);
  if (conversation) download([conversation], conversation.title);
}

function Rename({ conversation, onClose }: { conversation: Conversation; onClose: () => void }): JSX.Element {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.select(), []);
  const rename = () => {
    const title = input.current?.value.trim();
    if (title) update(conversation.id, (one) => ({ ...one, title, isNamed: true }));
    onClose();
  };
  return (
    <li class="item renaming">
      <input
        ref={input}
        aria-label="Title"
        defaultValue={conversation.title}
        maxLength={200}
        onBlur={rename}
        onKeyDown={(event) => {
          if (event.key === "Enter") rename();
          if (event.key !== "Escape") return;
          event.stopPropagation();
          onClose();
        }}
      />
    </li>
  );
}

const DAY_MS = 86_400_000;

function groups(list: Conversation[]): [string, Conversation[]][] {
  const today = new Date().setHours(0, 0, 0, 0);
  const result = new Map<string, Conversation[]>();
  for (const conversation of list) {
    const name = groupOf(conversation.updatedAt, today);
    result.set(name, [...(result.get(name) ?? []), conversation]);
  }
  return [...result];
}

function groupOf(timeMs: number, today: number): string {
  if (timeMs >= today) return "Today";
  if (timeMs >= today - DAY_MS) return "Yesterday";
  if (timeMs >= today - 7 * DAY_MS) return "Last 7 days";
  return timeMs >= today - 30 * DAY_MS ? "Last 30 days" : "Older";
}
