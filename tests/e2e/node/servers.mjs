// The servers that the tests ask; tests/e2e/test_node.py starts them and says where they are.
import assert from "node:assert/strict";
import { z } from "zod";

export const scripted = { url: process.env.SCRIPTED_URL, model: "model" };
export const demo = { url: process.env.DEMO_URL, model: process.env.DEMO_MODEL };

export const City = z.object({ name: z.string(), population: z.number(), capital: z.boolean() }).strict();

export const TOOLS = [
  {
    type: "function", name: "get_weather", description: "of a city",
    parameters: {
      type: "object", properties: { city: { type: "string" }, days: { type: "integer" } }, required: ["city"],
    },
  },
  { type: "function", name: "get_time", description: "of day", parameters: { type: "object", properties: {} } },
];

async function aborts() {
  const metrics = await (await fetch(`${scripted.url}/metrics`)).text();
  const count = /^tailrace_request_success_total\{[^}]*finished_reason="abort"[^}]*\} (\S+)$/m.exec(metrics);
  return count ? Number(count[1]) : 0;
}

// Runs `leave`, in which a client leaves one request, and waits until the server has ended it for that reason.
export async function expectAbort(leave) {
  const before = await aborts();
  await leave();
  const deadline = Date.now() + 20000;
  while ((await aborts()) !== before + 1) {
    assert.ok(Date.now() < deadline, "the request ran on");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
