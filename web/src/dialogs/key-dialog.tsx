// Asks for the API key when the server wants one.
import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { apiKey, rememberKey } from "../state/preferences.ts";
import { loadModels, needsKey } from "../state/server.ts";
import { Button } from "../ui/button.tsx";
import { Dialog } from "../ui/dialog.tsx";

export function KeyDialog(): JSX.Element {
  const [key, setKey] = useState("");
  const [isForGood, setForGood] = useState(true);
  const [isWrong, setWrong] = useState(apiKey.peek() !== "");
  const [isBusy, setBusy] = useState(false);
  const submit = async () => {
    setBusy(true);
    rememberKey(key.trim(), isForGood);
    await loadModels(); // clears needsKey, and with it this dialog, if the key is right
    setBusy(false);
    setWrong(true);
  };
  return (
    <Dialog title="This server needs an API key" onClose={() => (needsKey.value = false)}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <label class="label">
          API key
          <input
            type="password"
            autoFocus
            autoComplete="current-password"
            spellcheck={false}
            required
            value={key}
            aria-invalid={isWrong}
            aria-describedby="key-hint"
            onInput={(event) => {
              setKey(event.currentTarget.value);
              setWrong(false);
            }}
          />
        </label>
        <p id="key-hint" class={isWrong ? "fault" : "muted small"} role={isWrong ? "alert" : undefined}>
          {isWrong
            ? "The server refuses this key. Ask whoever started the server for the right one."
            : "One of those that the server was started with. It stays in this browser and is sent to this server only."}
        </p>
        <label class="check">
          <input type="checkbox" checked={isForGood} onChange={(event) => setForGood(event.currentTarget.checked)} />
          Remember it in this browser
        </label>
        <div class="row end">
          <Button kind="main" type="submit" disabled={isBusy || key.trim() === ""}>
            {isBusy ? "Trying…" : "Use this key"}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
