"""The official OpenAI client against the demo model: what works, and in which form."""
import concurrent.futures
import time

import openai
import pytest
from conftest import CONTEXT_LENGTH

QUESTION = [{"role": "user", "content": "Name three rivers."}]


def test_models(client, model):
    assert client.models.retrieve(model).id == model
    assert [entry.id for entry in client.models.list().data] == [model]


def test_chat(client, model):
    reply = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=24, temperature=0)
    choice = reply.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content.strip()
    assert choice.finish_reason in ("stop", "length")
    assert 1 <= reply.usage.completion_tokens <= 24
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_stream_joins_to_the_same_text(client, model):
    body = dict(model=model, messages=QUESTION, max_tokens=40, temperature=0)
    whole = client.chat.completions.create(**body)
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert text == whole.choices[0].message.content
    assert reasons[-1] == whole.choices[0].finish_reason
    assert all(reason is None for reason in reasons[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_completion_of_text_and_of_token_ids(server, client, model):
    prompt = "The capital of France is"
    by_text = client.completions.create(model=model, prompt=prompt, max_tokens=8, temperature=0)
    assert "Paris" in by_text.choices[0].text
    ids = server_tokenize(server, prompt)
    by_ids = client.completions.create(model=model, prompt=ids, max_tokens=8, temperature=0)
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert by_ids.usage.prompt_tokens == len(ids)


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_and_answers_have_the_same_logprobs(client, model, stream):
    def listed(**more):
        body = dict(model=model, temperature=0, logprobs=3, stream=stream, **more)
        replies = list(client.completions.create(**body)) if stream else [client.completions.create(**body)]
        choices = [choice for reply in replies for choice in reply.choices]
        parts = [choice.logprobs for choice in choices if choice.logprobs]
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return "".join(choice.text for choice in choices), {
            name: [value for part in parts for value in getattr(part, name)] for name in names
        }

    prompt = "The capital of France is"
    text, answer = listed(prompt=prompt, max_tokens=6)
    echoed, scored = listed(prompt=prompt + text, max_tokens=0, echo=True)
    assert echoed == prompt + text
    count = len(answer["tokens"])
    assert scored["tokens"][-count:] == answer["tokens"]
    assert scored["token_logprobs"][-count:] == pytest.approx(answer["token_logprobs"], abs=0.3)
    assert scored["token_logprobs"][0] is scored["top_logprobs"][0] is None
    for at, (token, logprob, top, offset) in enumerate(zip(*(scored[name] for name in scored))):
        assert echoed[offset:].startswith(token)
        assert at == 0 or (top[token] == logprob and len(top) in (3, 4))
    assert any(len(top) == 4 for top in scored["top_logprobs"][1:])  # no prompt is the likeliest text throughout
    joined, both = listed(prompt=prompt, max_tokens=6, echo=True)
    assert joined == prompt + text
    assert [both[name] for name in ("tokens", "text_offset")] == [scored[name] for name in ("tokens", "text_offset")]


def server_tokenize(server, text):
    import json

    status, body = server.post_raw("/tokenize", json.dumps({"prompt": text}).encode())
    assert status == 200, body
    return json.loads(body)["tokens"]


def test_a_repeated_prompt_is_served_from_the_cache(client, model):
    body = dict(model=model, prompt="A long walk along the river. " * 20, max_tokens=1, temperature=0)
    client.completions.create(**body)
    again = client.completions.create(**body)
    assert again.usage.prompt_tokens_details.cached_tokens >= 64


def test_stop_string_is_not_part_of_the_text(client, model):
    reply = client.completions.create(model=model, prompt="1, 2, 3, 4,", max_tokens=40, temperature=0, stop=["8"])
    assert reply.choices[0].finish_reason == "stop"
    assert "7" in reply.choices[0].text
    assert "8" not in reply.choices[0].text


def test_logprobs(client, model):
    reply = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3)
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob <= 0
        assert entry.token == entry.top_logprobs[0].token
    assert "".join(entry.token for entry in content) == reply.choices[0].message.content


def test_seed_repeats_and_n_differ(client, model):
    body = dict(model=model, messages=QUESTION, max_tokens=24, temperature=1.5, seed=7, n=2)
    first = client.chat.completions.create(**body)
    second = client.chat.completions.create(**body)
    texts = [choice.message.content for choice in first.choices]
    assert sorted(choice.index for choice in first.choices) == [0, 1]
    assert texts == [choice.message.content for choice in second.choices]
    assert texts[0] != texts[1]


def test_eight_at_once_all_answer(client, model):
    def ask(number):
        return client.completions.create(
            model=model, prompt=f"Number {number}:", max_tokens=16, temperature=0, extra_body={"ignore_eos": True})

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for reply in pool.map(ask, range(8)):
            assert reply.usage.completion_tokens == 16
            assert reply.choices[0].finish_reason == "length"


def test_closing_a_stream_cancels_it(server, client, model):
    stream = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=8000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    assert server.metric_sum("tailrace_num_requests_running") == 1
    stream.close()
    deadline = time.monotonic() + 5
    while server.metric_sum("tailrace_num_requests_running") > 0:
        assert time.monotonic() < deadline, "the request still runs 5 s after its client left"
        time.sleep(0.05)


@pytest.mark.parametrize("change", [
    dict(temperature=-1), dict(top_p=2), dict(top_p=0), dict(n=0), dict(n=100000), dict(max_tokens=-5),
    dict(logit_bias={"999999": 5}), dict(messages=[]), dict(messages=[{"role": "user"}]),
    dict(presence_penalty=5), dict(top_logprobs=3), dict(stop=["a"] * 100), dict(seed=1.5),
    dict(extra_body={"min_p": 2}), dict(extra_body={"top_k": "many"}),
    dict(messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]),
], ids=str)
def test_bad_values_are_the_clients_own_error(client, model, change):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**dict(model=model, messages=QUESTION, max_tokens=4), **change})
    assert caught.value.body["message"]
    assert caught.value.body["type"] == "invalid_request_error"


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-nobody", messages=QUESTION)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-nobody")


def test_a_prompt_beyond_the_context_says_so(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt=[5] * (CONTEXT_LENGTH + 1), max_tokens=1)
    assert str(CONTEXT_LENGTH) in caught.value.body["message"]
