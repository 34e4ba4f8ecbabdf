import type { JSX } from "preact";

import { Dialog } from "../ui/dialog.tsx";
import { COMMAND_KEY } from "../ui/platform.ts";
import { openDialog } from "./dialog-state.ts";

const KEYS: [string[], string][] = [
  [["Enter"], "Send the message"],
  [["Shift", "Enter"], "A new line"],
  [["Esc"], "Stop the answer"],
  [["Ctrl", "K"], "Search chats and commands"],
  [["Ctrl", "Shift", "O"], "New chat"],
  [["Ctrl", "Shift", "S"], "Show or hide the sidebar"],
  [["Ctrl", ","], "Chat settings"],
  [["Ctrl", "/"], "This help"],
];

export function HelpDialog(): JSX.Element {
  return (
    <Dialog title="Help and keys" onClose={() => openDialog(null)}>
      <dl class="keys">
        {KEYS.map(([keys, what]) => (
          <div key={what}>
            <dt>{what}</dt>
            <dd>
              {keys.map((key) => (
                <kbd key={key}>{key === "Ctrl" ? COMMAND_KEY : key}</kbd>
              ))}
            </dd>
          </div>
        ))}
      </dl>
      <p class="muted small">
        An edited message and an answer asked for anew begin a branch; the arrows below a message lead from one to the other.
        Chats stay in this browser: the server keeps none. The{" "}
        <a href="./docs" target="_blank" rel="noreferrer">
          API
        </a>{" "}
        that this page uses is open to your own programs.{" "}
        <a href="./assets/licences.txt" target="_blank" rel="noreferrer">
          Licences
        </a>{" "}
        of what this page is made of.
      </p>
    </Dialog>
  );
}
