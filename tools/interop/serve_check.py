#!/usr/bin/env python3
"""Runs clients that nobody here wrote against `moe serve`: OpenAI's own Python client
(serve_openai.py) and lm_eval (serve_lm_eval.py), whose scores through the server must be those of
its transformers backend on the same weights.

--model FOLDER_OR_GGUF ...   each is served on a free port of the loopback and ended with SIGTERM,
which must give the exit code 0. A folder with a chat template gets the checks of dialogues too, and
a copy of it with a template that takes tools those of tools; a GGUF file those of OpenAI's client
alone.
--only WORD ...              only the checks whose name has one of these words
--url URL                    a server that runs already; then no process is started
Nothing beyond the loopback is reached: a socket that would is refused.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import sys
import time
import traceback

for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ[name] = "1"
for name in ("TQDM_DISABLE", "HF_DATASETS_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_PROGRESS_BARS"):
    os.environ[name] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
    os.environ.pop(name, None)

KEY = "a-key-of-these-checks"
# A template in which tools are told to the model, and calls and their results stand.
TOOLS_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\\nTools:\\n' }}{% for tool in tools %}"
    "{{ tool | tojson + '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.content %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}"
    "{{ '<tool_call>\\n' + call.function.name + '\\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def only_loopback():
    """Refuses connections that leave this machine."""
    connect = socket.socket.connect

    def guarded(self, address):
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"these checks stay on the loopback; refused: {address[0]}")
        return connect(self, address)

    socket.socket.connect = guarded


class Checks:
    """Runs checks one by one; a failed one is told and the next goes on."""

    def __init__(self, only):
        self.only = only
        self.passed, self.failed = 0, []

    def run(self, title, function, *arguments):
        if self.only and not any(word in title for word in self.only):
            return
        start = time.monotonic()
        try:
            said = function(*arguments)
        except Exception as error:  # noqa: BLE001 - of whatever kind, the next check goes on
            self.failed.append(title)
            if isinstance(error, AssertionError):
                told = str(error)
            else:
                told = f"{type(error).__name__}: {error}"
            at = traceback.extract_tb(error.__traceback__)
            lines = [
                f"{os.path.basename(f.filename)}:{f.lineno}" for f in at if "serve_" in f.filename
            ]
            print(f"FAIL  {title}: {told} ({' '.join(lines[1:])})", flush=True)
            return
        self.passed += 1
        print(f"ok    {title}: {said} ({time.monotonic() - start:.1f} s)", flush=True)


def folder_for_transformers(model, work):
    """The model's folder, or a copy that says how transformers shall read its tokenizer."""
    if not os.path.isdir(model):
        return None
    if os.path.exists(os.path.join(model, "tokenizer_config.json")):
        return model
    copy = os.path.join(work, "folder-" + os.path.basename(model))
    shutil.copytree(model, copy, dirs_exist_ok=True)
    # lm_eval wants a token that ends texts; the byte 0xff stands in none.
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "\u00ff"}
    with open(os.path.join(copy, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return copy


def folder_with_tools(model, work):
    copy = os.path.join(work, "tools-" + os.path.basename(model))
    shutil.copytree(model, copy, dirs_exist_ok=True)
    path = os.path.join(copy, "tokenizer_config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["chat_template"] = TOOLS_TEMPLATE
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return copy


def context_of(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return json.load(file)["max_position_embeddings"]


@contextlib.contextmanager
def without_tiles():
    """With AMX quantised weights are multiplied otherwise for many tokens than for few, so that what
    a server computes at once may be seen in a reply; docs/server.md says what prevents it."""
    if platform.machine() != "x86_64" or "MOE_MAX_ISA" in os.environ:
        yield
        return
    os.environ["MOE_MAX_ISA"] = "avx512"
    try:
        yield
    finally:
        del os.environ["MOE_MAX_ISA"]


def check_model(checks, model, args, start):
    import serve_lm_eval
    import serve_openai

    name = os.path.basename(model.rstrip("/"))
    folder = folder_for_transformers(model, args.work)
    quantised = not os.path.isdir(model)
    with start(model) as server:
        session = serve_openai.Session(server.url, folder)
        listed = serve_openai.ANY + (serve_openai.CHAT if session.chats else [])
        if quantised and not args.url:
            listed = [check for check in listed if check is not serve_openai.check_async]
        for check in listed:
            checks.run(f"{name} {check.__name__[6:]}", check, session)
        if folder:
            tasks = os.path.join(args.work, "tasks")
            serve_lm_eval.write_tasks(tasks)
            scored = [serve_lm_eval.check_scores, serve_lm_eval.check_replies]
            if session.chats:
                scored.append(serve_lm_eval.check_chat_replies)
            for check in scored:
                title = f"{name} lm_eval {check.__name__[6:]}"
                checks.run(title, check, server.url, folder, tasks, context_of(folder))
        assert server.healthy(), "the server does not say that it is well"
        chats = session.chats
        if server.process:
            checks.run(f"{name} drain", serve_openai.check_drain, session, server)
    if quantised and not args.url:
        with without_tiles(), start(model) as server:
            session = serve_openai.Session(server.url, folder)
            checks.run(f"{name} async", serve_openai.check_async, session)
    if args.url or not chats or not folder:
        return
    tooled = folder_with_tools(model, args.work)
    with start(tooled, "--api-key", KEY, "--api-key", KEY + "2") as server:
        checks.run(f"{name} key", serve_openai.check_key, session, server.url, KEY)
    with start(tooled) as server:
        session = serve_openai.Session(server.url, tooled)
        checks.run(f"{name} tools", serve_openai.check_tools, session)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", default="build/release/moe")
    parser.add_argument("--work", required=True, help="a folder for copies, tasks and logs")
    parser.add_argument("--model", nargs="+", required=True, metavar="FOLDER_OR_GGUF")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--url")
    args = parser.parse_args()
    args.work = os.path.abspath(args.work)
    os.makedirs(args.work, exist_ok=True)
    os.environ["HF_HOME"] = os.path.join(args.work, "huggingface")
    only_loopback()
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from serve_process import Running, Serve

    checks = Checks(args.only)
    servers = 0

    def start(model, *options):
        nonlocal servers
        servers += 1
        if args.url:
            return Running(args.url)
        log = os.path.join(args.work, f"server-{servers}.log")
        return Serve(os.path.abspath(args.bin), model, log, *options)

    for model in args.model:
        check_model(checks, os.path.abspath(model), args, start)
    versions = [f"{p} {importlib.metadata.version(p)}" for p in ("openai", "lm_eval")]
    print(
        f"{checks.passed} checks passed, {len(checks.failed)} failed"
        f" with {' and '.join(versions)} on {len(args.model)} models"
    )
    if checks.failed:
        print("failed: " + ", ".join(checks.failed))
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
