// A chat that has not begun.
import type { JSX } from "preact";

import { health, model } from "../state/server.ts";
import { Icon, type IconName, Logo } from "../ui/icons.tsx";
import { composerFocus, setDraft } from "./composer.tsx";

const IDEAS: [IconName, string, string][] = [
  ["thought", "Explain an idea", "Explain how a transformer predicts the next token, to somebody who knows no maths."],
  ["braces", "Write code", "Write a Python function that merges overlapping intervals, with a short test."],
  ["pencil", "Improve a text", "Make this sentence shorter and clearer: "],
  ["chat", "Plan something", "Plan a quiet weekend by the sea for two, on a small budget."],
];

const WORDS: Record<string, string> = {
  unknown: "",
  loading: "The model is loading. You can write already.",
  restarting: "The engine is being restarted.",
  draining: "The server is shutting down.",
  failed: "The model could not be loaded; the server's log says why.",
  closed: "The engine is not running.",
  unreachable: "The server can't be reached.",
};

export function EmptyChat(): JSX.Element {
  return (
    <div class="empty">
      <Logo size={44} />
      <h1>What is on your mind?</h1>
      <p class="muted">
        {WORDS[health.value] ?? (
          <>
            <span class="model-name">{model.value ?? "The model"}</span> runs on this server. Chats stay in this browser.
          </>
        )}
      </p>
      <ul class="ideas">
        {IDEAS.map(([icon, title, text]) => (
          <li key={title}>
            <button
              type="button"
              onClick={() => {
                setDraft(text);
                composerFocus.value += 1;
              }}
            >
              <Icon name={icon} size={18} />
              <span>
                <strong>{title}</strong>
                <small>{text}</small>
              </span>
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
