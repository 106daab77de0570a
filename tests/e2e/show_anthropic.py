"""What the official Anthropic client says and gets: whole, streamed, tools in two turns, an error. See docs/clients.md."""

import anthropic
from examples import scripted_server, show
from test_anthropic import SCRIPTS, TOOLS


def blocks(message):
    return [block.model_dump(exclude_none=True) for block in message.content]


def converse(client):
    hello = dict(model="model", max_tokens=100, messages=[{"role": "user", "content": "sunny"}])
    message = client.messages.create(**hello)
    usage = {"input": message.usage.input_tokens, "output": message.usage.output_tokens}
    show("messages.create", *blocks(message), {"stop_reason": message.stop_reason, "usage": usage})

    with client.messages.stream(**hello) as stream:
        show("messages.stream", " | ".join(stream.text_stream))

    counted = client.messages.count_tokens(model="model", messages=hello["messages"])
    show("messages.count_tokens", {"input_tokens": counted.input_tokens})

    turn = dict(model="model", max_tokens=100, tools=TOOLS, messages=[{"role": "user", "content": "ask"}])
    names = [event.type for event in client.messages.create(**turn, stream=True)]
    show("messages.create with tools, stream=True: the events", " ".join(dict.fromkeys(names)))
    message = client.messages.create(**turn)
    show("messages.create with tools", *blocks(message), {"stop_reason": message.stop_reason})

    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
        for block in message.content if block.type == "tool_use"
    ]  # fmt: skip
    turn["messages"] += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    show("the second turn, with results", *blocks(client.messages.create(**turn)))

    try:
        client.messages.create(**hello, extra_body={"temperature": 7})
    except anthropic.BadRequestError as error:
        show("an error", f"{type(error).__name__}: {error.body['error']}")


def main():
    with scripted_server(SCRIPTS) as server:
        converse(anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0))


if __name__ == "__main__":
    main()
