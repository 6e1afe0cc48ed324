"""What OpenAI's own Python client gets from `moe serve`: each `check_*` is one check of a
`Session`; what it returns is printed, and AssertionError or an error of the client is a failure.
serve_check.py runs them."""

import asyncio
import json
import os
import re
import urllib.error
import urllib.request

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion
from openai.types.responses import Response

QUESTION = [{"role": "user", "content": "Hello!"}]
DIALOGUE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " what is  2 + 2? "},
    {"role": "assistant", "content": "Größe, naïve, 中文 and 😀"},
    {"role": "user", "content": "l'été"},
]
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"type": "string", "enum": ["red", "green", 'a "quoted" ü']},
        "sure": {"type": "boolean"},
        "parts": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["colour", "sure", "parts"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "find_router",
        "description": "Finds the router of a layer",
        "parameters": SCHEMA,
    },
}
# Words to prompt the model with; short, so that they fit the smallest context with a reply.
PROMPTS = ["the model", "a large expert", "router writes", "word of the line"]


def chats(folder):
    """Whether the folder has a chat template of its own."""
    config = os.path.join(folder, "tokenizer_config.json")
    if not os.path.exists(config):
        return False
    with open(config, encoding="utf-8") as file:
        return "chat_template" in json.load(file)


class Session:
    """One server, OpenAI's client of it, and what is known of its model."""

    def __init__(self, url, folder=None, key="none"):
        self.url = url
        self.client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=120)
        self.folder = folder
        self.info = self.get("/tokenizer_info")
        self.model = self.client.models.list().data[0]
        meta = (self.model.model_extra or {}).get("meta") or {}
        template = chats(folder) if folder else self.info.get("chat_template")
        # The dialogues and schemas below take some hundred tokens.
        self.chats = bool(template) and meta.get("context", 512) >= 512
        # A reply's length that fits beside the prompts above in a context of 64 bytes.
        self.length = 24
        self._tokenizer = None

    @property
    def tokenizer(self):
        """transformers' tokenizer of the folder, or None where the model is a GGUF file."""
        if self._tokenizer is None and self.folder:
            import transformers

            self._tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        return self._tokenizer

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            return json.load(reply)

    def post(self, path, body):
        """Status and JSON of a request that the client would not send."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def tokens(self, text):
        return self.post("/tokenize", {"content": text, "add_special": False})[1]["tokens"]

    def chat(self, messages=QUESTION, **fields):
        fields.setdefault("max_tokens", self.length)
        reply = self.client.chat.completions.create(
            model=self.model.id, messages=messages, **fields
        )
        return reply if fields.get("stream") else ChatCompletion.model_validate(reply.to_dict())

    def complete(self, prompt=PROMPTS[0], **fields):
        fields.setdefault("max_tokens", self.length)
        reply = self.client.completions.create(model=self.model.id, prompt=prompt, **fields)
        # An echoed prompt's first token has no log-probability, which OpenAI's own form lacks.
        if fields.get("stream") or fields.get("echo"):
            return reply
        return Completion.model_validate(reply.to_dict())


def same(what, left, right):
    assert left == right, f"{what}: {ascii(left)[:300]} against {ascii(right)[:300]}"


def close(what, left, right, tolerance=1e-3):
    assert abs(left - right) <= tolerance, f"{what}: {left} against {right}"


def joined(stream, kind=None):
    """The texts, ends, roles and usage of a stream, one text per choice."""
    texts, ends, roles, usage, ids = {}, {}, {}, None, set()
    for chunk in stream:
        if kind is not None:
            kind.model_validate(chunk.to_dict())
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert choice.index not in ends, "a chunk follows the one that ended its choice"
            if hasattr(choice, "delta"):
                if choice.delta.role:
                    roles[choice.index] = choice.delta.role
                text = choice.delta.content or ""
            else:
                text = choice.text
            texts[choice.index] = texts.get(choice.index, "") + text
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert len(ids) == 1, f"the chunks of one stream have {len(ids)} ids"
    return texts, ends, roles, usage


def refused(error, call, **about):
    """What the client raises; the body must have all of OpenAI's fields."""
    try:
        call()
    except error as caught:
        body = caught.body
        assert isinstance(body, dict), f"the error's body is {body!a}"
        for field in ("message", "type", "param", "code"):
            assert field in body, f"the error lacks {field}: {body}"
        assert body["message"], f"an empty message: {body}"
        for field, value in about.items():
            said = f"{body['param']} {body['message']}"
            assert value in said, f"neither param nor message names {value}: {body}"
        return body
    except openai.APIStatusError as other:
        raise AssertionError(
            f"{type(other).__name__} ({other.status_code}) instead of {error.__name__}: {other.body}"
        ) from None
    raise AssertionError(f"accepted, though {error.__name__} is due: {about or call}")


