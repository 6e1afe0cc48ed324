#!/usr/bin/env python3
"""`moe serve` against llama.cpp's llama-server on the same GGUF file with the same threads, in turn:
clients at once, one stream alone, and a long beginning that two requests share.

Each round starts ours and then the peer, the next round the other way round; both get the same
prompts, as ids, and no two prompts of a round begin alike, so that no cache helps. A reply is
greedy and has exactly --tokens tokens. Prints for each figure ours, theirs and the ratio, as medians
over the rounds; --json prints the rounds too. Run it on a quiet machine. No other package is needed.
  tools/peers/compare_serve.py --model m.gguf --text TEXT --bin build/release/moe --peer llama-server
"""

import argparse
import http.client
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

START_SECONDS = 600
# name, what it is, and whether more is better.
FIGURES = (
    ("tokens_per_second", "tokens/s, prompt and reply", True),
    ("reply_tokens_per_second", "reply tokens/s", True),
    ("first_token_median", "first token, median s", False),
    ("first_token_worst", "first token, last s", False),
    ("largest_pause", "largest pause of a stream, s", False),
    ("alone_tokens_per_second", "one stream alone, reply tokens/s", True),
    ("alone_first_token", "one stream alone, first token s", False),
    ("over_alone", "all at once over one stream, tokens/s", True),
    ("prefix_first", "long beginning, first token s", False),
    ("prefix_second", "the same beginning again, s", False),
    ("prefix_ratio", "again over first", False),
)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--text", required=True, help="plain text that prompts are cut from")
    parser.add_argument("--bin", default="build/release/moe")
    parser.add_argument("--peer", help="llama-server; without it ours runs alone")
    parser.add_argument("--only-peer", action="store_true", help="the peer alone")
    for name, value in (
        ("threads", 2),
        ("clients", 8),
        ("prompt", 300),
        ("tokens", 100),
        ("prefix", 2000),
        ("rounds", 3),
    ):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--ours-args", default="", help="more options of moe serve")
    parser.add_argument("--peer-args", default="--cache-ram 0", help="more of llama-server")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Server:
    """A server on the loopback, from its start to its end."""

    def __init__(self, name, args, log):
        self.name, self.log = name, log
        if name == "ours":
            command = [args.bin, "serve", args.model, "--port", "0"]
            command += ["--threads", str(args.threads), "--parallel", str(args.clients)]
            command += shlex.split(args.ours_args)
        else:
            port = free_port()
            # Room for every client's prompt and reply, and for the long beginning.
            room = max(args.prompt, args.prefix) + 2 * args.tokens + 64
            command = [args.peer, "-m", args.model, "--host", "127.0.0.1", "--port", str(port)]
            command += ["-t", str(args.threads), "-tb", str(args.threads), "-np", str(args.clients)]
            command += ["-c", str(room * args.clients), "--no-webui"]
            command += shlex.split(args.peer_args)
        self.command = command
        with open(log, "wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
        self.address = None if name == "ours" else ("127.0.0.1", port)
        self._wait()

    def _wait(self):
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            if self.address is None:
                found = re.search(r"listening on (http://\S+)\s", self.said())
                if found:
                    url = urllib.parse.urlsplit(found[1])
                    self.address = (url.hostname, url.port)
            if self.address is not None and self._healthy():
                return
            time.sleep(0.1)
        code = self.process.poll()
        self.stop()
        why = "is still not ready" if code is None else f"ended with status {code}"
        raise SystemExit(f"{shlex.join(self.command)} {why}:\n{self.said()[-2000:]}")

    def _healthy(self):
        try:
            return self.ask("GET", "/health")[0] == 200
        except OSError:
            return False

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection(*self.address, timeout=600)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
        finally:
            connection.close()
        try:
            return reply.status, json.loads(text)
        except ValueError:
            return reply.status, text

    def tokens(self, text):
        status, reply = self.ask("POST", "/tokenize", {"content": text, "add_special": False})
        if status != 200:
            raise SystemExit(f"{self.name}: /tokenize gave {status}: {reply}")
        return reply["tokens"]

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Stream:
    """One streamed reply and the times at which its chunks came."""

    def __init__(self, server, ids, tokens):
        self.server, self.ids, self.wanted = server, ids, tokens
        self.times, self.used, self.error = [], None, None
        self.connection = http.client.HTTPConnection(*server.address, timeout=600)
        self.connection.connect()

    def run(self):
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.connection.close()

    def _run(self):
        body = {
            "model": "any",
            "prompt": self.ids,
            "max_tokens": self.wanted,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self.start = time.monotonic()
        self.connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        reply = self.connection.getresponse()
        if reply.status != 200:
            raise ValueError(f"status {reply.status}: {reply.read()[:300]}")
        while line := reply.readline():
            if not line.startswith(b"data:"):
                continue
            now = time.monotonic()
            data = line[5:].strip()
            if data == b"[DONE]":
                break
            chunk = json.loads(data)
            if chunk.get("error"):
                raise ValueError(f"an error in the stream: {chunk['error']}")
            self.used = chunk.get("usage") or self.used
            # Chunks that only end the reply are no tokens.
            if any("text" in c and not c.get("finish_reason") for c in chunk.get("choices", [])):
                self.times.append(now)
        self.end = self.times[-1] if self.times else time.monotonic()
        if not self.used:
            raise ValueError("no usage at the end of the stream")
        if self.used["completion_tokens"] != self.wanted or not self.times:
            raise ValueError(f"{self.used} instead of {self.wanted} tokens")
        if self.used["prompt_tokens"] != len(self.ids):
            raise ValueError(f"{self.used} for a prompt of {len(self.ids)} tokens")

    @property
    def first(self):
        return self.times[0] - self.start

    @property
    def pause(self):
        return max((b - a for a, b in zip(self.times, self.times[1:])), default=0.0)


def at_once(streams):
    threads = [threading.Thread(target=stream.run) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream in streams:
        if stream.error:
            raise SystemExit(f"{stream.server.name}: {stream.error}")


def run_round(server, args, prompts, prefix):
    """All figures of one server with these prompts: the clients', one alone, a first for warmth."""
    at_once([Stream(server, prompts[-1], 8)])
    streams = [Stream(server, ids, args.tokens) for ids in prompts[: args.clients]]
    at_once(streams)
    wall = max(s.end for s in streams) - min(s.start for s in streams)
    replies = sum(s.used["completion_tokens"] for s in streams)
    read = sum(s.used["prompt_tokens"] for s in streams)
    figures = {
        "tokens_per_second": (read + replies) / wall,
        "reply_tokens_per_second": replies / wall,
        "first_token_median": statistics.median(s.first for s in streams),
        "first_token_worst": max(s.first for s in streams),
        "largest_pause": max(s.pause for s in streams),
    }
    alone = Stream(server, prompts[args.clients], args.tokens)
    at_once([alone])
    figures["alone_tokens_per_second"] = (args.tokens - 1) / (alone.end - alone.times[0])
    figures["alone_first_token"] = alone.first
    one = (alone.used["prompt_tokens"] + alone.used["completion_tokens"]) / (alone.end - alone.start)
    figures["over_alone"] = figures["tokens_per_second"] / one
    if prefix:
        firsts = []
        for ids in prefix:
            stream = Stream(server, ids, 4)
            at_once([stream])
            firsts.append(stream.first)
        figures["prefix_first"], figures["prefix_second"] = firsts
        figures["prefix_ratio"] = firsts[1] / firsts[0]
    return figures


class Prompts:
    """Pieces of the text's ids, each taken once."""

    def __init__(self, ids):
        self.ids, self.at, self.begun = ids, 0, set()

    def take(self, count):
        while True:
            piece = self.ids[self.at : self.at + count]
            if len(piece) < count:
                raise SystemExit(
                    f"--text is too short: {len(self.ids)} tokens, and more are needed"
                )
            self.at += 1 if piece[0] in self.begun else count
            if piece[0] not in self.begun:
                self.begun.add(piece[0])
                return piece

    def next_round(self):
        """Each round starts its servers anew, so beginnings may come again."""
        self.begun.clear()


def encode(server, args, needed):
    """Ids of the text's beginning, as many as are needed; both servers must agree on them."""
    size = 8 * needed + 4096
    with open(args.text, encoding="utf-8", errors="ignore") as file:
        text = file.read(size)
    ids = []
    for start in range(0, len(text), 60000):
        ids += server.tokens(text[start : start + 60000])
    return ids


def measure(args, work):
    names = [n for n, there in (("ours", not args.only_peer), ("peer", args.peer)) if there]
    count = args.clients + 2
    needed = args.rounds * (2 * count * args.prompt + 2 * args.prefix + 200)
    rounds = {name: [] for name in names}
    prompts, encoded = None, None
    for number in range(args.rounds):
        taken = None
        for name in names if number % 2 == 0 else names[::-1]:
            log = os.path.join(work, f"{name}-{number}.log")
            with Server(name, args, log) as server:
                if prompts is None:
                    encoded = encode(server, args, needed)
                    prompts = Prompts(encoded)
                elif number == 0 and encode(server, args, needed) != encoded:
                    print(
                        "the two encode the text differently; both get the first's ids",
                        file=sys.stderr,
                    )
                if taken is None:
                    prompts.next_round()
                    pieces = [prompts.take(args.prompt) for _ in range(count)]
                    prefix = None
                    if args.prefix:
                        shared = prompts.take(args.prefix)
                        prefix = [shared + prompts.take(16), shared + prompts.take(16)]
                    taken = pieces, prefix
                figures = run_round(server, args, *taken)
            rounds[name].append(figures)
            print(
                f"round {number + 1}, {name}: {figures['tokens_per_second']:.1f} tokens/s,"
                f" first token {figures['first_token_median']:.2f} s",
                file=sys.stderr,
            )
    return rounds


def summary(rounds):
    medians = {
        name: {
            figure: statistics.median(r[figure] for r in runs)
            for figure, _, _ in FIGURES
            if figure in runs[0]
        }
        for name, runs in rounds.items()
    }
    ratios = {}
    if len(medians) == 2:
        for figure, ours in medians["ours"].items():
            theirs = medians["peer"][figure]
            ratios[figure] = ours / theirs if theirs else None
    return medians, ratios


def table(medians, ratios):
    names = list(medians)
    print(f"{'':36}" + "".join(f"{name:>10}" for name in names) + ("     ratio" if ratios else ""))
    for figure, title, more in FIGURES:
        if figure not in medians[names[0]]:
            continue
        line = f"{title:36}" + "".join(f"{medians[name][figure]:10.3f}" for name in names)
        if ratios and ratios[figure] is not None:
            good = ratios[figure] >= 1 if more else ratios[figure] <= 1
            line += f"{ratios[figure]:10.3f}" + ("" if good else "  worse")
        print(line)


def main():
    args = arguments()
    if args.only_peer and not args.peer:
        raise SystemExit("--only-peer needs --peer")
    with tempfile.TemporaryDirectory() as work:
        rounds = measure(args, work)
    medians, ratios = summary(rounds)
    if args.json:
        print(json.dumps({"rounds": rounds, "medians": medians, "ratios": ratios}))
    else:
        table(medians, ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
