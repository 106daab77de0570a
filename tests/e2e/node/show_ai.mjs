import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import { scripted } from "./servers.mjs";

const provider = createOpenAICompatible({ name: "tailrace", baseURL: `${scripted.url}/v1`, includeUsage: true });
const common = { model: provider(scripted.model), maxRetries: 0 };
const show = (title, ...lines) => {
  console.log(`# ${title}`);
  for (const line of lines) console.log(typeof line === "string" ? line : JSON.stringify(line));
  console.log();
};

const answer = await generateText({ ...common, prompt: "sunny" });
show("generateText", answer.text, { finishReason: answer.finishReason, outputTokens: answer.usage.outputTokens });

const pieces = [];
for await (const piece of streamText({ ...common, prompt: "sunny" }).textStream) pieces.push(piece);
show("streamText", pieces.join(""));

const tools = {
  get_weather: tool({
    description: "of a city", inputSchema: z.object({ city: z.string(), days: z.number().int().optional() }),
    execute: async () => "sunny",
  }),
  get_time: tool({ description: "of day", inputSchema: z.object({}), execute: async () => "sunny" }),
};
const loop = await generateText({ ...common, prompt: "ask", tools, stopWhen: isStepCount(3) });
for (const step of loop.steps) {
  show(`step ${step.stepNumber}`, ...(step.reasoningText ? [{ reasoning: step.reasoningText }] : []), step.text,
    ...step.toolCalls.map((call) => `${call.toolName}(${JSON.stringify(call.input)})`));
}

try {
  await generateText({ ...common, model: provider("other"), prompt: "sunny" });
} catch (error) {
  show("an error", `${error.name} ${error.statusCode}: ${error.message}`);
}
