// The official OpenAI client for Node.js: chats and responses on a checkpoint that answers by script, forms on the demo model.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { City, TOOLS, demo, expectAbort, scripted } from "./servers.mjs";

const client = new OpenAI({ baseURL: `${scripted.url}/v1`, apiKey: "none", maxRetries: 0 });
const forms = new OpenAI({ baseURL: `${demo.url}/v1`, apiKey: "none", maxRetries: 0 });
const chat = { model: scripted.model, temperature: 0 };
const chatTools = TOOLS.map(({ type, ...rest }) => ({ type, function: rest }));

test("chat", async () => {
  const answer = await client.chat.completions.create({ ...chat, messages: [{ role: "user", content: "sunny" }] });
  assert.equal(answer.choices[0].message.content, "It will be sunny at noon.");
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

test("stream", async () => {
  const stream = await client.chat.completions.create({
    ...chat, messages: [{ role: "user", content: "sunny" }], stream: true, stream_options: { include_usage: true },
  });
  let text = "", usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, "It will be sunny at noon.");
  assert.equal(usage.completion_tokens, 4);
});

test("tools in two turns", async () => {
  const messages = [{ role: "user", content: "ask" }];
  const stream = client.chat.completions.stream({ ...chat, messages, tools: chatTools });
  const { message, finish_reason } = (await stream.finalChatCompletion()).choices[0];
  assert.equal(finish_reason, "tool_calls");
  assert.deepEqual(message.tool_calls.map((call) => call.function.name), ["get_weather", "get_time"]);
  assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { city: "Paris", days: 3 });
  messages.push({ role: "assistant", content: message.content, tool_calls: message.tool_calls });
  for (const call of message.tool_calls) messages.push({ role: "tool", tool_call_id: call.id, content: "sunny" });
  const answer = await client.chat.completions.create({ ...chat, messages, tools: chatTools });
  assert.equal(answer.choices[0].message.content, "It will be sunny at noon.");
});

test("structured output", async () => {
  const answer = await forms.chat.completions.parse({
    model: demo.model, temperature: 0, max_tokens: 400, repetition_penalty: 1.2,
    messages: [{ role: "user", content: "Tell me about Paris as JSON." }], response_format: zodResponseFormat(City, "city"),
  });
  assert.equal(typeof answer.choices[0].message.parsed.population, "number");
});

test("errors", async () => {
  await assert.rejects(client.chat.completions.create({ ...chat, messages: [] }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "messages");
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...chat, model: "other", messages: [{ role: "user", content: "x" }] }),
    OpenAI.NotFoundError);
});

test("abort", () => expectAbort(async () => {
  const stream = await client.chat.completions.create({ ...chat, messages: [{ role: "user", content: "long" }], stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) break;  // leaves the loop, which closes the connection
  }
}));

test("responses: tools in two turns", async () => {
  const input = [{ role: "user", content: "ask" }];
  const body = { model: scripted.model, temperature: 0, tools: TOOLS, store: false, include: ["reasoning.encrypted_content"] };
  const first = await client.responses.stream({ ...body, input }).finalResponse();
  assert.deepEqual(first.output.map((item) => item.type), ["reasoning", "message", "function_call", "function_call"]);
  input.push(...first.output);
  for (const call of first.output.filter((item) => item.type === "function_call")) {
    input.push({ type: "function_call_output", call_id: call.call_id, output: "sunny" });
  }
  const second = await client.responses.create({ ...body, input });
  assert.equal(second.output_text, "It will be sunny at noon.");
});

test("responses: stream", async () => {
  const stream = client.responses.stream({ model: scripted.model, temperature: 0, input: "ask", tools: TOOLS });
  const types = new Set();
  for await (const event of stream) types.add(event.type);
  for (const type of ["response.created", "response.reasoning_text.delta", "response.output_text.delta",
    "response.function_call_arguments.done", "response.completed"]) assert.ok(types.has(type), type);
  const response = await stream.finalResponse();
  assert.equal(response.output_text, "Looking.");
  const next = await client.responses.create({
    model: scripted.model, temperature: 0, previous_response_id: response.id, input: "sunny",
  });
  assert.equal(next.output_text, "It will be sunny at noon.");
});

test("responses: structured output", async () => {
  const answer = await forms.responses.parse({
    model: demo.model, temperature: 0, max_output_tokens: 400, repetition_penalty: 1.2, input: "Tell me about Paris as JSON.",
    text: { format: zodTextFormat(City, "city") },
  });
  assert.equal(typeof answer.output_parsed.population, "number");
});

test("responses: errors and abort", async () => {
  await assert.rejects(client.responses.create({ model: scripted.model, input: "sunny", previous_response_id: "resp_none" }),
    (error) => error instanceof OpenAI.NotFoundError && error.param === "previous_response_id");
  await assert.rejects(client.responses.create({ model: scripted.model, input: "sunny", tools: [{ type: "web_search" }] }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === "tools[0].type");
  await expectAbort(async () => {
    const stream = await client.responses.create({ model: scripted.model, input: "long", temperature: 0, stream: true });
    for await (const event of stream) if (event.type === "response.output_text.delta") break;
  });
});
