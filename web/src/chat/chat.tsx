// The chat: messages, the composer, the panel of parameters.
import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { announcement, busy, clear, messages, model, models, openCalls, send, sendResults, stop } from "./conversation";
import { MessageView, Results } from "./message";
import { Parameters } from "./parameters";
import { faults } from "./settings";

const suggestions = [
  "Explain what a KV cache is, to someone who knows databases.",
  "Write a haiku about a tail race, the channel behind a water wheel.",
  "A Python function that merges two sorted lists, with a short test.",
];

function Empty({ onPick }: { onPick: (text: string) => void }) {
  const entry = models.value.find((m) => m.id === model.value);
  return (
    <div class="empty">
      <h1>What would you like to ask?</h1>
      {entry && (
        <p class="quiet">
          <strong>{entry.id}</strong> answers, with {entry.max_model_len.toLocaleString("en")} tokens of context.
        </p>
      )}
      <ul class="suggestions">
        {suggestions.map((text) => (
          <li key={text}>
            <button type="button" onClick={() => onPick(text)}>
              {text}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Composer({ text, ready, onSend }: { text: Signal<string>; ready: boolean; onSend: (text: string) => void }) {
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const element = area.current!;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight, 240)}px`;
  });
  const hasFaults = Object.keys(faults.value).length > 0;
  const cannot = !ready || hasFaults || text.value.trim() === "";
  const submit = (event?: Event) => {
    event?.preventDefault();
    if (cannot || busy.value) return;
    const message = text.value;
    text.value = "";
    onSend(message);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  return (
    <form class="composer" onSubmit={submit}>
      <textarea
        ref={area}
        rows={1}
        aria-label="Message"
        placeholder={ready ? "Message" : "Waiting for the model"}
        value={text.value}
        onInput={(event) => (text.value = event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      {busy.value ? (
        <button type="button" class="primary stop" onClick={stop}>
          <span class="stop-mark" aria-hidden="true" />
          Stop
        </button>
      ) : (
        <button type="submit" class="primary" disabled={cannot}>
          Send
        </button>
      )}
      <p class="composer-hint">
        {hasFaults ? (
          <span class="fault">A parameter is not valid.</span>
        ) : (
          "Enter sends, Shift+Enter breaks the line, Esc stops."
        )}
      </p>
    </form>
  );
}

/** Keeps the end in view while it is in view. */
function useFollow() {
  const list = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  useLayoutEffect(() => {
    if (follows.current && list.current) list.current.scrollTop = list.current.scrollHeight;
  });
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = list.current!;
    follows.current = scrollHeight - scrollTop - clientHeight < 48;
  };
  return { list, onScroll, follow: () => (follows.current = true) };
}

export function Chat({ ready }: { ready: boolean }) {
  const panel = useSignal(false);
  const text = useSignal("");
  const { list, onScroll, follow } = useFollow();
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key !== "Escape") return;
      if (busy.value) stop();
      else panel.value = false;
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const pick = (suggestion: string) => {
    text.value = suggestion;
    document.querySelector<HTMLTextAreaElement>(".composer textarea")?.focus();
  };
  const lastAnswer = messages.value.findLast((m) => m.role === "assistant");
  return (
    <div class={panel.value ? "chat with-panel" : "chat"}>
      <section class="talk" aria-label="Chat">
        <div class="chat-tools">
          {messages.value.length > 0 && (
            <button type="button" class="quiet-button" onClick={clear}>
              New chat
            </button>
          )}
          <button
            type="button"
            class="quiet-button"
            aria-expanded={panel.value}
            aria-controls="parameters"
            onClick={() => (panel.value = !panel.value)}
          >
            Parameters
          </button>
        </div>
        <div
          class="messages"
          ref={list}
          onScroll={onScroll}
          role="log"
          aria-live="off"
          aria-label="Messages"
          tabIndex={0}
        >
          <div class="column">
            {messages.value.length === 0 && <Empty onPick={pick} />}
            {messages.value.map((m) => (
              <MessageView key={m.id} message={m} isLast={m === lastAnswer} />
            ))}
            {!busy.value && openCalls.value.length > 0 && (
              <Results
                calls={openCalls.value}
                onSend={(results) => {
                  follow();
                  void sendResults(results);
                }}
              />
            )}
          </div>
        </div>
        <div class="column">
          <Composer
            text={text}
            ready={ready}
            onSend={(message) => {
              follow();
              void send(message);
            }}
          />
        </div>
        <p class="hidden" role="status" aria-live="polite">
          {announcement}
        </p>
      </section>
      <aside id="parameters" class="panel" aria-label="Parameters" hidden={!panel.value}>
        <header>
          <h2>Parameters</h2>
          <button type="button" class="quiet-button" onClick={() => (panel.value = false)}>
            Close
          </button>
        </header>
        <Parameters />
      </aside>
    </div>
  );
}