def check_models(s):
    data = s.client.models.list().data
    same("models", len(data), 1)
    same("one model", s.client.models.retrieve(data[0].id).id, data[0].id)
    meta = data[0].model_extra.get("meta")
    assert meta and isinstance(meta, dict), f"no meta: {data[0].to_dict()}"
    refused(openai.NotFoundError, lambda: s.client.models.retrieve("no-such-model"))
    return f"{data[0].id}, meta {json.dumps(meta)}"


def check_tokenize(s):
    for text in PROMPTS + ["Größe, 中文 and 😀", ""]:
        ids = s.tokens(text)
        back = s.post("/detokenize", {"tokens": ids})[1]["content"]
        same("text of the ids", back, text)
        if s.tokenizer:
            same("ids", ids, s.tokenizer(text, add_special_tokens=False)["input_ids"])
        pieces = s.post("/tokenize", {"content": text, "with_pieces": True})[1]["tokens"]
        same("ids with pieces", [piece["id"] for piece in pieces], ids)
    # The form of vLLM, which lm_eval's remote tokenizer sends.
    ids = s.tokens(PROMPTS[0])
    status, body = s.post("/tokenize", {"prompt": PROMPTS[0], "add_special_tokens": False})
    same("tokenize with a prompt", (status, body.get("tokens")), (200, ids))
    same("detokenize's prompt", s.post("/detokenize", {"tokens": ids})[1].get("prompt"), PROMPTS[0])
    return f"{len(PROMPTS) + 2} texts"


def check_completion(s):
    text = s.complete(temperature=0)
    same("object", text.object, "text_completion")
    same("a greedy reply again", s.complete(temperature=0).choices[0].text, text.choices[0].text)
    ids = s.tokens(PROMPTS[0])
    by_ids = s.complete(ids, temperature=0)
    same("by ids", by_ids.choices[0].text, text.choices[0].text)
    same("tokens of the prompt", by_ids.usage.prompt_tokens, len(ids))
    assert text.usage.completion_tokens <= s.length, text.usage
    same("total", text.usage.total_tokens, text.usage.prompt_tokens + text.usage.completion_tokens)
    end = "length" if text.usage.completion_tokens == s.length else "stop"
    assert text.choices[0].finish_reason in (end, "stop"), text.choices[0].finish_reason
    same(
        "echo",
        s.complete(temperature=0, echo=True).choices[0].text,
        PROMPTS[0] + text.choices[0].text,
    )
    several = s.complete([s.tokens(p) for p in PROMPTS], temperature=0)
    same("indexes", sorted(c.index for c in several.choices), list(range(len(PROMPTS))))
    for choice in several.choices:
        alone = s.complete(PROMPTS[choice.index], temperature=0).choices[0].text
        same(f"prompt {choice.index} of several", choice.text, alone)
    drawn = {s.complete(temperature=1, seed=seed).choices[0].text for seed in range(6)}
    assert len(drawn) > 1, "six seeds gave one text"
    return f"{len(several.choices)} prompts, {len(drawn)} texts of 6 seeds"


