// Ctrl+K: conversations by words of their titles and messages, and the commands.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { isPanelOpen } from "../panel/panel-state.ts";
import { newestFirst, open } from "../state/conversations.ts";
import { theme } from "../state/preferences.ts";
import { go } from "../state/route.ts";
import { newChat } from "../sidebar/sidebar.tsx";
import { Dialog } from "../ui/dialog.tsx";
import { Icon, type IconName } from "../ui/icons.tsx";
import { openDialog } from "./dialog-state.ts";
import { type Found, search } from "./find.ts";

interface Entry {
  key: string;
  icon: IconName;
  title: string;
  found?: Found;
  onChoose: () => void;
}

const COMMANDS: Entry[] = [
  { key: "new", icon: "plus", title: "New chat", onChoose: newChat },
  { key: "load", icon: "gauge", title: "Server load", onChoose: () => go("#/load") },
  { key: "settings", icon: "sliders", title: "Chat settings", onChoose: () => (isPanelOpen.value = true) },
  { key: "dark", icon: "moon", title: "Dark theme", onChoose: () => (theme.value = "dark") },
  { key: "light", icon: "sun", title: "Light theme", onChoose: () => (theme.value = "light") },
  { key: "preferences", icon: "key", title: "Preferences, key, import and export", onChoose: () => openDialog("preferences") },
  { key: "help", icon: "help", title: "Help and keys", onChoose: () => openDialog("help") },
];

export function SearchDialog(): JSX.Element {
  const [words, setWords] = useState("");
  const [chosen, setChosen] = useState(0);
  const list = useRef<HTMLUListElement>(null);
  const entries = useMemo(() => entriesFor(words), [words]);
  useEffect(() => list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }), [chosen]);

  const choose = (entry: Entry | undefined) => {
    if (!entry) return;
    openDialog(null);
    entry.onChoose();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      setChosen((chosen + step + entries.length) % Math.max(entries.length, 1));
    } else if (event.key === "Enter") {
      event.preventDefault();
      choose(entries[chosen]);
    }
  };
  return (
    <Dialog title="Search" kind="bare" onClose={() => openDialog(null)}>
      <div class="search-head">
        <Icon name="search" />
        <input
          type="text"
          role="combobox"
          aria-expanded="true"
          aria-controls="search-results"
          aria-activedescendant={entries[chosen] ? `result-${entries[chosen].key}` : undefined}
          aria-label="Search chats and commands"
          placeholder="Search chats and commands"
          autoFocus
          autoComplete="off"
          value={words}
          onInput={(event) => {
            setWords(event.currentTarget.value);
            setChosen(0);
          }}
          onKeyDown={onKeyDown}
        />
      </div>
      <ul class="results" id="search-results" role="listbox" aria-label="Results" ref={list}>
        {entries.map((entry, i) => (
          <li
            key={entry.key}
            id={`result-${entry.key}`}
            role="option"
            aria-selected={i === chosen}
            onMouseMove={() => setChosen(i)}
            onClick={() => choose(entry)}
          >
            <Icon name={entry.icon} size={17} />
            <span class="result-text">
              <span>{entry.title}</span>
              {entry.found?.match && (
                <small>
                  {entry.found.before}
                  <mark>{entry.found.match}</mark>
                  {entry.found.after}
                </small>
              )}
            </span>
          </li>
        ))}
      </ul>
      {entries.length === 0 && <p class="muted no-results">Nothing found.</p>}
    </Dialog>
  );
}

const MAX_RESULTS = 30;

function entriesFor(words: string): Entry[] {
  const chats = search(newestFirst.peek(), words, MAX_RESULTS).map(
    (found): Entry => ({
      key: found.id,
      icon: "chat",
      title: found.title,
      found,
      onChoose: () => open(found.id),
    }),
  );
  const wanted = words.trim().toLowerCase();
  const commands = COMMANDS.filter(({ title }) => title.toLowerCase().includes(wanted));
  return wanted ? [...chats, ...commands] : [...commands.slice(0, 3), ...chats.slice(0, 8)];
}
