#!/usr/bin/env python3
"""Many clients at once against a running `moe serve`, some of whom leave and some send rubbish.

First some twenty greedy and seeded requests are asked one at a time. Then each round sends --requests
over --connections connections: a tenth is rubbish (serve_rubbish.py) and must be refused with a 4xx
in OpenAI's form, a third leaves at a random moment, and every other reply must have exactly the text
and ids it had alone. After each round the server must be well, and from the second on its resident
size within --growth of the idle size after the first, its open files as many as then. Exit code 0
where all this holds; the same --seed sends the same requests. No other package is needed.
  moe serve m --port 9000 & serve_load.py --url http://127.0.0.1:9000 --pid $!
"""

import argparse
import asyncio
import collections
import json
import os
import random
import socket
import struct
import sys
import time
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serve_rubbish import Rubbish

WORDS = "the a small large expert router token learns routes reads writes and then of model".split()
BUSY = (429, 503)
REPLY_SECONDS = 300
REFUSAL_SECONDS = 60
HEAVY = 16


class Broken(Exception):
    """The server did what it must not."""


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--pid", type=int, help="the server's process, whose size is watched")
    for name, value in (("requests", 2000), ("connections", 200), ("rounds", 3), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--cancelled", type=float, default=1 / 3)
    parser.add_argument("--rubbish", type=float, default=1 / 10)
    parser.add_argument("--tokens", type=int, default=32, help="longest reply")
    parser.add_argument("--prompt", type=int, default=120, help="longest prompt, in words")
    parser.add_argument("--growth", type=float, default=0.05)
    parser.add_argument("--stall", type=float, default=5, help="seconds that slow senders wait")
    parser.add_argument("--max-body", type=int, default=8 << 20, help="as the server has it")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for everything")
    parser.add_argument("--key", help="the server's --api-key")
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="for other servers: texts may differ, refusals need no form and no routing is asked",
    )
    return parser.parse_args()


class Connection:
    """HTTP/1.1 over one socket, kept open between requests."""

    def __init__(self, host, port):
        self.host, self.port = host, port
        self.reader = self.writer = None

    async def open(self):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(
                self.host, self.port, limit=1 << 24
            )

    def close(self, reset=False):
        if self.writer is None:
            return
        if reset:
            linger = struct.pack("ii", 1, 0)
            raw = self.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort() if reset else self.writer.close()
        self.reader = self.writer = None

    async def head(self):
        """Status and headers of the reply."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        if not lines[0].startswith("HTTP/1."):
            raise Broken(f"no HTTP reply: {ascii(lines[0])[:100]}")
        pairs = (line.split(":", 1) for line in lines[1:] if ":" in line)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        return int(lines[0].split(" ")[1]), headers

    async def pieces(self, headers):
        """The body as it comes."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while True:
                size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
                data = await self.reader.readexactly(size + 2)
                if size == 0:
                    break
                yield data[:-2]
        elif "content-length" in headers:
            yield await self.reader.readexactly(int(headers["content-length"]))
        else:
            yield await self.reader.read()
            headers["connection"] = "close"
        if headers.get("connection", "").lower() == "close":
            self.close()

    async def body(self, headers):
        return b"".join([piece async for piece in self.pieces(headers)])


