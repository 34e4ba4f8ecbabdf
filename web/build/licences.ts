// Writes dist/assets/licences.txt: the licences of the packages whose code is in the bundle.
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Plugin } from "vite";

// Taken by a style sheet, so that no module stands for it.
const FONT = "@fontsource-variable/inter";

export function licences(): Plugin {
  let root = "";
  return {
    name: "licences",
    apply: "build",
    configResolved(config) {
      root = config.root;
    },
    generateBundle() {
      const folders = new Set([join(root, "node_modules", FONT)]);
      for (const id of this.getModuleIds()) {
        const match = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id.replaceAll("\\", "/").replace("\0", ""));
        if (match?.[1] && existsSync(join(match[1], "package.json"))) folders.add(match[1]);
      }
      const parts = [...folders].map(licenceOf).sort();
      const head = "The web chat of anllm contains the following packages.\n\n";
      this.emitFile({ type: "asset", fileName: "assets/licences.txt", source: head + parts.join("\n") });
    },
  };
}

function licenceOf(folder: string): string {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as {
    name: string;
    version: string;
    license: string;
  };
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  if (!file) throw new Error(`${name} in ${dirname(folder)} has no licence file`);
  const title = `${name} ${version} (${license})`;
  return `${title}\n${"=".repeat(title.length)}\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
}
