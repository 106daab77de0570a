// The server's HTTP API as the page asks it: one place for the key, for errors and for reading streams.
import { signal } from "@preact/signals";

const KEY_NAME = "tailrace.key";

/** Kept for this tab alone: sessionStorage ends with it. */
export const apiKey = signal(sessionStorage.getItem(KEY_NAME) ?? "");
/** The server has refused the key, or asked for one. */
export const keyRefused = signal(false);

export function setApiKey(key: string): void {
  apiKey.value = key;
  keyRefused.value = false;
  if (key) sessionStorage.setItem(KEY_NAME, key);
  else sessionStorage.removeItem(KEY_NAME);
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly param: string | null = null,
  ) {
    super(message);
  }
}

async function toError(response: Response): Promise<ApiError> {
  if (response.status === 401) keyRefused.value = true;
  try {
    const { error } = await response.json();
    return new ApiError(response.status, String(error.message), error.param ?? null);
  } catch {
    return new ApiError(response.status, `The server answered ${response.status}.`);
  }
}

/** Any answer but 2xx is an ApiError; one that never came has status 0. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (apiKey.value) headers.set("Authorization", `Bearer ${apiKey.value}`);
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (!response.ok) throw await toError(response);
  keyRefused.value = false;
  return response;
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await request(path, { signal })).json();
}

export interface Model {
  id: string;
  max_model_len: number;
}

export interface Health {
  status: string;
  message?: string;
  progress?: number;
}

export async function getHealth(): Promise<Health> {
  try {
    return await (await fetch("/health")).json();
  } catch {
    return { status: "unreachable", message: "The server cannot be reached." };
  }
}

/** The data of each server-sent event, in order; comments are skipped. */
export async function* sseData(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const event = rest.slice(0, end);
      rest = rest.slice(end + 2);
      const data = event
        .split("\n")
        .filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trimStart());
      if (data.length > 0) yield data.join("\n");
    }
  }
}
