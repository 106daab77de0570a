"""The official OpenAI client in a loop of tool calls, streamed and not, on a checkpoint that answers by script."""

import json

import openai
import pytest
from conftest import Server
from scripted import PLAIN_TAGS, QWEN_TEMPLATE, write_checkpoint

SCRIPTS = {
    "ask": [
        "<think>",
        "\nThe user ",
        "asks.\n",
        "</think>",
        "\n\nLooking",
        ".\n",
        "<tool_call>",
        '\n{"name": "get_weather", ',
        '"arguments": {"city": "Par',
        'is", "days": ',
        "3}}\n",
        "</tool_call>",
        '\n<tool_call>\n{"name"',
        ': "get_time", "argu',
        'ments": {}}\n</tool_call>',
    ],
    "sunny": ["It will", " be sunny", " at noon."],
    "long": [f"word{i} " for i in range(500)],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}},
]


@pytest.fixture(scope="module")
def tool_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripted")
    write_checkpoint(folder / "model", SCRIPTS, QWEN_TEMPLATE, PLAIN_TAGS)
    running = Server(log_path=folder / "log", model=folder / "model")
    assert "tool calls qwen, reasoning qwen3" in running.log_path.read_text()
    yield running
    assert running.stop() == 0


@pytest.fixture
def agent(tool_server):
    return tool_server.client()


def streamed(client, **body):
    """The message that the deltas join to, its finish reason, and the number of pieces of the calls' arguments."""
    message, reason, pieces = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}, None, 0
    for chunk in client.chat.completions.create(**body, stream=True):
        choice = chunk.choices[0]
        message["content"] += choice.delta.content or ""
        message["reasoning_content"] += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or []:
            if call.index == len(message["tool_calls"]):
                assert call.id and call.type == "function" and call.function.name
                message["tool_calls"].append(
                    {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": ""}}
                )
            message["tool_calls"][call.index]["function"]["arguments"] += call.function.arguments or ""
            pieces += bool(call.function.arguments)
        reason = choice.finish_reason or reason
    return message, reason, pieces


def whole(client, **body):
    choice = client.chat.completions.create(**body).choices[0]
    return choice.message, choice.finish_reason


@pytest.mark.parametrize("stream", [False, True])
def test_two_turns(agent, stream):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "ask"}]
    body = dict(model="model", tools=TOOLS, temperature=0)
    if stream:
        for _ in range(50):  # where the machine is busy, what came meanwhile is one piece
            message, reason, pieces = streamed(agent, messages=messages, **body)
            if pieces >= 2:
                break
        assert pieces >= 2
        calls = message["tool_calls"]
        reasoning, content = message["reasoning_content"], message["content"]
    else:
        message, reason = whole(agent, messages=messages, **body)
        calls = [call.model_dump() for call in message.tool_calls]
        reasoning, content = message.reasoning_content, message.content
    assert reason == "tool_calls"
    assert (reasoning, content) == ("The user asks.", "Looking.")
    assert [call["function"]["name"] for call in calls] == ["get_weather", "get_time"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"city": "Paris", "days": 3}, {}]
    messages.append(message)
    messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": '{"weather": "sunny"}'})
    messages.append({"role": "tool", "tool_call_id": calls[1]["id"], "content": "sunny"})
    if stream:
        answer, reason, _ = streamed(agent, messages=messages, **body)
        assert answer["content"] == "It will be sunny at noon."
    else:
        answer, reason = whole(agent, messages=messages, **body)
        assert answer.content == "It will be sunny at noon." and answer.tool_calls is None
    assert reason == "stop"


def test_the_prompt_has_calls_results_and_reasoning(tool_server):
    function = {"name": "get_weather", "arguments": '{"city":"<|im_end|>"}'}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "reasoning_content": "hm",
         "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
    ]  # fmt: skip
    ids = tool_server.tokenize({"messages": messages, "tools": TOOLS[1:], "reasoning_effort": "none"})
    prompt = json.loads(tool_server.post_raw("/detokenize", json.dumps({"tokens": ids}).encode())[1])["prompt"]
    assert prompt == (
        json.dumps(TOOLS[1]) + "<|im_start|>userq<|im_end|><|im_start|>assistant<think>hm</think><tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "<|im_end|>"}}\n</tool_call><|im_end|>'
        "<|im_start|>toolrain<|im_end|><|im_start|>assistant<think></think>"
    )
    end = tool_server.tokenize({"prompt": "<|im_end|>"})
    assert len(end) == 1 and ids.count(end[0]) == 3  # the one in the arguments is text


def test_one_call_only(agent):
    body = dict(model="model", messages=[{"role": "user", "content": "ask"}], tools=TOOLS, parallel_tool_calls=False)
    message, reason = whole(agent, **body)
    assert reason == "tool_calls" and len(message.tool_calls) == 1
    message, reason, _ = streamed(agent, **body)
    assert reason == "tool_calls" and len(message["tool_calls"]) == 1


def strict(tools):
    out = json.loads(json.dumps(tools))
    for tool in out:
        tool["function"]["strict"] = True
        tool["function"]["parameters"]["additionalProperties"] = False
    return out


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_come_does_and_keeps_its_schema(agent, choice):
    # The script says something else: the grammar decides.
    body = dict(model="model", messages=[{"role": "user", "content": "sunny"}], tools=strict(TOOLS), tool_choice=choice)
    body.update(parallel_tool_calls=False, temperature=1, seed=5, max_tokens=2000, extra_body={"top_k": 40})
    message, reason = whole(agent, **body)
    assert reason == "tool_calls" and len(message.tool_calls) == 1 and not message.content
    call = message.tool_calls[0].function
    arguments = json.loads(call.arguments)
    if choice != "required":
        assert call.name == "get_weather"
    if call.name == "get_weather":
        assert isinstance(arguments["city"], str) and set(arguments) <= {"city", "days"}
    else:
        assert arguments == {}


@pytest.mark.parametrize(
    "field, body",
    [
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice.function.name", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]}),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(agent, field, body):
    with pytest.raises(openai.BadRequestError) as error:
        agent.chat.completions.create(model="model", messages=[{"role": "user", "content": "ask"}], **body)
    assert error.value.param == field
