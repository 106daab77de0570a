"""What the official OpenAI client says and gets: chats, completions and responses. See docs/clients.md."""

import openai
from examples import scripted_server, show
from test_tools import SCRIPTS, TOOLS


def chats(client):
    hello = dict(model="model", messages=[{"role": "user", "content": "sunny"}])
    answer = client.chat.completions.create(**hello)
    show("chat.completions.create", answer.choices[0].message.content, answer.usage.model_dump(exclude_none=True))
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**hello, stream=True)]
    show("chat.completions.create, stream=True", "".join(pieces))

    messages = [{"role": "user", "content": "ask"}]
    message = client.chat.completions.create(model="model", messages=messages, tools=TOOLS).choices[0].message
    calls = [f"{call.function.name}({call.function.arguments})" for call in message.tool_calls]
    show("chat.completions.create with tools", {"reasoning": message.reasoning_content, "content": message.content}, *calls)
    messages.append(message)
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    answer = client.chat.completions.create(model="model", messages=messages, tools=TOOLS)
    show("the second turn, with results", answer.choices[0].message.content)

    answer = client.completions.create(model="model", prompt="<|s:sunny|>", max_tokens=2, logprobs=0)
    show("completions.create, logprobs=0", answer.choices[0].text, {"tokens": answer.choices[0].logprobs.tokens})


def responses(client):
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    with client.responses.stream(model="model", input="ask", tools=tools) as stream:
        names = [event.type for event in stream]
        response = stream.get_final_response()
    show("responses.stream with tools: the events", " ".join(dict.fromkeys(names)))
    items = [item.model_dump(include={"type", "name", "arguments", "call_id", "content", "status"}) for item in response.output]
    show("and the output", *items)
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        for item in response.output if item.type == "function_call"
    ]  # fmt: skip
    again = client.responses.create(model="model", previous_response_id=response.id, input=results, tools=tools)
    show("responses.create, previous_response_id=...", again.output_text, again.usage.model_dump(exclude_none=True))
    try:
        client.responses.create(model="model", input="sunny", tools=[{"type": "web_search"}])
    except openai.BadRequestError as error:
        show("an error", f"{type(error).__name__}: {error.body}")


def main():
    with scripted_server(SCRIPTS) as server:
        chats(server.client())
        responses(server.client())


if __name__ == "__main__":
    main()