def request_bytes(path, body, host, key=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def valid_requests(args, chats, rng):
    """Path and body of each; greedy ones have temperature 0, the others a seed."""
    found = []
    shared = " ".join(rng.choice(WORDS) for _ in range(args.prompt // 2))
    for number in range(20):
        words = rng.randrange(2, max(3, args.prompt // 2))
        text = " ".join(rng.choice(WORDS) for _ in range(words))
        if number % 4 == 3:  # the same beginning for several
            text = shared + " " + text
        body = {"model": "any", "max_tokens": rng.randrange(4, args.tokens + 1)}
        if number % 2:
            body |= {"temperature": 1, "seed": number, "top_p": 0.95 if number % 3 else 1}
        else:
            body["temperature"] = 0
        chat = chats and number % 3 == 0
        body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        if number % 5 == 4:
            body["n"] = 2
        if number % 5 == 1:
            body |= {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
        if number % 5 != 3 and not args.lenient:
            body["routing"] = True
        if number % 7 == 6:
            body["stop"] = ["\n", "the"]
        path = "/v1/chat/completions" if chat else "/v1/completions"
        found.append((path, body))
    return found


def streamed(body):
    return body | {"stream": True, "stream_options": {"include_usage": True}}


class Answer:
    """What is compared of a reply: per choice the text, end, tokens and ids, and the usage."""

    def __init__(self):
        self.choices, self.usage = {}, None

    def add(self, chunk):
        if "error" in chunk:
            raise Broken(f"an error in a reply: {chunk['error']}")
        self.usage = chunk.get("usage") or self.usage
        for part in chunk["choices"]:
            said = part.get("message") or part.get("delta") or part
            choice = self.choices.setdefault(
                part.get("index", 0), {"text": "", "end": None, "tokens": [], "ids": []}
            )
            choice["text"] += said.get("content") or said.get("text") or ""
            choice["end"] = part.get("finish_reason") or choice["end"]
            logs = part.get("logprobs") or {}
            choice["tokens"] += [entry["token"] for entry in logs.get("content") or []]
            choice["tokens"] += logs.get("tokens") or []
            routing = part.get("routing") or {}
            choice["ids"] += [(t["id"], t.get("experts")) for t in routing.get("tokens", [])]

    def told(self):
        usage = self.usage or {}
        counts = tuple(usage.get(k) for k in ("prompt_tokens", "completion_tokens"))
        return json.dumps([sorted(self.choices.items()), counts])


async def read_answer(connection):
    """Status and, of a 200, its Answer; of others the body."""
    status, headers = await connection.head()
    if status != 200:
        return status, await connection.body(headers), headers
    answer = Answer()
    if headers.get("content-type", "").startswith("text/event-stream"):
        rest, ended = b"", False
        async for piece in connection.pieces(headers):
            rest += piece
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if line.startswith(b"data:") and line[5:].strip() == b"[DONE]":
                    ended = True
                elif line.startswith(b"data:"):
                    answer.add(json.loads(line[5:]))
        if not ended:
            raise Broken("a stream without [DONE]")
    else:
        answer.add(json.loads(await connection.body(headers)))
    return status, answer, headers


class Load:
    def __init__(self, args):
        self.args = args
        where = urllib.parse.urlsplit(args.url)
        self.host, self.port = where.hostname, where.port or 80
        self.name = f"{self.host}:{self.port}"
        self.counts = collections.Counter()
        self.broken = []
        self.alone = []
        self.usual = 0.1

    def note(self, what):
        if len(self.broken) < 1000:
            self.broken.append(what)
        if len(self.broken) <= 10:
            print("BROKEN " + what[:600], flush=True)

    async def ask(self, connection, path, body):
        """One valid request and its answer; a busy server is asked again when it says."""
        for _ in range(200):
            again = connection.writer is not None
            await connection.open()
            try:
                connection.writer.write(request_bytes(path, body, self.name, self.args.key))
                await connection.writer.drain()
                status, answer, headers = await read_answer(connection)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                connection.close()
                if again and not getattr(error, "partial", b""):
                    continue  # a kept connection may have ended in the meantime
                raise Broken(f"the connection broke: {type(error).__name__} {error}") from None
            if status not in BUSY:
                break
            self.counts["busy"] += 1
            await asyncio.sleep(min(5.0, float(headers.get("retry-after") or 1)))
        if status != 200:
            raise Broken(f"status {status} to a valid request: {ascii(answer)[:300]}")
        return answer

    async def references(self):
        self.alone.clear()
        start = time.monotonic()
        for path, body in self.valid:
            connection = Connection(self.host, self.port)
            whole = (await self.ask(connection, path, body)).told()
            parts = (await self.ask(connection, path, streamed(body))).told()
            connection.close()
            if whole != parts and not self.args.lenient:
                self.note(f"alone: {body}: {whole} but streamed {parts}")
            self.alone.append((whole, parts))
        self.usual = max(0.005, (time.monotonic() - start) / (2 * len(self.valid)))

    async def valid_one(self, connection, rng):
        number = rng.randrange(len(self.valid))
        path, body = self.valid[number]
        stream = rng.random() < 0.5
        answer = await self.ask(connection, path, streamed(body) if stream else body)
        told, due = answer.told(), self.alone[number][stream]
        if told != due:
            self.counts["different"] += 1
            if not self.args.lenient:
                raise Broken(f"request {number} {'streamed ' * stream}has {told}, alone {due}")
        self.counts["answered"] += 1

    async def cancelled_one(self, rng):
        """Leaves while it sends, while it waits or between two chunks, half of the time with RST."""
        path, body = rng.choice(self.valid)
        body = streamed(body) if rng.random() < 0.6 else body
        data = request_bytes(path, body, self.name, self.args.key)
        connection = Connection(self.host, self.port)
        await connection.open()
        try:
            moment = rng.randrange(5)
            if moment == 0:
                data = data[: rng.randrange(len(data))]
            connection.writer.write(data)
            await connection.writer.drain()
            if moment in (1, 2):
                await asyncio.sleep(rng.random() * 3 * self.usual)
            elif moment == 3:
                await asyncio.wait_for(connection.reader.read(1), 20 * self.usual + 1)
            elif moment == 4:
                for _ in range(rng.randrange(1, 8)):
                    if not await asyncio.wait_for(connection.reader.read(400), 20 * self.usual + 1):
                        break
        except (TimeoutError, ConnectionError):
            pass
        finally:
            connection.close(reset=rng.random() < 0.5)
        self.counts["left"] += 1

    async def rubbish_one(self, rng, heavy=False):
        item = self.rubbish.heavy(rng) if heavy else self.rubbish.one(rng)
        connection = Connection(self.host, self.port)
        await connection.open()
        try:
            status, body = await asyncio.wait_for(
                self.send_rubbish(connection, item), 2 * REFUSAL_SECONDS
            )
        except (ConnectionError, asyncio.IncompleteReadError):
            status, body = None, b""
        except TimeoutError:
            status, body = "silence", b""
        finally:
            connection.close()
        if item.may_close and status in (None, "silence"):
            self.counts["rubbish dropped"] += 1
            return
        if self.args.lenient:
            self.counts[f"rubbish {status}"] += 1
            return
        if not isinstance(status, int) or not 400 <= status < 500:
            raise Broken(f"{item.name}: status {status}: {ascii(body)[:200]}")
        if item.statuses and status not in item.statuses:
            raise Broken(f"{item.name}: status {status}, not {item.statuses}: {ascii(body)[:200]}")
        check_error(item, body)
        self.counts["rubbish refused"] += 1

    async def send_rubbish(self, connection, item):
        for part, pause in item.parts:
            connection.writer.write(part)
            try:
                await connection.writer.drain()
            except ConnectionError:
                break  # refused before all was sent; the reply may be there
            await asyncio.sleep(pause)
        short = item.may_close or self.args.lenient
        wait = self.args.stall if short else REFUSAL_SECONDS
        status, headers = await asyncio.wait_for(connection.head(), wait)
        return status, await asyncio.wait_for(connection.body(headers), wait)

    async def worker(self, jobs, number):
        connection = Connection(self.host, self.port)
        for kind, seed in jobs:
            rng = random.Random(seed)
            try:
                if kind == "valid":
                    await asyncio.wait_for(self.valid_one(connection, rng), REPLY_SECONDS)
                elif kind == "cancelled":
                    await self.cancelled_one(rng)
                else:
                    await self.rubbish_one(rng, kind == "heavy")
            except Broken as error:
                self.note(f"{kind}: {error}")
                connection.close()
            except Exception as error:  # noqa: BLE001 - of whatever kind, it is one broken request
                self.note(f"{kind}: {type(error).__name__}: {error}")
                connection.close()
        connection.close()

    async def round(self, number):
        rng = random.Random(f"{self.args.seed} {number}")
        jobs = []
        for place in range(self.args.requests):
            drawn = rng.random()
            # At the start of each round alike, so that the size after it can be compared.
            if place < HEAVY and self.args.rubbish > 0:
                kind = "heavy"
            elif drawn < self.args.rubbish:
                kind = "rubbish"
            elif drawn < self.args.rubbish + self.args.cancelled:
                kind = "cancelled"
            else:
                kind = "valid"
            jobs.append((kind, f"{self.args.seed} {number} {place}"))
        queue = iter(jobs)  # shared: each worker takes the next
        workers = [self.worker(queue, n) for n in range(self.args.connections)]
        await asyncio.gather(*workers)

    async def healthy(self):
        connection = Connection(self.host, self.port)
        try:
            await connection.open()
            connection.writer.write(
                f"GET /health HTTP/1.1\r\nHost: {self.name}\r\nConnection: close\r\n\r\n".encode()
            )
            status, headers = await asyncio.wait_for(connection.head(), 30)
            await connection.body(headers)
            return status == 200
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return False
        finally:
            connection.close()

    async def get(self, path):
        connection = Connection(self.host, self.port)
        await connection.open()
        key = f"Authorization: Bearer {self.args.key}\r\n" if self.args.key else ""
        text = f"GET {path} HTTP/1.1\r\nHost: {self.name}\r\n{key}Connection: close\r\n\r\n"
        connection.writer.write(text.encode())
        status, headers = await connection.head()
        body = await connection.body(headers)
        connection.close()
        return json.loads(body) if status == 200 else {}

    async def settled(self):
        """Size, open files and threads of the server once they stay for a moment."""
        if not self.args.pid:
            return None
        last = None
        for _ in range(20):
            await asyncio.sleep(1)
            now = of_process(self.args.pid)
            if last and abs(now["kib"] - last["kib"]) < 64 and now["files"] == last["files"]:
                break
            last = now
        return now

    async def run(self):
        args = self.args
        chats = args.lenient or bool((await self.get("/tokenizer_info")).get("chat_template"))
        self.valid = valid_requests(args, chats, random.Random(args.seed))
        self.rubbish = Rubbish(self.name, args.key, args.max_body, args.stall, chats)
        await self.references()
        before = list(self.alone)
        idle = None
        for number in range(args.rounds):
            start, wrong = time.monotonic(), len(self.broken)
            self.counts.clear()
            await self.round(number)
            if not await self.healthy():
                self.note(f"round {number + 1}: the server does not say that it is well")
                break
            now = await self.settled()
            said = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
            seconds = time.monotonic() - start
            print(f"round {number + 1}: {said}; {len(self.broken) - wrong} broken; {seconds:.0f} s")
            if now:
                print(f"  {now['kib']} KiB, {now['files']} files, {now['threads']} threads")
                idle = idle or now
                self.compare(number, now, idle)
        if await self.healthy():
            await self.references()
            if self.alone != before:
                self.note("the answers alone are not those of the start")

    def compare(self, number, now, idle):
        grown = now["kib"] / idle["kib"] - 1
        if abs(grown) > self.args.growth and grown > 0:
            self.note(f"round {number + 1}: {grown:+.1%} of resident size since the first round")
        if now["files"] > idle["files"] + 2:
            self.note(f"round {number + 1}: {now['files']} open files, {idle['files']} before")


def of_process(pid):
    fields = {}
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            fields[name] = value.split()[0] if value.split() else ""
    return {
        "kib": int(fields["VmRSS"]),
        "threads": int(fields["Threads"]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
    }


def check_error(item, body):
    try:
        error = json.loads(body)["error"]
        missing = [k for k in ("message", "type", "param", "code") if k not in error]
    except (ValueError, KeyError, TypeError):
        raise Broken(f"{item.name}: the refusal is {ascii(body)[:200]}") from None
    if missing or not error["message"]:
        raise Broken(f"{item.name}: the error has no {missing or 'message'}: {error}")
    if item.field and item.field not in f"{error['param']} {error['message']}":
        raise Broken(f"{item.name}: neither param nor message names {item.field}: {error}")


def main():
    args = arguments()
    load = Load(args)
    try:
        asyncio.run(asyncio.wait_for(load.run(), args.limit))
    except TimeoutError:
        load.note(f"not done within {args.limit} s")
    except (Broken, OSError) as error:
        load.note(f"{type(error).__name__}: {error}")
    total = args.rounds * args.requests
    print(f"{total} requests in {args.rounds} rounds, {len(load.broken)} broken")
    return 1 if load.broken else 0


if __name__ == "__main__":
    sys.exit(main())
