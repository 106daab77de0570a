// The page: its frame (name, views, state of the server, theme) around the chat and the live view of the engine.
import "@fontsource-variable/geist/wght.css";
import "@fontsource-variable/geist-mono/wght.css";
import "./style/base.css";
import "./style/chat.css";
import "./style/engine.css";
import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { apiKey, getHealth, keyRefused, setApiKey, type Health } from "./api";
import { Chat } from "./chat/chat";
import { loadModels, model, models } from "./chat/conversation";
import { EngineView } from "./engine/view";
import { dark, toggleTheme } from "./theme";

type View = "chat" | "engine";
const viewOfHash = (): View => (location.hash === "#engine" ? "engine" : "chat");
const view = signal<View>(viewOfHash());
addEventListener("hashchange", () => (view.value = viewOfHash()));

const health = signal<Health>({ status: "connecting" });

const states: Record<string, string> = {
  ok: "ready",
  loading: "loading",
  draining: "shutting down",
  hung: "not answering",
  dead: "stopped",
  connecting: "connecting",
  unreachable: "unreachable",
};

async function watchHealth(): Promise<void> {
  const now = await getHealth();
  health.value = now;
  if (now.status === "ok" && models.value.length === 0 && !keyRefused.value) await loadModels().catch(() => {});
  setTimeout(() => void watchHealth(), now.status === "ok" ? 5000 : 500);
}

function ServerState() {
  const { status, progress } = health.value;
  const text = states[status] ?? status;
  const share = status === "loading" && progress !== undefined ? ` ${Math.round(progress * 100)} %` : "";
  return (
    <p class="server-state" role="status">
      <span class={`dot ${status}`} aria-hidden="true" />
      {model.value && <span class="server-model">{model.value}</span>}
      <span class="server-text">
        {text}
        {share}
      </span>
    </p>
  );
}

function KeyAsked() {
  const submit = (event: Event) => {
    event.preventDefault();
    setApiKey(String(new FormData(event.currentTarget as HTMLFormElement).get("key") ?? "").trim());
    void loadModels().catch(() => {});
  };
  return (
    <form class="key-asked" onSubmit={submit}>
      <label for="key">{apiKey.value ? "The server refused this API key." : "The server asks for an API key."}</label>
      <input id="key" name="key" type="password" autocomplete="off" required />
      <button type="submit" class="primary">
        Use it
      </button>
    </form>
  );
}

function Page() {
  useEffect(() => void watchHealth(), []);
  const link = (to: View, text: string) => (
    <a href={`#${to}`} aria-current={view.value === to ? "page" : undefined}>
      {text}
    </a>
  );
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("main")!.focus();
        }}
      >
        Skip to the content
      </a>
      <header class="top">
        <a class="name" href="#chat" aria-label="tailrace, to the chat">
          <svg viewBox="0 0 26 18" aria-hidden="true">
            <path d="M2 5.5c3.7 0 3.7 3 7.3 3s3.7-3 7.4-3 3.6 3 7.3 3M2 12.5c3.7 0 3.7 3 7.3 3s3.7-3 7.4-3 3.6 3 7.3 3" />
          </svg>
          tailrace
        </a>
        <nav aria-label="Views">
          {link("chat", "Chat")}
          {link("engine", "Engine")}
        </nav>
        <ServerState />
        <button
          type="button"
          class="theme"
          role="switch"
          aria-checked={dark.value}
          aria-label="Dark"
          onClick={toggleTheme}
        >
          <svg viewBox="0 0 20 20" aria-hidden="true">
            <circle cx="10" cy="10" r="7" />
            <path d="M10 3a7 7 0 0 1 0 14z" />
          </svg>
        </button>
      </header>
      {keyRefused.value && <KeyAsked />}
      <main id="main" tabIndex={-1}>
        {view.value === "chat" ? <Chat ready={health.value.status === "ok"} /> : <EngineView />}
      </main>
    </>
  );
}

const root = document.getElementById("page")!;
render(<Page />, root);
