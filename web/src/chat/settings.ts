// What is asked with every message: the model, sampling, the system prompt, tools. Empty fields are the model's defaults.
import { computed, effect, signal } from "@preact/signals";

export interface Settings {
  system: string;
  temperature: string;
  topP: string;
  maxTokens: string;
  seed: string;
  effort: "" | "none" | "low" | "medium" | "high";
  tools: string;
}

export const emptySettings: Settings = {
  system: "",
  temperature: "",
  topP: "",
  maxTokens: "",
  seed: "",
  effort: "",
  tools: "",
};

const NAME = "tailrace.settings";

function stored(): Settings {
  try {
    return { ...emptySettings, ...JSON.parse(localStorage.getItem(NAME) ?? "{}") };
  } catch {
    return { ...emptySettings };
  }
}

export const settings = signal<Settings>(stored());
effect(() => localStorage.setItem(NAME, JSON.stringify(settings.value)));

export function change(part: Partial<Settings>): void {
  settings.value = { ...settings.value, ...part };
}

export const exampleTools = JSON.stringify(
  [
    {
      type: "function",
      function: {
        name: "get_weather",
        description: "The weather in a city now",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      },
    },
  ],
  null,
  2,
);

interface Range {
  name: string;
  from: number;
  to: number;
  whole: boolean;
}

const ranges: Partial<Record<keyof Settings, Range>> = {
  temperature: { name: "Temperature", from: 0, to: 2, whole: false },
  topP: { name: "Top p", from: 0, to: 1, whole: false },
  maxTokens: { name: "Max tokens", from: 1, to: 2 ** 31 - 1, whole: true },
  seed: { name: "Seed", from: -(2 ** 53), to: 2 ** 53, whole: true },
};

/** What is wrong with a field, or "". */
export function fault(field: keyof Settings, value: string): string {
  if (value.trim() === "") return "";
  if (field === "tools") return toolsFault(value);
  const range = ranges[field];
  if (!range) return "";
  const number = Number(value);
  if (!Number.isFinite(number) || (range.whole && !Number.isSafeInteger(number))) {
    return range.whole ? "A whole number" : "A number";
  }
  if (number < range.from || number > range.to) return `From ${range.from} to ${range.to}`;
  return "";
}

function toolsFault(text: string): string {
  let tools: unknown;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    return `Not JSON: ${(error as Error).message}`;
  }
  if (!Array.isArray(tools)) return 'A list of tools: [{"type": "function", "function": {…}}]';
  return "";
}

export const faults = computed(() => {
  const found: Partial<Record<keyof Settings, string>> = {};
  for (const field of Object.keys(emptySettings) as (keyof Settings)[]) {
    const message = fault(field, settings.value[field]);
    if (message) found[field] = message;
  }
  return found;
});

/** The fields of a request; only what was set. */
export function requestFields(): Record<string, unknown> {
  const s = settings.value;
  const number = (text: string) => (text.trim() === "" ? undefined : Number(text));
  const tools = s.tools.trim() === "" ? [] : (JSON.parse(s.tools) as unknown[]);
  return {
    temperature: number(s.temperature),
    top_p: number(s.topP),
    max_tokens: number(s.maxTokens),
    seed: number(s.seed),
    reasoning_effort: s.effort || undefined,
    tools: tools.length > 0 ? tools : undefined,
  };
}