def check_completion_stream(s):
    for fields in (
        {"temperature": 0},
        {"temperature": 1, "seed": 5},
        {"temperature": 2, "seed": 6},
    ):
        whole = s.complete(**fields)
        texts, ends, _, usage = joined(
            s.complete(stream=True, stream_options={"include_usage": True}, **fields)
        )
        same("streamed text", texts[0], whole.choices[0].text)
        same("streamed end", ends[0], whole.choices[0].finish_reason)
        same("streamed usage", usage.completion_tokens, whole.usage.completion_tokens)
    two = {"temperature": 1, "seed": 7, "n": 2}
    whole = s.complete(PROMPTS[:2], **two)
    same("choices", sorted(c.index for c in whole.choices), [0, 1, 2, 3])
    texts = joined(s.complete(PROMPTS[:2], stream=True, **two))[0]
    same("streamed choices", texts, {c.index: c.text for c in whole.choices})
    return "4 streams"


def check_several(s):
    fields = {"temperature": 1.5, "seed": 11, "n": 2}
    first = s.complete(**fields)
    texts = [c.text for c in first.choices]
    same("indexes", [c.index for c in first.choices], [0, 1])
    assert texts[0] != texts[1], f"n=2 gave {texts[0]!a} twice"
    same("n=2 again", [c.text for c in s.complete(**fields).choices], texts)
    assert first.usage.completion_tokens > 2, first.usage
    if s.chats:
        same("n=3 in chat", len(s.chat(n=3, seed=1).choices), 3)
    return "2 and 3 choices"


def check_stop(s):
    tried = 0
    for seed in range(20):
        fields = {"temperature": 1, "seed": seed}
        whole = s.complete(**fields).choices[0].text
        # A part that no half character touches.
        found = re.search(r"(?<=[ -~])[ -~]{2,3}", whole)
        if not found:
            continue
        part = found[0]
        cut = s.complete(stop=[part, "never said"], **fields).choices[0]
        same(f"stop at {part!a}", cut.text, whole.split(part)[0])
        same("why it ended", cut.finish_reason, "stop")
        texts, ends, _, _ = joined(s.complete(stop=part, stream=True, **fields))
        same("streamed", (texts[0], ends[0]), (cut.text, "stop"))
        tried += 1
    assert tried > 3, f"only {tried} replies of 20 had a plain part"
    return f"{tried} replies cut"


def check_logprobs(s):
    reply = s.complete(temperature=0, logprobs=3, logit_bias=no_end(s))
    logs = reply.choices[0].logprobs
    same("entries", len(logs.tokens), reply.usage.completion_tokens)
    same(
        "lengths",
        {len(logs.token_logprobs), len(logs.top_logprobs), len(logs.text_offset)},
        {len(logs.tokens)},
    )
    same("offsets", logs.text_offset, sorted(logs.text_offset))
    for value, top in zip(logs.token_logprobs, logs.top_logprobs):
        assert value <= 0 and 1 <= len(top) <= 4, (value, top)
        assert value <= max(top.values()) + 1e-6, (value, top)
    assert s.complete(temperature=0).choices[0].logprobs is None, "logprobs that nobody asked for"
    echo = s.complete(s.tokens(PROMPTS[3]), echo=True, logprobs=1, max_tokens=1, temperature=0)
    logs, ids = echo.choices[0].logprobs, s.tokens(PROMPTS[3])
    same("prompt and one more", len(logs.token_logprobs), len(ids) + 1)
    assert logs.token_logprobs[0] is None and not logs.top_logprobs[0], "the first token has one"
    if s.folder:
        for place, (ours, theirs) in enumerate(
            zip(logs.token_logprobs[1:-1], of_transformers(s, ids))
        ):
            close(f"log-probability of token {place + 1}", ours, theirs)
    return f"{len(ids)} tokens of a prompt" + (" as transformers has them" if s.folder else "")


def of_transformers(s, ids):
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(s.folder, dtype=torch.float32)
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [scores[i, ids[i + 1]].item() for i in range(len(ids) - 1)]


def no_end(s):
    """A bias that keeps the reply from ending, so that its length is known."""
    ends = {s.info.get("eos_token"), s.tokenizer.eos_token if s.tokenizer else None}
    ids = [s.tokens(end) for end in ends if end]
    return {str(found[0]): -100 for found in ids if len(found) == 1}


