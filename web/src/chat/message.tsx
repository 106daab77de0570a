// One message as it is shown: text, folded reasoning, tool calls, figures.
import { useState } from "preact/hooks";
import { renderBlocks } from "../markdown";
import { busy, messages, retry, type Figures, type Message, type ToolCall } from "./conversation";

async function copy(text: string, button: HTMLButtonElement): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Cannot copy";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

/** Blocks keep their elements while later ones grow: selections and focused buttons survive. */
function Markdown({ text }: { text: string }) {
  const copyCode = (event: MouseEvent) => {
    const button = event.target as HTMLButtonElement;
    if (button.className !== "copy-code") return;
    void copy(button.closest(".code")?.querySelector("code")?.textContent ?? "", button);
  };
  return (
    <div class="markdown" onClick={copyCode}>
      {renderBlocks(text).map((html, at) => (
        <div key={at} dangerouslySetInnerHTML={{ __html: html as unknown as string }} />
      ))}
    </div>
  );
}

function seconds(ms: number): string {
  return ms < 950 ? `${Math.max(1, Math.round(ms))} ms` : `${(ms / 1000).toFixed(1)} s`;
}

function Reasoning({ message }: { message: Message }) {
  const thinking = message.finish === "" && message.reasoningMs === undefined;
  return (
    <details class="reasoning">
      <summary>
        {thinking ? <span class="pulse">Reasoning…</span> : "Reasoning"}
        {message.reasoningMs !== undefined && <span class="quiet"> for {seconds(message.reasoningMs)}</span>}
      </summary>
      <div class="reasoning-text">{message.reasoning}</div>
    </details>
  );
}

function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // it is still being written
  }
}

export function Call({ call }: { call: ToolCall }) {
  return (
    <section class="call" aria-label={`Call of ${call.name}`}>
      <header>
        <span class="call-mark" aria-hidden="true">
          ƒ
        </span>{" "}
        <code>{call.name}</code>
      </header>
      <pre tabIndex={0}>{pretty(call.arguments)}</pre>
    </section>
  );
}

const finishes: Record<string, string> = {
  length: "reached its length",
  stopped: "stopped",
  tool_calls: "waits for tools",
};

function FiguresLine({ figures }: { figures: Figures }) {
  const cached = figures.cachedTokens > 0 ? ` (${figures.cachedTokens} cached)` : "";
  return (
    <>
      {figures.tokensPerSecond > 0 && (
        <span class="figure">{figures.tokensPerSecond.toFixed(figures.tokensPerSecond < 100 ? 1 : 0)} tokens/s</span>
      )}
      <span class="figure">{figures.tokens} tokens</span>
      <span class="figure">first after {seconds(figures.firstTokenMs)}</span>
      <span class="figure">
        prompt {figures.promptTokens}
        {cached}
      </span>
    </>
  );
}

function Footer({ message, isLast }: { message: Message; isLast: boolean }) {
  const finish = finishes[message.finish ?? ""];
  return (
    <footer>
      <div class="figures">
        {finish && <span class="figure finish">{finish}</span>}
        {message.figures && <FiguresLine figures={message.figures} />}
      </div>
      <div class="actions">
        {message.content && (
          <button
            type="button"
            class="quiet-button"
            onClick={(event) => void copy(message.content, event.currentTarget)}
          >
            Copy
          </button>
        )}
        {isLast && !busy.value && (
          <button type="button" class="quiet-button" onClick={() => void retry()}>
            Again
          </button>
        )}
      </div>
    </footer>
  );
}

function Result({ message }: { message: Message }) {
  const call = messages.value.flatMap((m) => m.calls ?? []).find((c) => c.id === message.callId);
  return (
    <section class="call result" aria-label={`Result of ${call?.name ?? "a tool"}`}>
      <header>
        <span class="call-mark" aria-hidden="true">
          ↩
        </span>{" "}
        <code>{call?.name}</code>
      </header>
      <pre tabIndex={0}>{message.content}</pre>
    </section>
  );
}

export function MessageView({ message, isLast }: { message: Message; isLast: boolean }) {
  if (message.role === "tool") return <Result message={message} />;
  if (message.role === "user") {
    return (
      <article class="message user" aria-label="You">
        <div class="bubble">{message.content}</div>
      </article>
    );
  }
  const empty = !message.content && !message.reasoning && !message.calls;
  return (
    <article class="message assistant" aria-label="Answer" aria-busy={message.finish === ""}>
      {message.reasoning && <Reasoning message={message} />}
      {message.content && <Markdown text={message.content} />}
      {message.calls?.map((call) => (
        <Call key={call.id} call={call} />
      ))}
      {empty && message.finish === "" && (
        <div class="waiting" aria-hidden="true">
          <i />
          <i />
          <i />
        </div>
      )}
      {message.error && (
        <p class="error" role="alert">
          {message.error}
        </p>
      )}
      {message.finish !== "" && <Footer message={message} isLast={isLast} />}
    </article>
  );
}

/** Where the user plays the tools: one result for each open call. */
export function Results({ calls, onSend }: { calls: ToolCall[]; onSend: (results: Record<string, string>) => void }) {
  const [texts, setTexts] = useState<Record<string, string>>({});
  const submit = (event: Event) => {
    event.preventDefault();
    onSend(texts);
  };
  return (
    <form class="results" onSubmit={submit}>
      {calls.map((call) => (
        <label key={call.id}>
          <span>
            Result of <code>{call.name}</code>
          </span>
          <textarea
            rows={2}
            value={texts[call.id] ?? ""}
            placeholder="What the tool answers, as text or JSON"
            onInput={(event) => setTexts({ ...texts, [call.id]: event.currentTarget.value })}
          />
        </label>
      ))}
      <button type="submit" class="primary">
        Send {calls.length > 1 ? "results" : "result"}
      </button>
    </form>
  );
}
