import { defineConfig } from "vite";

import { licences } from "./build/licences.ts";
import { sourceDigest } from "./build/source-digest.ts";

// The server that `npm run dev` passes API calls on to.
const api = process.env.ANLLM_URL ?? "http://127.0.0.1:8000";

export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/anllm/server/webui/dist",
    emptyOutDir: true,
    target: "es2022",
    cssTarget: ["chrome123", "firefox120", "safari17.5"], // the first with light-dark()
    assetsInlineLimit: 0, // a data: address would need a looser content security policy
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
  plugins: [licences(), sourceDigest()],
  server: { proxy: Object.fromEntries(["/v1", "/health", "/metrics", "/version"].map((path) => [path, api])) },
});
