// Builds the page and writes it as a C++ source with its files: node build.mjs FOLDER makes FOLDER/page_files.cpp.
import { execFileSync } from "node:child_process";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { basename, extname, join, resolve } from "node:path";
import { gzipSync } from "node:zlib";
import { createHash } from "node:crypto";
import { build } from "vite";

const folder = resolve(process.argv[2]);
const dist = join(folder, "dist");
const root = import.meta.dirname;
const types = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
  ".woff2": "font/woff2",
};

try {
  execFileSync(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "-p", root], { stdio: "inherit" });
} catch {
  process.exit(1);
}
await build({ root, logLevel: "warn", build: { outDir: dist, emptyOutDir: true } });

function embed(name, path, extension) {
  const type = types[extension];
  if (!type) throw new Error(`${path}: no content type is known for it`);
  const bytes = readFileSync(name);
  const packed = gzipSync(bytes, { level: 9 });
  const smaller = packed.length < 0.9 * bytes.length;
  if (smaller) writeFileSync(`${name}.gz`, packed);
  return { name, path, type, smaller, hash: createHash("sha256").update(bytes).digest("hex") };
}

const files = [
  embed(join(dist, "index.html"), "/", ".html"),
  ...readdirSync(join(dist, "assets"))
    .sort()
    .map((name) => embed(join(dist, "assets", name), `/assets/${basename(name)}`, extname(name))),
];

// The hash makes this source, and so its object, another one whenever a file is.
const blob = (
  symbol,
  name,
) => `asm(".section .rodata\\n.balign 16\\n${symbol}:\\n.incbin \\"${name}\\"\\n${symbol}_end:\\n.previous");
extern "C" __attribute__((visibility("hidden"))) const char ${symbol}[], ${symbol}_end[];`;
const symbols = files.map((_, at) => `tailrace_page_${at}`);
const view = (symbol) => `{${symbol}, static_cast<size_t>(${symbol}_end - ${symbol})}`;
writeFileSync(
  join(folder, "page_files.cpp"),
  `#include "page_files.h"

${files
  .map(
    (file, at) => `// ${file.path} ${file.hash}
${blob(symbols[at], file.name)}
${file.smaller ? blob(`${symbols[at]}_gz`, `${file.name}.gz`) : ""}`,
  )
  .join("\n")}

namespace tailrace {

std::span<const PageFile> page_files() {
  static const PageFile files[] = {
${files.map((file, at) => `      {"${file.path}", "${file.type}", ${view(symbols[at])}, ${file.smaller ? view(`${symbols[at]}_gz`) : '""'}},`).join("\n")}
  };
  return files;
}

}  // namespace tailrace
`,
);
