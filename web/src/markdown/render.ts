// Markdown as clean HTML, block by block, so that a text that grows is drawn anew in its last block only.
import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens, type TokensList, type TokenizerAndRendererExtension } from "marked";
import { signal } from "@preact/signals";

export interface Block {
  /** Of which the HTML is made: equal source, equal HTML. */
  source: string;
  html: () => TrustedHTML | string;
}

/** Loaded with the first code; what is drawn before has no colours. */
export const highlighter = signal<((code: string, language: string) => string | null) | null>(null);
let isLoading = false;

const INLINE_TAG = /^<\/?(?:br|sub|sup|kbd|mark|u|b|i|s|em|strong)\s*\/?>$/i;

const MATH = /^(?:\\\([\s\S]+?\\\)|\\\[[\s\S]+?\\\]|\$\$[\s\S]+?\$\$)/;

// TeX is shown as it is written: without this, Markdown would take its backslashes and underscores for its own.
const math: TokenizerAndRendererExtension = {
  name: "math",
  level: "inline",
  start: (source) => /\\[([]|\$\$/.exec(source)?.index,
  tokenizer(source) {
    const raw = MATH.exec(source)?.[0];
    return raw === undefined ? undefined : { type: "math", raw };
  },
  renderer: ({ raw }) => `<code class="math">${escaped(raw)}</code>`,
};

const DETAILS = /^ {0,3}<details(?: open)?>\s*<summary>([\s\S]*?)<\/summary>([\s\S]*?)(?:<\/details>[^\S\n]*(?:\n+|$)|$)/;

// What is folded away is Markdown too, over empty lines; Markdown itself would see two tags apart.
const details: TokenizerAndRendererExtension = {
  name: "details",
  level: "block",
  start: (source) => /^ {0,3}<details/m.exec(source)?.index,
  tokenizer(source) {
    const [raw, summary = "", body = ""] = DETAILS.exec(source) ?? [];
    if (raw === undefined) return undefined;
    return { type: "details", raw, summary: this.lexer.inlineTokens(summary.trim()), tokens: this.lexer.blockTokens(body) };
  },
  renderer(token) {
    const summary = this.parser.parseInline(token.summary as Token[]);
    return `<details><summary>${summary}</summary>${this.parser.parse(token.tokens ?? [])}</details>`;
  },
};

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: [math, details],
  renderer: {
    // Tags that only shape words pass. All others are shown as they are written, since they are the answer's text.
    html({ text }) {
      return INLINE_TAG.test(text.trim()) ? text : escaped(text);
    },
    // The page may load nothing from elsewhere, and a picture would tell its host that it was looked at.
    image({ href, text }) {
      return `<a href="${escaped(href)}">${escaped(text || href)}</a>`;
    },
    checkbox({ checked }) {
      return `<span class="task" role="img" aria-label="${checked ? "done" : "to do"}">${checked ? "☑" : "☐"}</span> `;
    },
    code({ text, lang }) {
      return codeBlock(text, (lang ?? "").trim().split(/\s/, 1)[0]?.toLowerCase() ?? "");
    },
    table(token: Tokens.Table) {
      const cells = (row: Tokens.TableCell[], tag: string) =>
        row
          .map((cell) => {
            const align = cell.align ? ` align="${cell.align}"` : "";
            return `<${tag}${align}>${this.parser.parseInline(cell.tokens)}</${tag}>`;
          })
          .join("");
      const rows = token.rows.map((row) => `<tr>${cells(row, "td")}</tr>`).join("");
      const head = `<thead><tr>${cells(token.header, "th")}</tr></thead>`;
      return `<div class="table" tabindex="0" role="region" aria-label="Table"><table>${head}<tbody>${rows}</tbody></table></div>`;
    },
  },
});

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

export function blocksOf(text: string): Block[] {
  const tokens = marked.lexer(text);
  const blocks: Block[] = [];
  for (const token of tokens) {
    if (token.type === "space" || token.type === "def") continue;
    blocks.push({ source: token.raw, html: () => htmlOf(token, tokens) });
  }
  return blocks;
}

function htmlOf(token: Token, all: TokensList): TrustedHTML | string {
  const one = Object.assign([token], { links: all.links });
  return clean(marked.parser(one));
}

/** Code alone, without markdown around it. */
export function codeHtml(code: string, language: string): TrustedHTML | string {
  return clean(codeBlock(code, language));
}

function codeBlock(code: string, language: string): string {
  if (!highlighter.value) loadHighlighter();
  const coloured = (language && highlighter.value?.(code, language)) || escaped(code);
  const label = language && language !== "text" ? escaped(language) : "code";
  return (
    `<figure class="code"><figcaption><span>${label}</span>` +
    `<button type="button" class="copy-code">Copy</button></figcaption>` +
    `<pre tabindex="0"><code>${coloured}</code></pre></figure>`
  );
}

function loadHighlighter(): void {
  if (isLoading) return;
  isLoading = true;
  void import("./highlight.ts").then(({ highlight }) => (highlighter.value = highlight));
}

function clean(html: string): TrustedHTML | string {
  return DOMPurify.sanitize(html, {
    USE_PROFILES: { html: true },
    FORBID_TAGS: ["style", "form", "input", "textarea", "select", "iframe", "img", "video", "audio", "picture", "source"],
    FORBID_ATTR: ["style", "id", "name"],
    RETURN_TRUSTED_TYPE: true,
  });
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
