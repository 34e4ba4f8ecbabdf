// Theme, key, and all conversations as a file.
import type { JSX } from "preact";
import { useRef } from "preact/hooks";

import { conversations, newestFirst, put } from "../state/conversations.ts";
import { type Theme, apiKey, rememberKey, theme } from "../state/preferences.ts";
import { loadModels, needsKey } from "../state/server.ts";
import { imported } from "../state/transfer.ts";
import { deleteConversation } from "../sidebar/sidebar.tsx";
import { download } from "../sidebar/download.ts";
import { Button } from "../ui/button.tsx";
import { Dialog } from "../ui/dialog.tsx";
import { Icon, type IconName } from "../ui/icons.tsx";
import { toast } from "../ui/toast.tsx";
import { openDialog } from "./dialog-state.ts";

const THEMES: [Theme, IconName, string][] = [
  ["system", "screen", "As the system"],
  ["light", "sun", "Light"],
  ["dark", "moon", "Dark"],
];

export function PreferencesDialog(): JSX.Element {
  const file = useRef<HTMLInputElement>(null);
  const number = newestFirst.value.length;
  return (
    <Dialog title="Preferences" onClose={() => openDialog(null)}>
      <div class="stack wide">
        <fieldset class="group">
          <legend>Theme</legend>
          <div class="segments">
            {THEMES.map(([value, icon, label]) => (
              <label key={value}>
                <input type="radio" name="theme" checked={theme.value === value} onChange={() => (theme.value = value)} />
                <span>
                  <Icon name={icon} size={16} /> {label}
                </span>
              </label>
            ))}
          </div>
        </fieldset>
        <section class="group" aria-labelledby="key-title">
          <h3 id="key-title">API key</h3>
          <p class="muted small">
            {apiKey.value ? "One is kept in this browser and sent to this server." : "None is kept. Servers without keys need none."}
          </p>
          <div class="row">
            <Button
              onClick={() => {
                openDialog(null);
                needsKey.value = true;
              }}
            >
              <Icon name="key" size={16} /> {apiKey.value ? "Change" : "Enter"} the key
            </Button>
            {apiKey.value && (
              <Button
                onClick={() => {
                  rememberKey("", false);
                  openDialog(null);
                  void loadModels();
                }}
              >
                Forget it
              </Button>
            )}
          </div>
        </section>
        <section class="group" aria-labelledby="chats-title">
          <h3 id="chats-title">Chats</h3>
          <p class="muted small">
            {number === 1 ? "One chat is" : `${number} chats are`} kept in this browser. The server keeps none.
          </p>
          <div class="row">
            <Button disabled={number === 0} onClick={() => download([...conversations.peek().values()], "anllm-chats")}>
              <Icon name="download" size={16} /> Export all
            </Button>
            <Button onClick={() => file.current?.click()}>
              <Icon name="upload" size={16} /> Import
            </Button>
            <Button kind="danger" disabled={number === 0} onClick={deleteAll}>
              <Icon name="trash" size={16} /> Delete all
            </Button>
            <input
              ref={file}
              type="file"
              class="hidden"
              accept="application/json,.json"
              aria-label="File to import"
              tabIndex={-1}
              onChange={(event) => {
                const chosen = event.currentTarget.files?.[0];
                event.currentTarget.value = "";
                if (chosen) void importFrom(chosen);
              }}
            />
          </div>
        </section>
      </div>
    </Dialog>
  );
}

async function importFrom(file: File): Promise<void> {
  try {
    const found = imported(await file.text());
    for (const conversation of found) put(conversation);
    openDialog(null);
    toast(found.length === 1 ? "One chat imported" : `${found.length} chats imported`);
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error));
  }
}

function deleteAll(): void {
  const all = [...conversations.peek().values()];
  for (const { id } of all) deleteConversation(id);
  openDialog(null);
  toast(all.length === 1 ? "Chat deleted" : `${all.length} chats deleted`, {
    label: "Undo",
    onChoose: () => all.forEach(put),
  });
}
