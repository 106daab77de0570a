import OpenAI from "openai";
import { TOOLS, scripted } from "./servers.mjs";

const client = new OpenAI({ baseURL: `${scripted.url}/v1`, apiKey: "none", maxRetries: 0 });
const show = (title, ...lines) => {
  console.log(`# ${title}`);
  for (const line of lines) console.log(typeof line === "string" ? line : JSON.stringify(line));
  console.log();
};

const hello = { model: "model", messages: [{ role: "user", content: "sunny" }] };
const answer = await client.chat.completions.create(hello);
show("chat.completions.create", answer.choices[0].message.content, answer.usage);

const pieces = [];
for await (const chunk of await client.chat.completions.create({ ...hello, stream: true })) {
  if (chunk.choices[0].delta.content) pieces.push(chunk.choices[0].delta.content);
}
show("chat.completions.create, stream: true", pieces.join(""));

const stream = client.responses.stream({ model: "model", input: "ask", tools: TOOLS });
const names = new Set();
for await (const event of stream) names.add(event.type);
const response = await stream.finalResponse();
show("responses.stream with tools: the events", [...names].join(" "));
show("and the output", ...response.output.map(({ type, name, arguments: text, content }) => ({ type, name, arguments: text, content })));

const input = response.output.filter((item) => item.type === "function_call")
  .map((item) => ({ type: "function_call_output", call_id: item.call_id, output: "sunny" }));
const next = await client.responses.create({ model: "model", previous_response_id: response.id, input, tools: TOOLS });
show("responses.create, previous_response_id: ...", next.output_text);

try {
  await client.chat.completions.create({ ...hello, temperature: 7 });
} catch (error) {
  show("an error", `${error.constructor.name}: ${error.message}`);
}
