"""The official OpenAI client's Responses API, on a checkpoint that answers by script and, for forms, on the demo model."""

import json
import time

import openai
import pydantic
import pytest
from test_tools import TOOLS as CHAT_TOOLS
from test_tools import tool_server  # noqa: F401

TOOLS = [{"type": "function", **tool["function"]} for tool in CHAT_TOOLS]
BODY = dict(model="model", temperature=0, tools=TOOLS)


@pytest.fixture
def agent(tool_server):  # noqa: F811
    return tool_server.client()


def test_text(agent):
    response = agent.responses.create(model="model", instructions="Be brief.", input="sunny", metadata={"k": "v"})
    assert response.output_text == "It will be sunny at noon."
    assert (response.status, response.object, response.metadata) == ("completed", "response", {"k": "v"})
    assert response.usage.output_tokens == 4 and response.usage.output_tokens_details.reasoning_tokens == 0
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def call_outputs(response):
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        for item in response.output
        if item.type == "function_call"
    ]


def check_first_turn(response):
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    reasoning, message, weather, clock = response.output
    assert reasoning.content[0].text == "The user asks." and message.content[0].text == "Looking."
    assert (weather.name, json.loads(weather.arguments)) == ("get_weather", {"city": "Paris", "days": 3})
    assert (clock.name, json.loads(clock.arguments)) == ("get_time", {})
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_two_turns_that_the_client_keeps(agent, stream):
    def respond(**more):
        body = BODY | dict(store=False, include=["reasoning.encrypted_content"]) | more
        if not stream:
            return agent.responses.create(**body)
        with agent.responses.stream(**body) as events:
            for _ in events:
                pass
            return events.get_final_response()

    items = [{"role": "user", "content": "ask"}]
    first = respond(input=items)
    check_first_turn(first)
    items += [item.model_dump(exclude_none=True) for item in first.output] + call_outputs(first)
    assert respond(input=items).output_text == "It will be sunny at noon."
    # Agents send reasoning back sealed, and not as it stands.
    del items[1]["content"]
    sealed = respond(input=items)
    assert sealed.output_text == "It will be sunny at noon."
    del items[1]
    assert respond(input=items).usage.input_tokens < sealed.usage.input_tokens
    assert first.store is False
    with pytest.raises(openai.NotFoundError):
        agent.responses.retrieve(first.id)


def test_two_turns_that_the_server_keeps(agent):
    first = agent.responses.create(**BODY, input="ask")
    check_first_turn(first)
    second = agent.responses.create(**BODY, input=call_outputs(first), previous_response_id=first.id)
    assert second.output_text == "It will be sunny at noon."
    assert agent.responses.retrieve(second.id).output_text == second.output_text
    listed = list(agent.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.type for item in listed] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
    ]
    agent.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as error:
        agent.responses.create(**BODY, input="sunny", previous_response_id=first.id)
    assert error.value.param == "previous_response_id" and first.id in error.value.message
    # What came later does not need it.
    third = agent.responses.create(**BODY, input="sunny", previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens


def test_events(agent):
    events = list(agent.responses.create(**BODY, input="ask", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    check_first_turn(events[-1].response)
    arguments = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(event.delta for event in arguments if event.output_index == 2) == events[-1].response.output[2].arguments


def test_cut(agent):
    response = agent.responses.create(**BODY, input="ask", max_output_tokens=3)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"


def test_log_probabilities(agent):
    response = agent.responses.create(model="model", input="sunny", include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = response.output[0].content[0].logprobs
    assert "".join(entry.token for entry in logprobs) == response.output_text
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs)


def test_a_required_call(agent):
    # The script says something else: the grammar decides.
    body = dict(model="model", input="sunny", tools=TOOLS, tool_choice={"type": "function", "name": "get_time"})
    body.update(parallel_tool_calls=False, temperature=1, max_output_tokens=2000, extra_body={"top_k": 40, "seed": 5})
    calls = [item for item in agent.responses.create(**body).output if item.type == "function_call"]
    assert [call.name for call in calls] == ["get_time"] and json.loads(calls[0].arguments) == {}


def test_errors(agent):
    for param, more in {
        "tools[0].type": dict(tools=[{"type": "web_search"}]),
        "truncation": dict(truncation="auto"),
        "input[0].content[0].type": dict(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
    }.items():
        with pytest.raises(openai.BadRequestError) as error:
            agent.responses.create(**BODY | dict(input="sunny") | more)
        assert error.value.param == param


def test_a_client_that_leaves_ends_its_request(tool_server, agent):  # noqa: F811
    def aborts():
        return sum(
            value
            for name, labels, value in tool_server.metrics()
            if name == "tailrace_request_success_total" and 'finished_reason="abort"' in labels
        )

    before = aborts()
    with agent.responses.create(model="model", input="long", stream=True) as events:
        for event in events:
            if event.type == "response.output_text.delta":
                break
    deadline = time.monotonic() + 20
    while aborts() == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_codex_sends(tool_server):  # noqa: F811
    body = {
        "model": "model",
        "instructions": "You are a coding agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandboxed."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "ask"}]},
        ],
        "tools": [dict(tool, strict=False) for tool in TOOLS],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "6f1c",
        "client_metadata": {"originator": "codex"},
    }
    status, text = tool_server.post_raw("/v1/responses", json.dumps(body).encode())
    assert status == 200, text
    done = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    items = [event["item"] for event in done if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert items[0]["encrypted_content"]
    assert done[-1]["type"] == "response.completed" and done[-1]["response"]["usage"]["total_tokens"] > 0


class City(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str
    population: int
    capital: bool


@pytest.mark.parametrize("stream", [False, True])
def test_parse_with_a_class(client, model, stream):
    body = dict(
        model=model,
        input="Tell me about Paris as JSON.",
        text_format=City,
        max_output_tokens=400,
        temperature=0,
        extra_body={"repetition_penalty": 1.2},
    )
    if stream:
        with client.responses.stream(**body) as events:
            answer = events.get_final_response()
    else:
        answer = client.responses.parse(**body)
    assert isinstance(answer.output_parsed, City)
