const isMac = /mac|iphone|ipad/i.test(navigator.userAgent);

/** The key that goes with letters for commands, as it is called here. */
export const COMMAND_KEY = isMac ? "⌘" : "Ctrl";

/** "Ctrl+K", or "⌘K" on a Mac; "Shift" is "⇧" there. */
export function keys(...names: string[]): string {
  return isMac ? `${COMMAND_KEY}${names.join("").replace("Shift", "⇧")}` : [COMMAND_KEY, ...names].join("+");
}
