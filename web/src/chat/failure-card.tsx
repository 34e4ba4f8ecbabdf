// An error, what it means and what to do.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { needsKey } from "../state/server.ts";
import type { Failure } from "../types.ts";
import { Button } from "../ui/button.tsx";
import { Icon } from "../ui/icons.tsx";

interface Advice {
  title: string;
  hint: string;
}

function adviceFor({ status, code, param }: Failure, hasBegun: boolean): Advice {
  if (code === "context_length_exceeded")
    return { title: "The conversation is too long", hint: "Start a new chat, or edit an earlier message to go on from there." };
  if (status === 401) return { title: "An API key is needed", hint: "Enter the key that this server was started with." };
  if (status === 403) return { title: "Not allowed", hint: "Open this page by the address that the server printed." };
  if (status === 404) return { title: "Not found", hint: "Choose another model at the top, and try again." };
  if (status === 413) return { title: "The message is too large", hint: "Shorten it, and send it again." };
  if (status === 429) return { title: "The server is busy", hint: "Others are being answered. Try again in a moment." };
  if (status === 503) return { title: "The server isn't ready", hint: "See its log for the reason, and try again." };
  if (status >= 500) return { title: "The server failed", hint: "Try again. Its log has the details." };
  if (status >= 400)
    return { title: "The request was refused", hint: param ? `Look at “${param}” in the chat settings.` : "Look at the chat settings." };
  return { title: hasBegun ? "The answer broke off" : "The answer did not come", hint: "See whether the server runs, and try again." };
}

interface Props {
  failure: Failure;
  /** Whether a part of the answer is there. */
  hasBegun: boolean;
  onRetry: () => void;
}

export function FailureCard({ failure, hasBegun, onRetry }: Props): JSX.Element {
  const { title, hint } = adviceFor(failure, hasBegun);
  const wait = useCountdown(failure.retryAfterS ?? 0);
  return (
    <div class="failure" role="alert">
      <Icon name="alert" />
      <div>
        <strong>{title}</strong>
        <p class="said">{failure.message}</p>
        <p>{hint}</p>
        <div class="row">
          {failure.status === 401 && (
            <Button kind="main" onClick={() => (needsKey.value = true)}>
              Enter the key
            </Button>
          )}
          <Button onClick={onRetry} disabled={wait > 0}>
            {wait > 0 ? `Try again in ${wait} s` : "Try again"}
          </Button>
        </div>
      </div>
    </div>
  );
}

function useCountdown(from: number): number {
  const [left, setLeft] = useState(Math.min(from, 60));
  useEffect(() => {
    if (left <= 0) return undefined;
    const timer = setTimeout(() => setLeft(left - 1), 1000);
    return () => clearTimeout(timer);
  }, [left]);
  return left;
}