def check_chat_logprobs(s):
    reply = s.chat(temperature=0, logprobs=True, top_logprobs=5, logit_bias=no_end(s))
    content = reply.choices[0].logprobs.content
    same("entries", len(content), reply.usage.completion_tokens)
    for entry in content:
        same("alternatives", len(entry.top_logprobs), 5)
        values = [top.logprob for top in entry.top_logprobs]
        same("their order", values, sorted(values, reverse=True))
        # Where an end was forbidden, it may stand above the token that was taken.
        assert any(top.token == entry.token for top in entry.top_logprobs), entry
    raw = b"".join(bytes(entry.bytes or entry.token.encode()) for entry in content)
    same(
        "the bytes",
        raw.decode("utf-8", "replace").strip(),
        reply.choices[0].message.content.strip(),
    )
    plain = s.chat(temperature=0, logprobs=True)
    assert all(not entry.top_logprobs for entry in plain.choices[0].logprobs.content)
    assert s.chat(temperature=0).choices[0].logprobs is None, "logprobs that nobody asked for"
    streamed = [
        entry.token
        for chunk in s.chat(
            temperature=0, logprobs=True, top_logprobs=5, logit_bias=no_end(s), stream=True
        )
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content or []
    ]
    same("streamed tokens", streamed, [entry.token for entry in content])
    return f"{len(content)} tokens with 5 alternatives"


def check_logit_bias(s):
    (token,) = s.tokens("x")
    bias = {str(token): 100}
    same("a favoured x", s.complete(logit_bias=bias, seed=1).choices[0].text, "x" * s.length)
    if s.chats:
        same("in chat", s.chat(logit_bias=bias, seed=1).choices[0].message.content, "x" * s.length)
    greedy = s.complete(logit_bias=bias, temperature=0, max_tokens=4)
    same("greedily", greedy.choices[0].text, "xxxx")
    first = s.complete(temperature=0, logprobs=1, max_tokens=1).choices[0].logprobs.tokens[0]
    ids = s.tokens(first)
    if len(ids) == 1:
        banned = s.complete(logit_bias={str(ids[0]): -100}, temperature=0, logprobs=1, max_tokens=1)
        now = banned.choices[0].logprobs.tokens
        assert now != [first], f"{first!a}, though it is forbidden"
    for wrong in ({"x": 1}, {"99999999": 1}, {str(token): 101}, {str(token): "1"}):
        refused(
            openai.BadRequestError,
            lambda: s.complete(logit_bias=wrong),  # noqa: B023
            names="logit_bias",
        )
    return "favoured, forbidden, refused"


def check_chat(s):
    for messages in (QUESTION, DIALOGUE):
        reply = s.chat(messages, temperature=1, seed=3)
        same("object", reply.object, "chat.completion")
        same("role", reply.choices[0].message.role, "assistant")
        assert reply.choices[0].finish_reason in ("stop", "length"), reply.choices[0].finish_reason
        same(
            "tokens",
            reply.usage.total_tokens,
            reply.usage.prompt_tokens + reply.usage.completion_tokens,
        )
        again = s.chat(messages, temperature=1, seed=3)
        same("the same seed", again.choices[0].message.content, reply.choices[0].message.content)
        status, applied = s.post("/apply-template", {"messages": messages})
        same("apply-template", status, 200)
        if s.tokenizer:
            prompt = s.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            same("the prompt", applied["prompt"], prompt)
            ids = s.tokenizer(prompt, add_special_tokens=False)["input_ids"]
            same("tokens of the prompt", reply.usage.prompt_tokens, len(ids))
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]
    of_parts = s.chat(parts, temperature=0).choices[0].message.content
    same("text in parts", of_parts, s.chat(temperature=0).choices[0].message.content)
    newer = s.chat(temperature=0, max_tokens=openai.omit, max_completion_tokens=5)
    assert newer.usage.completion_tokens <= 5, newer.usage
    return f"{reply.usage.prompt_tokens} tokens of a prompt"


