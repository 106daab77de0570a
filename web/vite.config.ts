import { defineConfig } from "vite";

// `npm run dev` serves the page on a port of its own and asks a server on 8000 for the rest.
const server = "http://127.0.0.1:8000";

export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2023",
    cssTarget: ["chrome123", "firefox120", "safari17.5"], // the first with light-dark()
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0, // the server's policy forbids what is inline
    rolldownOptions: {
      checks: { pluginTimings: false }, // says on a busy machine that it is busy
      output: { entryFileNames: "assets/[name]-[hash].js", assetFileNames: "assets/[name]-[hash][extname]" },
    },
  },
  // The Host header stays the browser's: the server takes requests of its own origin alone.
  server: {
    proxy: Object.fromEntries(["/v1", "/debug", "/health", "/metrics"].map((path) => [path, { target: server, changeOrigin: false }])),
  },
});
