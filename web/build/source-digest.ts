// Writes dist/build.json: a digest of what the bundle was built from, and one of each file that was built. With it a
// test sees without Node that the committed bundle is that of the sources (tests/server/webui/test_bundle.py).
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join, relative, resolve, sep } from "node:path";
import type { Plugin } from "vite";

const SOURCES = ["build", "src", "index.html", "package.json", "package-lock.json", "vite.config.ts"];

export function sourceDigest(): Plugin {
  let root = "";
  let out = "";
  return {
    name: "source-digest",
    apply: "build",
    configResolved(config) {
      root = config.root;
      out = resolve(config.root, config.build.outDir);
    },
    closeBundle() {
      const files = Object.fromEntries(filesBelow(out).map((name) => [name, sha256(readFileSync(join(out, name)))]));
      const sources = digestOf(root, SOURCES.flatMap((name) => filesBelow(root, name)));
      writeFileSync(join(out, "build.json"), JSON.stringify({ sources, files }, null, 1) + "\n");
    },
  };
}

/** sha256 over the lines `sha256  name` of all files, in the order of their names. */
function digestOf(root: string, names: string[]): string {
  const lines = [...names].sort().map((name) => `${sha256(readFileSync(join(root, name)))}  ${name}\n`);
  return sha256(lines.join(""));
}

function filesBelow(root: string, under = "."): string[] {
  const path = join(root, under);
  const entries = readdirSafe(path);
  if (entries === null) return [under];
  return entries
    .filter((entry) => entry.isFile() && !entry.name.startsWith("."))
    .map((entry) => relative(root, join(entry.parentPath, entry.name)).split(sep).join("/"))
    .sort();
}

function readdirSafe(path: string) {
  try {
    return readdirSync(path, { withFileTypes: true, recursive: true });
  } catch {
    return null; // a file
  }
}

function sha256(data: string | Buffer): string {
  return createHash("sha256").update(data).digest("hex");
}
