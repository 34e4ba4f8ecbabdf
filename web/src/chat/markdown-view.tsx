import type { JSX } from "preact";
import { memo } from "preact/compat";
import { useMemo } from "preact/hooks";

import { type Block, blocksOf, codeHtml, highlighter } from "../markdown/render.ts";
import { copy } from "../ui/clipboard.ts";

/** An answer. Blocks whose text has not changed are left alone. */
export function MarkdownView({ text, isGrowing }: { text: string; isGrowing: boolean }): JSX.Element {
  const blocks = useMemo(() => blocksOf(text), [text]);
  const colours = highlighter.value !== null;
  return (
    <div class={isGrowing ? "markdown growing" : "markdown"} onClick={onCopyCode}>
      {blocks.map((block, i) => (
        <BlockView key={i} block={block} colours={colours && block.source.includes("```")} />
      ))}
    </div>
  );
}

export function CodeView({ text, language }: { text: string; language: string }): JSX.Element {
  const colours = highlighter.value !== null;
  const html = useMemo(() => codeHtml(text, language), [text, language, colours]);
  return <div class="markdown" onClick={onCopyCode} dangerouslySetInnerHTML={{ __html: html as string }} />;
}

interface BlockProps {
  block: Block;
  /** Whether it has colours now: drawn anew when they come. */
  colours: boolean;
}

const BlockView = memo(
  ({ block }: BlockProps) => <div class="block" dir="auto" dangerouslySetInnerHTML={{ __html: block.html() as string }} />,
  (before: BlockProps, now: BlockProps) =>
    before.block.source === now.block.source && before.colours === now.colours,
);

function onCopyCode(event: MouseEvent): void {
  const button = (event.target as HTMLElement).closest<HTMLElement>(".copy-code");
  const code = button?.closest(".code")?.querySelector("code")?.textContent;
  if (!button || code === undefined) return;
  void copy(code.replace(/\n$/, "")).then((done) => {
    button.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
}
