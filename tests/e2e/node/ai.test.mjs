// The Vercel AI SDK with its OpenAI-compatible provider, on a checkpoint that answers by script; forms on the demo model.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import { City, demo, expectAbort, scripted } from "./servers.mjs";

const provider = (server) => createOpenAICompatible({
  name: "tailrace", baseURL: `${server.url}/v1`, includeUsage: true, supportsStructuredOutputs: true,
});
const model = provider(scripted)(scripted.model);
const common = { model, temperature: 0, maxRetries: 0 };

const asked = [];
const tools = {
  get_weather: tool({
    description: "of a city",
    inputSchema: z.object({ city: z.string(), days: z.number().int().optional() }),
    execute: async (input) => (asked.push(input), "sunny"),
  }),
  get_time: tool({ description: "of day", inputSchema: z.object({}), execute: async () => "sunny" }),
};

test("chat", async () => {
  const answer = await generateText({ ...common, prompt: "sunny" });
  assert.equal(answer.text, "It will be sunny at noon.");
  assert.equal(answer.finishReason, "stop");
  assert.equal(answer.usage.outputTokens, 4);
});

test("stream", async () => {
  const answer = streamText({ ...common, prompt: "ask" });
  let text = "", reasoning = "";
  for await (const part of answer.fullStream) {
    if (part.type === "text-delta") text += part.text;
    if (part.type === "reasoning-delta") reasoning += part.text;
  }
  assert.equal(reasoning, "The user asks.");
  assert.ok(text.startsWith("Looking."), text);
  assert.ok((await answer.usage).outputTokens > 4);
});

test("tools in two turns", async () => {
  asked.length = 0;
  const answer = await generateText({ ...common, prompt: "ask", tools, stopWhen: isStepCount(3) });
  assert.equal(answer.steps.length, 2);
  assert.deepEqual(answer.steps[0].toolCalls.map((call) => call.toolName), ["get_weather", "get_time"]);
  assert.deepEqual(asked, [{ city: "Paris", days: 3 }]);
  assert.equal(answer.text, "It will be sunny at noon.");
});

test("tools in two turns, streamed", async () => {
  asked.length = 0;
  const answer = streamText({ ...common, prompt: "ask", tools, stopWhen: isStepCount(3) });
  let text = "";
  for await (const part of answer.textStream) text += part;
  assert.equal(text, "Looking.It will be sunny at noon.");
  assert.deepEqual(asked, [{ city: "Paris", days: 3 }]);
});

test("structured output", async () => {
  const answer = await generateText({
    ...common, model: provider(demo)(demo.model), maxOutputTokens: 400, prompt: "Tell me about Paris as JSON.",
    output: Output.object({ schema: City }), providerOptions: { tailrace: { repetition_penalty: 1.2 } },
  });
  assert.equal(typeof answer.output.population, "number");
});

test("errors", async () => {
  await assert.rejects(generateText({ ...common, model: provider(scripted)("other"), prompt: "sunny" }), (error) => {
    assert.ok(APICallError.isInstance(error), String(error));
    assert.equal(error.statusCode, 404);
    assert.match(error.message, /does not exist/);
    return true;
  });
});

test("abort", () => expectAbort(async () => {
  const control = new AbortController();
  const answer = streamText({ ...common, prompt: "long", abortSignal: control.signal, onError: () => {} });
  for await (const part of answer.fullStream) if (part.type === "text-delta") control.abort();
}));
