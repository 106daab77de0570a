"""The official Anthropic client on a checkpoint that answers by script: messages, streams, tools, thinking, errors."""

import json
import time
from typing import Literal

import anthropic
import pydantic
import pytest
from conftest import Server
from scripted import PLAIN_TAGS, QWEN_TEMPLATE, write_checkpoint

SCRIPTS = {
    "ask": [
        "<think>", "\nThe user ", "asks.\n", "</think>", "\n\nLooking", ".\n",
        "<tool_call>", '\n{"name": "get_weather", ', '"arguments": {"city": "Par', 'is", "days": ', "3}}\n", "</tool_call>",
        '\n<tool_call>\n{"name"', ': "get_time", "argu', 'ments": {}}\n</tool_call>',
    ],
    "sunny": ["It will", " be sunny", " at noon."],
    "endless": [f"word{i} " for i in range(600)],
}  # fmt: skip
TOOLS = [
    {
        "name": "get_weather",
        "description": "of a city",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
    {"name": "get_time", "input_schema": {"type": "object", "properties": {}}, "cache_control": {"type": "ephemeral"}},
]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anthropic")
    write_checkpoint(folder / "model", SCRIPTS, QWEN_TEMPLATE, PLAIN_TAGS)
    running = Server("--api-key", "secret", log_path=folder / "log", model=folder / "model")
    yield running
    assert running.stop() == 0


@pytest.fixture
def claude(scripted):
    return anthropic.Anthropic(base_url=scripted.url, api_key="secret", max_retries=0, timeout=120)

BRIEFLY = {"type": "enabled", "budget_tokens": 1024}
LONG = {"max_tokens": 1500}


def test_models(claude):
    listed = claude.models.list()
    assert [(model.id, model.type, model.display_name) for model in listed] == [("model", "model", "model")]
    assert not listed.has_more and listed.first_id == listed.last_id == "model"
    model = claude.models.retrieve("model")
    assert model == listed.data[0] and model.max_input_tokens > 0 and model.created_at.year >= 2025
    assert [list(claude.models.list(after_id="model")), list(claude.beta.models.list(before_id="model"))] == [[], []]
    with pytest.raises(anthropic.NotFoundError) as fault:
        claude.models.retrieve("claude-nobody")
    assert fault.value.body["error"]["type"] == "not_found_error"


def ask(name, **more):
    return dict(model="model", max_tokens=1000, messages=[{"role": "user", "content": name}], **more)


def shown(message):
    """What a message says, without ids."""
    blocks = [block.model_dump(exclude_none=True) for block in message.content]
    for block in blocks:
        block.pop("id", None)
    return blocks, message.stop_reason, message.stop_sequence, message.usage.output_tokens


def both(claude, **body):
    """The message, whole and streamed."""
    whole = claude.messages.create(**body)
    with claude.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    assert shown(streamed) == shown(whole)
    return whole, streamed


def test_text_in_one_piece_and_in_many(claude):
    whole, _ = both(claude, **ask("sunny", system="Be brief."))
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", "model")
    assert whole.content[0].text == "It will be sunny at noon."
    assert whole.stop_reason == "end_turn" and whole._request_id
    with claude.messages.stream(**ask("sunny")) as stream:
        assert "".join(stream.text_stream) == "It will be sunny at noon."


@pytest.mark.parametrize("streamed", [False, True])
def test_two_turns_with_tools(claude, streamed):
    body = ask("ask", tools=TOOLS, thinking={"type": "adaptive"})
    message = both(claude, **body)[streamed]
    thinking, text, weather, clock = message.content
    assert (thinking.thinking, text.text, message.stop_reason) == ("The user asks.", "Looking.", "tool_use")
    assert thinking.signature
    assert (weather.name, weather.input) == ("get_weather", {"city": "Paris", "days": 3})
    assert (clock.name, clock.input) == ("get_time", {})
    body["messages"] = body["messages"] + [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": weather.id, "content": [{"type": "text", "text": "sunny"}]},
            {"type": "tool_result", "tool_use_id": clock.id, "content": "sunny"},
        ]},
    ]  # fmt: skip
    answer = both(claude, **body)[streamed]
    assert shown(answer)[:2] == ([{"type": "text", "text": "It will be sunny at noon."}], "end_turn")


def test_input_of_tools_streams(claude):
    for _ in range(50):  # where the machine is busy, what came meanwhile is one event
        pieces, blocks = [], []
        for event in claude.messages.create(**ask("ask", tools=TOOLS), stream=True):
            if event.type == "content_block_start":
                blocks.append(event.content_block.type)
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                pieces.append(event.delta.partial_json)
        assert blocks == ["thinking", "text", "tool_use", "tool_use"]
        if len(pieces) >= 3:
            break
    assert len(pieces) >= 3