def check_chat_stream(s):
    size = 0
    for seed in range(6):
        fields = {"temperature": 0.7 * (seed % 3), "seed": seed, "max_tokens": 60}
        whole = s.chat(DIALOGUE, **fields)
        texts, ends, roles, usage = joined(
            s.chat(DIALOGUE, stream=True, stream_options={"include_usage": True}, **fields),
            ChatCompletionChunk,
        )
        same("streamed text", texts[0], whole.choices[0].message.content)
        same("streamed end", ends[0], whole.choices[0].finish_reason)
        same("role", roles, {0: "assistant"})
        same("usage", usage.to_dict(), usage.to_dict() | whole.usage.to_dict())
        size += len(texts[0])
    same("usage unasked", joined(s.chat(stream=True, seed=1))[3], None)
    return f"6 replies, {size} characters"


def check_responses(s):
    size = 0
    for seed in range(3):
        fields = {"model": s.model.id, "input": DIALOGUE, "temperature": 0.7 * seed}
        fields |= {"max_output_tokens": 60, "extra_body": {"seed": seed}}
        chat = s.chat(DIALOGUE, temperature=0.7 * seed, seed=seed, max_tokens=60)
        whole = s.client.responses.create(**fields)
        Response.model_validate(whole.to_dict())
        same("text", whole.output_text, chat.choices[0].message.content)
        cut = chat.choices[0].finish_reason == "length"
        same("status", whole.status, "incomplete" if cut else "completed")
        same("input_tokens", whole.usage.input_tokens, chat.usage.prompt_tokens)
        same("output_tokens", whole.usage.output_tokens, chat.usage.completion_tokens)
        text, numbers = "", []
        for event in s.client.responses.create(stream=True, **fields):
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
        same("streamed text", text, whole.output_text)
        same("sequence numbers", numbers, list(range(len(numbers))))
        same("the last event", event.type, f"response.{whole.status}")
        same("its text", event.response.output_text, whole.output_text)
        size += len(text)
    refused(
        openai.BadRequestError,
        lambda: s.client.responses.create(input="x", previous_response_id="y"),
        names="previous_response_id",
    )
    return f"3 replies, {size} characters"


def check_async(s):
    async def ask(client, seed):
        reply = await client.completions.create(
            model=s.model.id,
            prompt=PROMPTS[seed % len(PROMPTS)],
            seed=seed,
            temperature=1,
            max_tokens=s.length,
        )
        return reply.choices[0].text

    async def at_once():
        async with openai.AsyncOpenAI(
            base_url=s.url + "/v1", api_key=s.client.api_key, max_retries=0, timeout=120
        ) as client:
            return await asyncio.gather(*(ask(client, seed) for seed in range(24)))

    together = asyncio.run(at_once())
    for seed, text in enumerate(together):
        alone = s.complete(PROMPTS[seed % len(PROMPTS)], seed=seed, temperature=1)
        same(f"seed {seed} among 24", text, alone.choices[0].text)
    return "24 at once as alone"


def check_cancel(s):
    for _ in range(3):
        stream = s.complete(stream=True, seed=1)
        next(iter(stream))
        stream.close()
    return f"3 left, and then {len(s.complete(seed=1).choices[0].text)} characters"


def fits(value):
    assert set(value) == {"colour", "sure", "parts"}, value
    assert value["colour"] in SCHEMA["properties"]["colour"]["enum"], value
    assert isinstance(value["sure"], bool), value
    assert 1 <= len(value["parts"]) <= 3 and set(value["parts"]) <= {1, 2, 3}, value


