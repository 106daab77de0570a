"""Answers of a given form through the official OpenAI client, on the demo model."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pydantic
import pytest


class City(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str
    population: int
    capital: bool


ASK = [{"role": "user", "content": "Tell me about Paris as JSON."}]


def test_parse_with_a_class(client, model):
    answer = client.chat.completions.parse(
        model=model, messages=ASK, response_format=City, max_tokens=400, temperature=0, extra_body={"repetition_penalty": 1.2}
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, City)


def test_many_at_once_beside_plain_ones(client, model):
    plain = dict(model=model, messages=[{"role": "user", "content": "Count from one."}], max_tokens=24, temperature=0)
    alone = client.chat.completions.create(**plain).choices[0].message.content
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": City.model_json_schema(), "strict": True}}

    def formed(seed):
        answer = client.chat.completions.create(
            model=model, messages=ASK, response_format=schema, max_tokens=400, seed=seed, extra_body={"top_k": 20}
        )
        return answer.choices[0]

    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(lambda: client.chat.completions.create(**plain)) for _ in range(3)]
        for choice in pool.map(formed, range(6)):
            if choice.finish_reason == "stop":  # else max_tokens cut a long name
                City.model_validate_json(choice.message.content)
        assert all(other.result().choices[0].message.content == alone for other in others)


def test_streamed_choice_and_regex(client, model):
    stream = client.chat.completions.create(
        model=model, messages=ASK, stream=True, extra_body={"structured_outputs": {"choice": ["yes", "no", "perhaps"]}}
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text in {"yes", "no", "perhaps"}
    answer = client.completions.create(model=model, prompt="A date: ", extra_body={"guided_regex": r"20\d\d-\d\d-\d\d"})
    assert len(answer.choices[0].text) == 10 and answer.choices[0].finish_reason == "stop"


def test_json_object(client, model):
    answer = client.chat.completions.create(
        model=model, messages=ASK, response_format={"type": "json_object"}, max_tokens=300, temperature=0
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    assert answer.choices[0].message.content.startswith("{")


def test_masks_are_counted(server, client, model):
    before = server.metric_sum("tailrace_grammar_masks_total")
    client.completions.create(model=model, prompt="x", extra_body={"guided_regex": "[ab]{5}"})  # in two tokens at least
    assert server.metric_sum("tailrace_grammar_masks_total") >= before + 2


@pytest.mark.parametrize("schema, keyword", [({"type": "array", "uniqueItems": True}, "uniqueItems"), ({"not": {}}, "not")])
def test_unsupported_keywords_are_named(client, model, schema, keyword):
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=model, messages=ASK, response_format=form)
    assert error.value.param == "response_format.json_schema.schema" and keyword in error.value.message