def test_thinking_can_be_switched_off(claude):
    # The template writes the empty reasoning into the prompt: what the model says then is all content.
    count = lambda **more: claude.messages.count_tokens(model="model", messages=ask("sunny")["messages"], **more).input_tokens
    assert count(thinking={"type": "disabled"}) == count() + 2 == count(thinking={"type": "adaptive"}) + 2
    message, _ = both(claude, **(ask("ask", tools=TOOLS, thinking=BRIEFLY) | LONG))
    assert message.content[0].thinking == "The user asks."
    assert 0 < message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens


def test_stop_sequences_and_max_tokens(claude):
    message, _ = both(claude, **ask("sunny", stop_sequences=["noon", " be"]))
    assert (message.content[0].text, message.stop_reason, message.stop_sequence) == ("It will", "stop_sequence", " be")
    message, _ = both(claude, **(ask("sunny") | {"max_tokens": 2}))
    assert (message.content[0].text, message.stop_reason) == ("It will be sunny", "max_tokens")


class Place(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    city: Literal["Paris", "Rome"]
    days: Literal[1, 2, 3]


def test_a_call_that_must_come(claude):
    # The script says something else: the grammar decides, and the budget ends what this model would think for ever.
    tool = {"name": "pick", "strict": True, "input_schema": Place.model_json_schema()}
    choice = {"type": "tool", "name": "pick", "disable_parallel_tool_use": True}
    message, _ = both(claude, **(ask("sunny", tools=[*TOOLS, tool], tool_choice=choice, thinking=BRIEFLY) | LONG))
    assert message.stop_reason == "tool_use" and "text" not in [block.type for block in message.content]
    assert Place.model_validate(message.content[-1].input)


def test_output_of_a_given_form(claude):
    form = {"format": {"type": "json_schema", "schema": Place.model_json_schema()}}
    message, _ = both(claude, **(ask("sunny", output_config=form, thinking=BRIEFLY) | LONG))
    assert Place.model_validate_json(message.content[-1].text)


def test_a_repeated_prefix_is_read_from_the_cache(claude):
    body = ask("sunny", system=[{"type": "text", "text": "word " * 300, "cache_control": {"type": "ephemeral"}}])
    first, again = (claude.messages.create(**body).usage for _ in range(2))
    assert again.cache_read_input_tokens >= 64
    assert first.input_tokens + first.cache_read_input_tokens == again.input_tokens + again.cache_read_input_tokens


def test_tokens_are_counted_as_they_are_prompted(claude):
    body = dict(model="model", system="Be brief.", messages=[{"role": "user", "content": "ask"}], tools=TOOLS)
    counted = claude.messages.count_tokens(**body).input_tokens
    usage = claude.messages.create(**body, max_tokens=5).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_errors(scripted, claude):
    with pytest.raises(anthropic.NotFoundError) as error:
        claude.messages.create(**(ask("sunny") | {"model": "other"}))
    assert error.value.type == "not_found_error" and error.value.request_id
    with pytest.raises(anthropic.BadRequestError) as error:
        # This client has no argument for what the newest models of its maker do not take any more.
        claude.messages.create(**ask("sunny", extra_body={"temperature": 1.5}))
    assert error.value.type == "invalid_request_error" and "temperature" in error.value.api_message
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}
    with pytest.raises(anthropic.BadRequestError, match="'image' is not supported"):
        claude.messages.create(**(ask("sunny") | {"messages": [{"role": "user", "content": [image]}]}))
    with pytest.raises(anthropic.BadRequestError, match="prefill"):
        prefilled = [*ask("sunny")["messages"], {"role": "assistant", "content": "It"}]
        claude.messages.create(**(ask("sunny") | {"messages": prefilled}))
    for key in ({"api_key": "wrong"}, {"auth_token": "wrong"}):
        with pytest.raises(anthropic.AuthenticationError) as error:
            anthropic.Anthropic(base_url=scripted.url, max_retries=0, **key).messages.create(**ask("sunny"))
        assert error.value.type == "authentication_error"
    bearer = anthropic.Anthropic(base_url=scripted.url, max_retries=0, auth_token="secret")
    assert bearer.messages.create(**ask("sunny")).stop_reason == "end_turn"


def test_leaving_a_stream_cancels_it(scripted, claude):
    aborted = lambda: sum(value for _, labels, value in scripted.metrics() if 'finished_reason="abort"' in labels)
    before = aborted()
    with claude.messages.stream(**ask("endless")) as stream:
        next(iter(stream.text_stream))
    deadline = time.monotonic() + 20
    while aborted() == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_beta_client_as_coding_agents_use_it(claude):
    message = claude.beta.messages.create(
        **ask("sunny", tools=TOOLS, system=[{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]),
        betas=["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
        metadata={"user_id": "someone"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )
    assert message.content[0].text == "It will be sunny at noon."
    assert json.loads(message.model_dump_json())["stop_reason"] == "end_turn"
