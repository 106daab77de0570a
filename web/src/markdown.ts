// Markdown to safe HTML, block by block, so that a growing answer redraws its last block alone.
import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";

const md = new MarkdownIt({ html: false, linkify: true, breaks: false });
md.disable("image"); // nothing is loaded from elsewhere: an image is its link

const escape = md.utils.escapeHtml;

function codeBlock(code: string, language: string): string {
  const name = escape(language.slice(0, 32));
  return (
    `<div class="code"><div class="code-head"><span>${name || "text"}</span>` +
    `<button type="button" class="copy-code">Copy</button></div><pre tabindex="0"><code>${escape(code)}</code></pre></div>`
  );
}

md.renderer.rules["fence"] = (tokens, at) =>
  codeBlock(tokens[at]!.content, tokens[at]!.info.trim().split(/\s/)[0] ?? "");
md.renderer.rules["code_block"] = (tokens, at) => codeBlock(tokens[at]!.content, "");
md.renderer.rules["table_open"] = () => `<div class="table" tabindex="0"><table>`;
md.renderer.rules["table_close"] = () => "</table></div>";
md.renderer.rules["link_open"] = (tokens, at, options, _env, self) => {
  tokens[at]!.attrSet("target", "_blank");
  tokens[at]!.attrSet("rel", "noopener noreferrer");
  return self.renderToken(tokens, at, options);
};

// A column's alignment as a class: the server's policy forbids style attributes.
for (const rule of ["th_open", "td_open"]) {
  md.renderer.rules[rule] = (tokens, at, options, _env, self) => {
    const token = tokens[at]!;
    const align = /text-align:(\w+)/.exec(String(token.attrGet("style") ?? ""))?.[1];
    token.attrs = align ? [["class", `align-${align}`]] : null;
    return self.renderToken(tokens, at, options);
  };
}

// The second line of defence: markdown-it has escaped all HTML of the text already.
const SAFE = {
  ALLOWED_TAGS: [
    "a",
    "b",
    "blockquote",
    "br",
    "button",
    "code",
    "del",
    "div",
    "em",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "li",
    "ol",
    "p",
    "pre",
    "s",
    "span",
    "strong",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
  ],
  ALLOWED_ATTR: ["class", "href", "rel", "start", "tabindex", "target", "type"],
  ADD_ATTR: ["target"],
  ALLOW_DATA_ATTR: false,
  RETURN_TRUSTED_TYPE: true,
} as const;

export type SafeHtml = ReturnType<typeof sanitize>;
const sanitize = (html: string) => DOMPurify.sanitize(html, SAFE as never);

const cache = new Map<string, SafeHtml>();

function safe(html: string): SafeHtml {
  let found = cache.get(html);
  if (found === undefined) {
    if (cache.size > 2000) cache.clear();
    cache.set(html, (found = sanitize(html)));
  }
  return found;
}

/** The top-level blocks of a text as HTML. */
export function renderBlocks(text: string): SafeHtml[] {
  const env = {};
  const tokens = md.parse(text, env);
  const blocks: SafeHtml[] = [];
  let begin = 0;
  let depth = 0;
  tokens.forEach((token, at) => {
    depth += token.nesting;
    if (depth > 0) return;
    blocks.push(safe(md.renderer.render(tokens.slice(begin, at + 1), md.options, env)));
    begin = at + 1;
  });
  return blocks;
}
