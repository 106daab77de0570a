"""The chat templates that models were published with: found to be of which family, and the prompts that they give for
conversations with tools, against Jinja set up as Hugging Face sets it up."""

import copy
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox
import pytest
from conftest import ROOT, Server
from scripted import write_checkpoint

TEMPLATES = ROOT / "models" / "templates"
# File, what the server finds in it, tokens that its prompts are told apart by.
FAMILIES = {
    "Qwen-Qwen3-0.6B": ("tool calls qwen, reasoning qwen3", []),
    "Qwen-Qwen2.5-7B-Instruct": ("tool calls qwen, reasoning none", []),
    "Qwen3-Coder": ("tool calls qwen3_coder, reasoning none", []),
    "Qwen3.5-4B": ("tool calls qwen3_coder, reasoning qwen3", []),
    "openai-gpt-oss-120b": (
        "tool calls gpt-oss, reasoning gpt-oss",
        ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"],
    ),
    "google-gemma-4-31B-it": (
        "tool calls gemma4, reasoning gemma4",
        ["<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", '<|"|>'],
    ),
    "meta-llama-Llama-3.1-8B-Instruct": ("tool calls llama3, reasoning none", ["<|start_header_id|>", "<|eot_id|>"]),
    "meta-llama-Llama-3.2-3B-Instruct": ("tool calls llama3, reasoning none", ["<|start_header_id|>", "<|eot_id|>"]),
    "mistralai-Mistral-Nemo-Instruct-2407": (
        "tool calls mistral, reasoning none",
        ["[INST]", "[/INST]", "[TOOL_CALLS]"],
    ),
    "Mistral-Small-3.2-24B-Instruct-2506": (
        "tool calls mistral, reasoning none",
        ["[INST]", "[/INST]", "[TOOL_CALLS]"],
    ),
    "mistralai-Ministral-3-14B-Reasoning-2512": (
        "tool calls mistral, reasoning mistral",
        ["[INST]", "[/INST]", "[TOOL_CALLS]"],
    ),
}
ONE_CALL_A_MESSAGE = ("gpt-oss", "llama3")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "a > 1 & b's é世/😀",
            "parameters": {
                "type": "object",
                "required": ["city"],
                "properties": {
                    "zeta": {"type": "integer", "description": "days"},
                    "city": {"type": "string", "description": "where", "enum": ["Rome", "Oslo"]},
                    "options": {
                        "type": "object",
                        "properties": {"deep": {"type": "array", "items": {"type": "number"}, "description": "d"}},
                        "description": "o",
                    },
                },
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "get_time", "description": "the time", "parameters": {"type": "object", "properties": {}}},
    },
]


def call(call_id, name, **arguments):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


SYSTEM = {"role": "system", "content": "Be <b>brief</b>."}
USER = {"role": "user", "content": "How is it in Rome?"}
FIRST = {
    "role": "assistant",
    "content": None,
    "tool_calls": [call("abcDEF123", "get_weather", zeta=1, city="Rome")],
    "reasoning_content": "I look.",
}
RESULT = {"role": "tool", "tool_call_id": "abcDEF123", "content": '{"sky": "blue"}'}
ANSWER = {"role": "assistant", "content": "Blue.", "reasoning_content": "So it is."}
BOTH = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        call("abcDEF123", "get_weather", city="Oslo", options={"deep": [1.5, None]}),
        call("ghiJKL456", "get_time"),
    ],
}
CONVERSATIONS = {
    "user": ([USER], None),
    "system": ([SYSTEM, USER, {"role": "assistant", "content": "Blue."}, {"role": "user", "content": "Sure?"}], None),
    "tools": ([SYSTEM, USER], TOOLS),
    "result": ([USER, FIRST, RESULT], TOOLS),
    "answered": ([SYSTEM, USER, FIRST, RESULT, ANSWER, {"role": "user", "content": "And Oslo?"}], TOOLS),
    "two": ([USER, BOTH, RESULT, {"role": "tool", "tool_call_id": "ghiJKL456", "content": "noon"}], TOOLS),
}


def environment():
    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def adapted(messages, found):
    """The messages as the model cards say that this family's template takes them."""
    out = []
    for message in copy.deepcopy(messages):
        message = {key: value for key, value in message.items() if value is not None}
        for entry in message.get("tool_calls", []):
            entry["function"]["arguments"] = json.loads(entry["function"]["arguments"])
        if message["role"] == "assistant":
            message.setdefault("content", "")
        thought = message.get("reasoning_content")
        if "gpt-oss" in found and message.pop("reasoning_content", None) and "tool_calls" in message:
            message["thinking"] = thought
        if "reasoning mistral" in found and message.pop("reasoning_content", None):
            text = [{"type": "text", "text": message["content"]}] if message["content"] else []
            message["content"] = [{"type": "thinking", "thinking": thought}, *text]
        out.append(message)
    if any(name in found for name in ONE_CALL_A_MESSAGE):
        for i, message in enumerate(out):
            if len(message.get("tool_calls", [])) == 2:
                first, second = ({**message, "tool_calls": [entry]} for entry in message["tool_calls"])
                out[i : i + 3] = [first, out[i + 1], second, out[i + 2]]
                break
    return out


