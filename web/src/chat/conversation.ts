// The conversation: its messages, the answer that is being streamed, stopping it and asking again.
import { computed, effect, signal } from "@preact/signals";
import { ApiError, getJson, request, sseData, type Model } from "../api";
import { faults, requestFields, settings } from "./settings";

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface Figures {
  promptTokens: number;
  cachedTokens: number;
  tokens: number;
  tokensPerSecond: number;
  firstTokenMs: number;
}

export interface Message {
  id: number;
  role: "user" | "assistant" | "tool";
  content: string;
  reasoning?: string;
  reasoningMs?: number;
  calls?: ToolCall[];
  callId?: string; // of a tool's result
  finish?: string; // "" while it streams; the API's finish_reason, or "stopped"
  error?: string;
  figures?: Figures;
}

const NAME = "tailrace.conversation";

function stored(): Message[] {
  try {
    const messages = JSON.parse(sessionStorage.getItem(NAME) ?? "[]") as Message[];
    return messages.map((m) => (m.finish === "" ? { ...m, finish: "stopped" } : m));
  } catch {
    return [];
  }
}

export const messages = signal<Message[]>(stored());
export const models = signal<Model[]>([]);
export const model = signal("");
/** Set while an answer is streamed. */
const running = signal<AbortController | null>(null);
export const busy = computed(() => running.value !== null);
/** Said to screen readers when an answer begins and ends. */
export const announcement = signal("");

let nextId = Math.max(0, ...messages.value.map((m) => m.id)) + 1;

effect(() => {
  if (busy.value) return; // once an answer, not once a token
  try {
    sessionStorage.setItem(NAME, JSON.stringify(messages.value));
  } catch {
    sessionStorage.removeItem(NAME); // too long to be kept
  }
});

export async function loadModels(): Promise<void> {
  models.value = (await getJson<{ data: Model[] }>("/v1/models")).data;
  if (!models.value.some((m) => m.id === model.value)) model.value = models.value[0]?.id ?? "";
}

export function clear(): void {
  stop();
  messages.value = [];
}

export function stop(): void {
  running.value?.abort();
}

function add(message: Omit<Message, "id">): Message {
  const added = { ...message, id: nextId++ };
  messages.value = [...messages.value, added];
  return added;
}

function update(id: number, part: Partial<Message>): void {
  messages.value = messages.value.map((m) => (m.id === id ? { ...m, ...part } : m));
}

/** The calls of the last answer that have no result yet. */
export const openCalls = computed(() => {
  const answered = new Set(messages.value.map((m) => m.callId));
  const last = messages.value.findLast((m) => m.role === "assistant");
  return (last?.calls ?? []).filter((call) => !answered.has(call.id) && last?.finish === "tool_calls");
});

export async function send(text: string): Promise<void> {
  add({ role: "user", content: text });
  await answer();
}

/** Results of all open calls, by call id; then the model goes on. */
export async function sendResults(results: Record<string, string>): Promise<void> {
  for (const call of openCalls.value) add({ role: "tool", content: results[call.id] ?? "", callId: call.id });
  await answer();
}

/** Drops the last answer and asks for it again. */
export async function retry(): Promise<void> {
  const at = messages.value.findLastIndex((m) => m.role === "assistant");
  if (at < 0 || busy.value) return;
  messages.value = messages.value.slice(0, at);
  await answer();
}

function toApi(message: Message): Record<string, unknown> {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.callId, content: message.content };
  if (message.role === "user") return { role: "user", content: message.content };
  return {
    role: "assistant",
    content: message.content || (message.calls?.length ? null : ""),
    reasoning_content: message.reasoning || undefined,
    tool_calls: message.calls?.map((c) => ({
      id: c.id,
      type: "function",
      function: { name: c.name, arguments: c.arguments },
    })),
  };
}

function requestBody(): string {
  const history = messages.value.filter((m) => m.role !== "assistant" || m.content || m.reasoning || m.calls);
  const system = settings.value.system.trim() ? [{ role: "system", content: settings.value.system }] : [];
  return JSON.stringify({
    model: model.value || undefined,
    messages: [...system, ...history.map(toApi)],
    stream: true,
    stream_options: { include_usage: true },
    ...requestFields(),
  });
}

/** Joins the deltas of one answer into its message, drawn once a frame at most. */
class AnswerBuilder {
  private readonly began = performance.now();
  private firstMs = 0;
  private reasoningEnded = 0;
  private frame = 0;
  private readonly message: Message;
  private readonly calls: ToolCall[] = [];

  constructor(private readonly id: number) {
    this.message = { id, role: "assistant", content: "", finish: "" };
  }

  take(chunk: any): void {
    if (chunk.error) throw new ApiError(500, String(chunk.error.message));
    if (chunk.usage) this.message.figures = this.figures(chunk.usage, chunk.timings);
    const choice = chunk.choices?.[0];
    if (!choice) return;
    if (!this.firstMs) this.firstMs = performance.now() - this.began;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    if (reasoning) this.message.reasoning = (this.message.reasoning ?? "") + reasoning;
    if (content || calls) this.endReasoning();
    if (content) this.message.content += content;
    for (const call of calls ?? []) this.takeCall(call);
    if (choice.finish_reason) this.message.finish = choice.finish_reason;
    this.frame ||= requestAnimationFrame(() => this.flush());
  }

  end(part: Partial<Message>): Message {
    cancelAnimationFrame(this.frame);
    this.endReasoning();
    Object.assign(this.message, part);
    this.message.finish ||= "stopped";
    this.flush();
    return this.message;
  }

  private takeCall(call: any): void {
    const known = (this.calls[call.index] ??= { id: "", name: "", arguments: "" });
    known.id ||= call.id ?? "";
    known.name ||= call.function?.name ?? "";
    known.arguments += call.function?.arguments ?? "";
  }

  private endReasoning(): void {
    if (this.message.reasoning && !this.reasoningEnded) {
      this.reasoningEnded = performance.now();
      this.message.reasoningMs = this.reasoningEnded - this.began - this.firstMs;
    }
  }

  private figures(usage: any, timings: any): Figures {
    return {
      promptTokens: usage.prompt_tokens,
      cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
      tokens: usage.completion_tokens,
      tokensPerSecond: timings?.predicted_per_second ?? 0,
      firstTokenMs: this.firstMs,
    };
  }

  private flush(): void {
    this.frame = 0;
    update(this.id, { ...this.message, calls: this.calls.length ? this.calls.map((c) => ({ ...c })) : undefined });
  }
}

async function answer(): Promise<void> {
  if (busy.value || Object.keys(faults.value).length > 0) return;
  const body = requestBody();
  const { id } = add({ role: "assistant", content: "", finish: "" });
  const builder = new AnswerBuilder(id);
  const abort = new AbortController();
  running.value = abort;
  announcement.value = "Answering";
  let last: Message;
  try {
    const response = await request("/v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body,
      signal: abort.signal,
    });
    for await (const data of sseData(response.body!)) if (data !== "[DONE]") builder.take(JSON.parse(data));
    last = builder.end({});
    announcement.value = last.calls ? "The answer calls tools" : "Answer complete";
  } catch (error) {
    if (abort.signal.aborted) {
      builder.end({ finish: "stopped" });
      announcement.value = "Stopped";
    } else {
      const failed = error as Error;
      const param = failed instanceof ApiError && failed.param ? ` (${failed.param})` : "";
      builder.end({ finish: "error", error: failed.message + param });
      announcement.value = `Error: ${failed.message}`;
    }
  } finally {
    running.value = null;
  }
}
