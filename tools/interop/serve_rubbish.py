"""Requests that a server must refuse: broken JSON and UTF-8, bodies too long, senders that stall,
wrong types and values for every field, and HTTP that is none."""

import json

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# Values that are no number of the kind or out of its range; None would be an unset field.
NUMBERS = {
    "max_tokens": [-1, 1.5, "9", [], {}, True],
    "temperature": [-1, "hot", [], {}, True],
    "top_p": [-0.5, 1.5, "x", [], {}, True],
    "top_k": [-5, 1.5, "x", [], {}, True],
    "min_p": [-0.5, 1.5, "x", [], {}, True],
    "repeat_penalty": [-1, "x", [], {}, True],
    "repetition_penalty": [-1, "x", [], {}, True],
    "seed": [1.5, "x", [], {}, True],
    "n": [0, -1, 17, 1.5, "x", [], {}, True],
}
OTHERS = {
    "stop": [5, {}, [5], ["a"] * 17, [[]], True],
    "logit_bias": ["x", [1], {"x": 1}, {"1": "x"}, {"-1": 1}, {"99999999999999999999": 1}, 5],
    "stream": ["yes", 2, [], {}],
    "stream_options": ["x", 5, [1], {"include_usage": "x"}],
    "response_format": ["x", 5, [], {"type": "yaml"}, {"type": 5}, {"type": "json_schema"}],
    "routing": ["x", 5, [], {}],
    "return_routed_experts": ["x", 5, [], {}],
    "guided_json": [{"type": "object"}, "x", 5, True],
    "stop_token_ids": [[1], "x", 5, {}, True],
    "replay": [
        "x",
        5,
        [],
        {},
        {"routed_experts": "%%%", "shape": [1, 1, 1]},
        {"routed_experts": "AAAA", "shape": [1 << 40, 1 << 40, 1 << 40]},
        {"routed_experts": "AAAAAA==", "shape": [-1, 1, 1]},
        {"routed_experts": "AAAAAA==", "shape": "x"},
        {"routed_experts": "/////w==", "shape": [1, 1, 1, 1]},
    ],
}
PROMPTS = [
    5,
    {},
    True,
    [-1],
    [1.5],
    [99999999],
    [1 << 70],
    ["x", 5],
    [["x"]],
    [[[1]]],
    "the model " * 300000,
]
MESSAGES = [
    "x",
    5,
    {},
    [],
    [5],
    ["x"],
    [{}],
    [{"role": 5, "content": "x"}],
    [{"content": "x"}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": [5]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
]
CHAT_ONLY = {
    "tools": ["x", 5, {}, [5], [{"type": "x"}], [{"type": "function"}]],
    "tool_choice": [5, "maybe", [], {"type": "function", "function": {"name": "unknown"}}],
    "top_logprobs": [-1, 21, 1.5, "x", []],
    "chat_template_kwargs": ["x", 5, []],
    "reasoning_effort": ["", 5, []],
    "parallel_tool_calls": ["x", 5, []],
    "functions": [[{"name": "f"}], "x", {}, True],
    "modalities": [["audio"], "audio", 5, {}],
    "thinking": ["x", 5, [], {}, {"type": "never"}, {"type": "enabled", "budget_tokens": "x"}],
    "enable_thinking": ["x", 5, [], {}],
    "max_completion_tokens": [-1, 1.5, "x", []],
}
TEXT_ONLY = {
    "logprobs": [-1, 21, 1.5, "x", []],
    "echo": ["x", 5, []],
    "suffix": ["end", 5],
    "best_of": [2, 0, -1, "x", []],
}


class Item:
    """Parts to send, each with the seconds to wait after it, and what may come back."""

    def __init__(self, name, parts, statuses=(), field=None, may_close=False):
        self.name = name
        self.parts = [p if isinstance(p, tuple) else (p, 0) for p in parts]
        self.statuses, self.field, self.may_close = statuses, field, may_close


class Rubbish:
    """Draws items; `one` gives the next for a seeded generator."""

    def __init__(self, host, key, max_body, stall, chats):
        self.host, self.key, self.max_body, self.stall = host, key, max_body, stall
        self.paths = [COMPLETIONS, CHAT] if chats else [COMPLETIONS]
        self.fields = self._fields()

    def _fields(self):
        found = []
        for path in self.paths:
            own = CHAT_ONLY | {"messages": MESSAGES} if path == CHAT else None
            own = own or TEXT_ONLY | {"prompt": PROMPTS}
            for field, values in (NUMBERS | OTHERS | own).items():
                found += [(path, field, value) for value in values]
        return found

    def _head(self, path, length, *more, method="POST"):
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}", *more]
        lines += ["Content-Type: application/json"]
        if length is not None:
            lines.append(f"Content-Length: {length}")
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def _post(self, path, data):
        return self._head(path, len(data)) + data

    def _good(self, path):
        body = {"model": "any", "max_tokens": 4, "temperature": 0}
        if path == CHAT:
            return body | {"messages": [{"role": "user", "content": "Hello!"}]}
        return body | {"prompt": "the model"}

    def heavy(self, rng):
        """What takes a server the most memory: a prompt and a body that are too long."""
        if rng.random() < 0.5:
            return self.huge(rng)
        body = self._good(COMPLETIONS) | {"prompt": PROMPTS[-1]}
        data = json.dumps(body).encode()
        return Item("a prompt of 3 MB", [self._post(COMPLETIONS, data)], (400, 413, 422))

    def one(self, rng):
        draws = (self.field, self.field, self.json, self.utf8, self.huge, self.slow, self.http)
        return rng.choice(draws)(rng)

    def field(self, rng):
        path, field, value = rng.choice(self.fields)
        body = self._good(path) | {field: value}
        if field == "tool_choice":
            body["tools"] = [{"type": "function", "function": {"name": "known"}}]
        if field == "top_logprobs":
            body["logprobs"] = True
        if field == "stream_options":
            body["stream"] = True
        told = json.dumps(value)[:60]
        # Too long a prompt may be told as a body or a context that is too small.
        names = None if isinstance(value, str) and len(value) > 1000 else field
        if field == "max_completion_tokens":
            names = "max_"
        data = json.dumps(body).encode()
        return Item(f"{path} {field}={told}", [self._post(path, data)], (400, 413, 422), names)

    def json(self, rng):
        path = rng.choice(self.paths)
        whole = json.dumps(self._good(path)).encode()
        name, data = rng.choice(
            [
                ("cut JSON", whole[: rng.randrange(1, len(whole) - 1)]),
                ("an empty body", b""),
                ("a comma too many", whole[:-1] + b",}"),
                ("JSON twice", whole + whole),
                ("an array", b"[" + whole + b"]"),
                ("a number", b"12"),
                ("null", b"null"),
                ("a string", b'"prompt"'),
                ("single quotes", whole.replace(b'"', b"'")),
                ("NaN", whole.replace(b'"max_tokens": 4', b'"max_tokens": NaN')),
                ("a huge number", whole.replace(b'"temperature": 0', b'"temperature": 1e999')),
                ("deep arrays", b"[" * 100000),
                ("deep objects", b'{"prompt":' * 50000),
                ("deep in a field", whole[:-1] + b', "x": ' + b"[" * 9999 + b"]" * 9999 + b"}"),
                ("bytes", bytes(rng.randrange(256) for _ in range(rng.randrange(1, 300)))),
                ("a control character", whole.replace(b"model", b"mo\x01del")),
            ]
        )
        return Item(f"{path} {name}", [self._post(path, data)], (400, 413, 422))

    def utf8(self, rng):
        path = rng.choice(self.paths)
        whole = json.dumps(self._good(path)).encode()
        bad = rng.choice(
            [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80"]
        )
        place = rng.choice([b'"any"', b'"prompt"', b'"the model"', b'"Hello!"', b'"max_tokens"'])
        if place not in whole:
            place = b'"any"'
        data = whole.replace(place, place[:-1] + bad + b'"')
        return Item(f"{path} wrong UTF-8 {bad!r}", [self._post(path, data)], (400, 422))

    def huge(self, rng):
        path = rng.choice(self.paths)
        long = self.max_body + rng.randrange(1, 4096)
        kind = rng.randrange(5)
        if kind == 0:
            head = self._head(path, long)
            parts = [head] + [b" " * (1 << 20)] * (long >> 20) + [b" " * (long & 0xFFFFF)]
            # It may be refused before all of it is sent, and the rest meets a closed socket.
            return Item("a body too long", parts, (413,), may_close=True)
        if kind == 1:
            return Item("a length of 10^12", [self._head(path, 10**12)], (413, 400))
        if kind == 2:
            length = rng.choice(["-1", "x", "0x10", "1 1", "99999999999999999999999", "1,2"])
            return Item(f"length {length}", [self._head(path, length), b"{}"], (400, 413))
        if kind == 3:
            piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
            head = self._head(path, None, "Transfer-Encoding: chunked")
            parts = [head] + [piece] * ((self.max_body >> 20) + 2) + [b"0\r\n\r\n"]
            return Item("chunks too long", parts, (413, 400), may_close=True)
        head = self._head(path, 2, "X-Long: " + "x" * (1 << 20))
        return Item("a header of 1 MiB", [head + b"{}"], (400, 413, 431), may_close=True)

    def slow(self, rng):
        path = rng.choice(self.paths)
        data = json.dumps(self._good(path)).encode()
        whole = self._post(path, data)
        cut = rng.randrange(1, len(whole) - 1)
        kind = rng.randrange(3)
        if kind == 0:
            parts = [(whole[:cut], self.stall)]
        elif kind == 1:
            step = self.stall / 20
            parts = [(whole[i : i + 1], step) for i in range(min(20, len(whole) - 1))]
        else:
            parts = [(self._head(path, len(data)), self.stall)]
        return Item("a sender that stalls", parts, (408, 400), may_close=True)

    def http(self, rng):
        good = json.dumps(self._good(COMPLETIONS)).encode()
        both = self._head(COMPLETIONS, len(good), "Transfer-Encoding: chunked") + good
        chunk = self._head(COMPLETIONS, None, "Transfer-Encoding: chunked")
        gzip = self._head(COMPLETIONS, None, "Transfer-Encoding: gzip, chunked")
        name, data, statuses, may_close = rng.choice(
            [
                ("an unknown path", self._post("/v1/nothing", good), (404,), False),
                ("DELETE", self._head(COMPLETIONS, 0, method="DELETE"), (404, 405, 501), False),
                ("GET of completions", self._head(COMPLETIONS, 0, method="GET"), (404, 405), False),
                ("bytes", bytes(rng.randrange(256) for _ in range(200)) + b"\r\n\r\n", (), True),
                ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 200, (), True),
                ("HTTP/9.9", b"GET /health HTTP/9.9\r\n\r\n", (), True),
                ("an unfinished line", b"POST /v1/completions", (), True),
                ("both lengths", both, (400,), True),
                ("a wrong chunk size", chunk + b"zz\r\n{}\r\n0\r\n\r\n", (400,), True),
                ("a huge chunk size", chunk + b"ffffffffffffffffff\r\n", (400, 413), True),
                ("an unknown encoding", gzip + b"0\r\n\r\n", (400, 501), True),
                ("a path up", self._post("/../../etc/passwd", b"{}"), (400, 404, 405), True),
                ("a long path", self._post("/" + "x" * 100000, b"{}"), (), True),
                ("a detour", self._post("/detokenize", b'{"tokens": [99999999]}'), (400,), False),
                ("a tokenize", self._post("/tokenize", b'{"content": 5}'), (400,), False),
            ]
        )
        return Item(name, [data], statuses, may_close=may_close)
