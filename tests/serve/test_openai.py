"""The completions API as the official client sees it."""

import pytest

from areca.train.restore import sample

pytest.importorskip("uvicorn", reason="the extra areca[serve] is not installed")
openai = pytest.importorskip("openai", reason="the openai client is not installed (make dev)")


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def _sample(run, prompt="palm", count=1, **settings):
    settings = {"tokens": 8, "temperature": 1.0, "top_k": 0} | settings
    return sample(run, [prompt] * count, **settings)


def test_the_text_for_a_seed_is_that_of_areca_generate(client, tiny_run):
    for seed in range(4):
        answer = client.completions.create(model="run", prompt="palm", max_tokens=8, seed=seed)
        [expected] = _sample(tiny_run, seed=seed)
        assert answer.choices[0].text == expected["text"]
        assert answer.choices[0].finish_reason == ("stop" if expected["ended"] else "length")
        assert answer.usage.completion_tokens == expected["tokens"]
    assert answer.object == "text_completion"
    assert answer.model == "run"


def test_greedy_and_filtered_texts_are_those_of_areca_generate_too(client, tiny_run):
    for api, ours in (
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": 0.7, "top_p": 0.8}, {"temperature": 0.7, "top_p": 0.8}),
        ({"extra_body": {"top_k": 5}}, {"top_k": 5}),
    ):
        answer = client.completions.create(model="run", prompt="palm", max_tokens=8, seed=5, **api)
        assert answer.choices[0].text == _sample(tiny_run, seed=5, **ours)[0]["text"]


def test_a_stream_joins_to_the_whole_answer(client):
    settings = {"model": "run", "prompt": "areca", "max_tokens": 10, "seed": 3}
    whole = client.completions.create(**settings)
    parts = list(client.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].text for p in parts if p.choices) == whole.choices[0].text
    assert [p.choices[0].finish_reason for p in parts if p.choices][-1] == whole.choices[0].finish_reason
    assert len(parts) > 2  # as it is made
    assert parts[-1].usage == whole.usage


def test_n_choices_are_those_of_count(client, tiny_run):
    answer = client.completions.create(model="run", prompt="palm", max_tokens=6, seed=1, n=3)
    assert [c.text for c in answer.choices] == [s["text"] for s in _sample(tiny_run, count=3, tokens=6, seed=1)]
    assert [c.index for c in answer.choices] == [0, 1, 2]
    stream = client.completions.create(model="run", prompt="palm", max_tokens=6, seed=1, n=3, stream=True)
    texts = ["", "", ""]
    for part in stream:
        texts[part.choices[0].index] += part.choices[0].text
    assert texts == [c.text for c in answer.choices]


def test_prompts_may_be_texts_or_token_ids(client, tiny_run):
    from areca.train.restore import load_model

    ids = load_model(tiny_run).tokenizer.encode("palm")
    asked = {"model": "run", "max_tokens": 5, "temperature": 0}
    texts = client.completions.create(prompt=["palm", "grove"], **asked)
    tokens = client.completions.create(prompt=ids, **asked)
    assert [c.text for c in texts.choices] == [
        _sample(tiny_run, p, tokens=5, temperature=0)[0]["text"] for p in ("palm", "grove")
    ]
    assert tokens.choices[0].text == texts.choices[0].text


def test_a_stop_string_ends_the_text_before_it(client):
    asked = {"model": "run", "prompt": "areca", "max_tokens": 12, "seed": 3}
    free = client.completions.create(**asked).choices[0].text
    stop = free[3:5]
    ended = client.completions.create(**asked, stop=[stop, "never there"])
    assert ended.choices[0].text == free[: free.index(stop)]
    assert ended.choices[0].finish_reason == "stop"


def test_echo_gives_the_prompt_back(client):
    asked = {"model": "run", "prompt": "stone", "max_tokens": 4, "seed": 3}
    alone = client.completions.create(**asked).choices[0].text
    assert client.completions.create(**asked, echo=True).choices[0].text == "stone" + alone
    assert client.completions.create(**asked | {"max_tokens": 0}, echo=True).choices[0].text == "stone"
    parts = client.completions.create(**asked, echo=True, stream=True)
    assert "".join(p.choices[0].text for p in parts) == "stone" + alone


def test_log_probabilities_come_with_their_tokens(client):
    answer = client.completions.create(model="run", prompt="stone", max_tokens=5, temperature=0, logprobs=2)
    found = answer.choices[0].logprobs
    assert "".join(found.tokens) == answer.choices[0].text
    assert found.text_offset == [sum(map(len, found.tokens[:i])) for i in range(len(found.tokens))]
    for token, score, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert score == max(top.values()) < 0  # greedy: the likeliest
        assert top[token] == score


def test_models_are_listed(client):
    [model] = client.models.list().data
    assert (model.id, model.owned_by) == ("run", "areca")
    assert client.models.retrieve("run").id == "run"
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.models.retrieve("gpt-4")


def test_refusals_are_the_clients_own_exceptions(client):
    with pytest.raises(openai.BadRequestError, match="trained on 16 at a time; ask for at most") as refused:
        client.completions.create(model="run", prompt="palm", max_tokens=100)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError, match="'davinci' is not served here; ask for 'run'"):
        client.completions.create(model="davinci", prompt="palm")
