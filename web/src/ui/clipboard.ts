/** Whether it was copied. The clipboard's own interface is there for secure contexts only. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text: string): boolean {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "hidden";
  const host = document.querySelector("dialog[open]") ?? document.body;
  host.append(area);
  area.select();
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- what works over http:// to another machine
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