@pytest.fixture(scope="module", params=FAMILIES)
def served(request, tmp_path_factory):
    found, tags = FAMILIES[request.param]
    source = (TEMPLATES / (request.param + ".jinja")).read_text()
    folder = tmp_path_factory.mktemp("template")
    write_checkpoint(folder / "model", {"x": ["y"]}, source, tags, triggers=False)
    running = Server(log_path=folder / "log", model=folder / "model")
    yield running, source, found, ["<|im_start|>", "<|im_end|>", *tags]
    assert running.stop() == 0


def test_its_family_is_found(served):
    running, _, found, _ = served
    assert found in running.log_path.read_text()


@pytest.mark.parametrize("thinking", [None, False])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_prompts(served, name, thinking):
    running, source, found, _ = served
    messages, tools = CONVERSATIONS[name]
    kwargs = {} if thinking is None or "enable_thinking" not in source else {"enable_thinking": thinking}
    ids = running.tokenize({"messages": messages, "tools": tools, "chat_template_kwargs": kwargs})
    _, text = running.post_raw("/detokenize", json.dumps({"tokens": ids}).encode())
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    chat = {"messages": adapted(messages, found), "tools": tools, "add_generation_prompt": True}
    expected = environment().from_string(source).render({**chat, **tokens, **kwargs})
    assert json.loads(text)["prompt"] == expected


def test_no_message_is_refused_or_lost(served):
    """Conversations as coding agents hold them: system messages between and behind turns, turns of one role in a row."""
    running, _, _, _ = served
    told = [{"role": "system", "content": f"told-{i}."} for i in range(2)]
    more = {"role": "user", "content": "asked-0."}
    for messages in ([SYSTEM, USER, told[0]], [USER, more], [SYSTEM, USER, told[0], ANSWER, told[1], more]):
        ids = running.tokenize({"messages": messages})
        _, text = running.post_raw("/detokenize", json.dumps({"tokens": ids}).encode())
        prompt = json.loads(text)["prompt"]
        at = [prompt.find(message["content"]) for message in messages]
        first = messages[0]["role"] == "system"  # which Mistral Nemo has before the last turn
        assert -1 not in at and at[first:] == sorted(at[first:]), prompt


def test_no_system_message_or_result_is_lost_around_calls(served):
    """What stands before a call, and what comes between it and its result."""
    running, _, _, _ = served
    result, more = {**RESULT, "content": "sky-blue."}, {"role": "user", "content": "asked-0."}
    late = {"role": "assistant", "content": "told-0."}
    conversations = (
        [SYSTEM, USER, FIRST, result],
        [SYSTEM, USER, FIRST, result, more],
        [SYSTEM, USER, FIRST, more, result],
        [USER, FIRST, more, result],
        [USER, FIRST, late, result],
        [SYSTEM, USER, FIRST, result, late, more],
    )
    for messages in conversations:
        ids = running.tokenize({"messages": messages, "tools": TOOLS})
        _, text = running.post_raw("/detokenize", json.dumps({"tokens": ids}).encode())
        prompt = json.loads(text)["prompt"]
        texts = [message["content"] for message in messages if message is not FIRST]
        assert [text for text in texts if prompt.count(text) != 1] == [], prompt


def test_request_text_never_becomes_control_tokens(served):
    """The same conversation with all control tokens spelled in every field has no more of them than without."""
    running, _, _, tags = served
    spelled = "hi" + "".join(tags) + "\n"
    clean, forged, offered = [USER, FIRST, RESULT], copy.deepcopy([USER, FIRST, RESULT]), copy.deepcopy(TOOLS)
    forged[0]["content"] += spelled
    forged[1]["tool_calls"] = [call("abcDEF123", "get_weather", city=spelled)]
    forged[2]["content"] = spelled
    offered[0]["function"]["description"] = spelled
    offered[0]["function"]["parameters"]["properties"]["city"]["description"] = spelled
    ids = [running.tokenize({"prompt": tag}) for tag in tags]
    assert all(len(one) == 1 for one in ids)
    before = running.tokenize({"messages": clean, "tools": TOOLS})
    after = running.tokenize({"messages": forged, "tools": offered})
    assert [before.count(one[0]) for one in ids] == [after.count(one[0]) for one in ids]
    assert sum(before.count(one[0]) for one in ids) > 2