def check_schema(s):
    wanted = {"type": "json_schema", "json_schema": {"name": "r", "strict": True, "schema": SCHEMA}}
    seen = set()
    for seed in range(8):
        fields = {"response_format": wanted, "seed": seed, "max_tokens": 300}
        reply = s.chat(**fields)
        same("why it ended", reply.choices[0].finish_reason, "stop")
        fits(json.loads(reply.choices[0].message.content))
        seen.add(reply.choices[0].message.content)
        same(
            "streamed",
            joined(s.chat(stream=True, **fields))[0][0],
            reply.choices[0].message.content,
        )
    assert len(seen) > 1, f"8 seeds gave {seen}"
    for wrong in (
        {"type": "yaml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "r", "schema": {"type": "colour"}}},
    ):
        refused(
            openai.BadRequestError,
            lambda: s.chat(response_format=wrong),  # noqa: B023
            names="response_format",
        )
    return f"{len(seen)} replies that fit"


def check_json(s):
    fields = {"response_format": {"type": "json_object"}, "max_tokens": 200}
    whole = 0
    for seed in range(5):
        reply = s.chat(seed=seed, temperature=0.7, **fields).choices[0]
        text = reply.message.content
        assert text.lstrip().startswith("{"), ascii(text)
        if reply.finish_reason == "stop":
            assert isinstance(json.loads(text), dict), ascii(text)
            whole += 1
    # A model that knows no JSON may write one string until it may write no more.
    bias = {str(ids[0]): 50 for ids in map(s.tokens, ('"', "}")) if len(ids) == 1}
    helped = s.chat(seed=1, logit_bias=bias, **fields).choices[0]
    same("why it ended", helped.finish_reason, "stop")
    assert isinstance(json.loads(helped.message.content), dict)
    return f"{whole} of 5 whole, {helped.message.content!a} with help"


def check_tools(s):
    status, told = s.post("/apply-template", {"messages": QUESTION, "tools": [TOOL]})
    same("apply-template", status, 200)
    assert "find_router" in told["prompt"], f"no tool in {told['prompt']!a}"
    if s.tokenizer:
        theirs = s.tokenizer.apply_chat_template(
            QUESTION, tools=[TOOL], tokenize=False, add_generation_prompt=True
        )
        same("the prompt with tools", told["prompt"], theirs)
    without = s.chat(temperature=0)
    free = s.chat(tools=[TOOL], temperature=0)
    assert free.usage.prompt_tokens > without.usage.prompt_tokens, (free.usage, without.usage)
    none = s.chat(tools=[TOOL], tool_choice="none", seed=1).choices[0]
    assert not none.message.tool_calls and none.finish_reason != "tool_calls", none
    by_name = {"type": "function", "function": {"name": "find_router"}}
    for choice in ("required", by_name):
        fields = {"tools": [TOOL], "tool_choice": choice, "seed": 2, "max_tokens": 400}
        reply = s.chat(**fields).choices[0]
        called = (reply.message.tool_calls or [None])[0]
        assert called, f"tool_choice {choice}: no call, but {reply.message.content!a}"
        same("name", called.function.name, "find_router")
        assert called.id, called
        fits(json.loads(called.function.arguments))
        arguments, name = "", None
        for chunk in s.chat(stream=True, **fields):
            for delta in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
                if delta.index == 0:
                    name = delta.function.name or name
                    arguments += delta.function.arguments or ""
        same("streamed call", (name, arguments), ("find_router", called.function.arguments))
    answered = QUESTION + [
        {"role": "assistant", "content": None, "tool_calls": [called.to_dict()]},
        {"role": "tool", "tool_call_id": called.id, "content": "layer 3"},
    ]
    assert s.chat(answered, tools=[TOOL], seed=1).choices[0].message is not None
    wrong = {"type": "function", "function": {"name": "unknown"}}
    refused(openai.BadRequestError, lambda: s.chat(tools=[TOOL], tool_choice=wrong), names="tool")
    return "in the prompt, not called, called by force, answered"


def check_errors(s):
    bad = {
        "temperature": ["hot", -1, [1]],
        "max_tokens": [-1, "many", 1.5],
        "top_p": [-0.1, 1.5, "x"],
        "n": [0, 17, "x"],
        "seed": ["x"],
        "stop": [["a"] * 17, 5],
        "stream": ["yes"],
        "logit_bias": [[1], "x"],
    }
    count = 0
    for field, values in bad.items():
        for value in values:
            calls = [lambda: s.complete(extra_body={field: value})]  # noqa: B023
            if s.chats:
                calls.append(lambda: s.chat(extra_body={field: value}))  # noqa: B023
            for call in calls:
                refused(openai.BadRequestError, call, names=field)
                count += 1
    refused(openai.BadRequestError, lambda: s.complete(logprobs=21), names="logprobs")
    refused(openai.BadRequestError, lambda: s.complete(suffix="end"), names="suffix")
    refused(openai.BadRequestError, lambda: s.complete([99999999]), names="prompt")
    refused(openai.BadRequestError, lambda: s.complete("x " * 40000))
    if s.chats:
        refused(openai.BadRequestError, lambda: s.chat([]), names="messages")
        refused(openai.BadRequestError, lambda: s.chat([{"content": "x"}]), names="messages")
        refused(
            openai.BadRequestError,
            lambda: s.chat(logprobs=True, top_logprobs=21),
            names="top_logprobs",
        )
        status, body = s.post("/v1/chat/completions", {"model": "x"})
        same("without messages", (status, "messages" in json.dumps(body)), (400, True))
    status, body = s.post("/v1/completions", b'{"prompt": ')
    same("broken JSON", (status, list(body)), (400, ["error"]))
    status, body = s.post("/v1/nothing", {})
    same("an unknown path", (status, list(body)), (404, ["error"]))
    assert s.complete(extra_body={"colour": "blue"}, temperature=0).choices, "unknown field"
    return f"{count + 8} refused by name"


def check_routing(s):
    reply = s.complete(s.tokens(PROMPTS[0]), temperature=0, extra_body={"routing": True})
    routing = (reply.choices[0].model_extra or {}).get("routing")
    assert routing, "no routing in the reply"
    read = reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert read - 1 <= len(routing["tokens"]) <= read, (len(routing["tokens"]), read)
    same(
        "ids of the prompt",
        [t["id"] for t in routing["tokens"]][: reply.usage.prompt_tokens],
        s.tokens(PROMPTS[0]),
    )
    for token in routing["tokens"]:
        same("layers", len(token["experts"]), len(routing["layers"]))
        assert all(0 <= e < routing["num_experts"] for row in token["experts"] for e in row), token
    parts = []
    for chunk in s.complete(
        s.tokens(PROMPTS[0]), temperature=0, stream=True, extra_body={"routing": True}
    ):
        for choice in chunk.choices:
            parts += ((choice.model_extra or {}).get("routing") or {}).get("tokens", [])
    same(
        "streamed routing",
        [(t["id"], t["experts"]) for t in parts],
        [(t["id"], t["experts"]) for t in routing["tokens"]],
    )
    again = {"routed_experts": routing["routed_experts"], "shape": routing["shape"]}
    replayed = s.complete(s.tokens(PROMPTS[0]), temperature=0, extra_body={"replay": again})
    same("replayed", replayed.choices[0].text, reply.choices[0].text)
    return f"{len(routing['tokens'])} tokens, {len(routing['layers'])} layers"


def check_key(s, url, key):
    """Another server, started with --api-key."""

    def asks(word):
        client = openai.OpenAI(base_url=url + "/v1", api_key=word, max_retries=0, timeout=60)
        return client.completions.create(model="any", prompt="the", max_tokens=2)

    refused(openai.AuthenticationError, lambda: asks("wrong"))
    refused(openai.AuthenticationError, lambda: asks(key + "x"))
    assert asks(key).choices
    for path, due in (
        ("/health", 200),
        ("/", 200),
        ("/v1/models", 401),
        ("/experts", 401),
        ("/metrics", 401),
    ):
        try:
            with urllib.request.urlopen(url + path, timeout=60) as reply:
                status = reply.status
        except urllib.error.HTTPError as error:
            status = error.code
        same(f"GET {path} without the key", status, due)
    return "two wrong keys, one right"


def check_drain(s, server):
    """SIGTERM while a stream is under way: it is finished."""
    whole = s.complete(temperature=0, logit_bias=no_end(s)).choices[0].text
    stream = s.complete(temperature=0, logit_bias=no_end(s), stream=True)
    chunks = iter(stream)
    text = next(chunks).choices[0].text
    server.terminate()
    end = None
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.text
            end = choice.finish_reason or end
    same("the stream that was under way", (text, end), (whole, "length"))
    same("exit code", server.stop(), 0)
    return f"{len(text)} characters after SIGTERM"


ANY = [
    check_models,
    check_tokenize,
    check_completion,
    check_completion_stream,
    check_several,
    check_stop,
    check_logprobs,
    check_logit_bias,
    check_routing,
    check_async,
    check_cancel,
    check_errors,
]
CHAT = [
    check_chat,
    check_chat_stream,
    check_responses,
    check_chat_logprobs,
    check_schema,
    check_json,
]
