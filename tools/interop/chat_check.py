#!/usr/bin/env python3
"""Compares the prompts that `moe chat` makes of dialogues with those of transformers'
apply_chat_template, by the template in the model's folder.

--write DATA        200 dialogues to train on, the same each time
--bin MOE --model FOLDER     talks with the model 20 times and compares text and ids
--templates WORK             the same for the templates of tools/golden/chat_templates.py, put
into a copy of the model below WORK
--masks WORK --data DATA     what of DATA's dialogues is learned from, by a template that says so
with {% generation %}: ids and mask of `moe tokenize` are those of return_assistant_tokens_mask
"""

import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import sys

import transformers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
from chat_templates import TEMPLATES  # noqa: E402

DIALOGUES = 20
# A reply begins and ends at a mark, so no token is part of it by half.
GENERATION = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_end|>' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
    "{{ '<|im_start|>assistant<|im_end|>' if add_generation_prompt }}"
)
SAYINGS = [
    "Hello!",
    " what is  2 + 2? ",
    "Größe, naïve, 中文 and 😀",
    "{{ messages }} {% if x %}",
    "a 'quoted' \"text\" \\n \\",
    "<|endof|> <im_start>",
    "\ttabs\t",
    "l'été",
    "//a path/with/slashes",
    "x" * 50,
    "<|im_start",
    "None",
    "true",
    "1\u20282",
    "\u00a0x\u3000",
]
SYSTEM = ["", "Be brief.", "Two\nlines\n", " {{ system }} ", "é"]


def write(path):
    rng = random.Random(4)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(200):
            messages = (
                [{"role": "system", "content": rng.choice(SYSTEM[1:])}]
                if rng.random() < 0.5
                else []
            )
            for _ in range(rng.randrange(1, 4)):
                messages += [
                    {"role": "user", "content": rng.choice(SAYINGS)},
                    {"role": "assistant", "content": rng.choice(SAYINGS)},
                ]
            file.write(json.dumps({"messages": messages}, ensure_ascii=rng.random() < 0.5) + "\n")


def talk(binary, folder, system, sayings, seed):
    words = [
        binary,
        "chat",
        folder,
        "--json",
        "-n",
        "12",
        "--temperature",
        "2",
        "--top-k",
        "0",
        "--seed",
        str(seed),
    ] + (["--system", system] if system else [])
    lines = "".join(("/" + text if text.startswith("/") else text) + "\n" for text in sayings)
    run = subprocess.run(words, input=lines.encode(), capture_output=True)
    if run.returncode != 0 or run.stderr.count(b"not trained on dialogues"):
        raise SystemExit(run.stderr.decode())
    return [
        json.loads(line) for line in run.stdout.decode().split("\n") if line
    ]  # U+2028 ends no line here


def compare(binary, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rng = random.Random(5)
    prompts, size = 0, 0
    for seed in range(DIALOGUES):
        system, sayings = rng.choice(SYSTEM), rng.sample(SAYINGS, rng.randrange(1, 4))
        replies = talk(binary, folder, system, sayings, seed)
        if len(replies) != len(sayings):
            raise SystemExit(f"{len(replies)} replies to {len(sayings)} messages")
        messages = [{"role": "system", "content": system}] if system else []
        for said, reply in zip(sayings, replies):
            messages.append({"role": "user", "content": said})
            theirs = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            if reply["let_go"] or theirs != reply["prompt"]:
                raise SystemExit(
                    f"dialogue {seed}: {ascii(reply['prompt'])} against {ascii(theirs)} of transformers"
                )
            ids = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=True
            )["input_ids"]
            if len(ids) != reply["prompt_tokens"]:
                raise SystemExit(
                    f"dialogue {seed}: {reply['prompt_tokens']} tokens against {len(ids)} of transformers"
                )
            messages.append({"role": "assistant", "content": reply["text"]})
            prompts += 1
            size += len(theirs.encode())
    print(
        f"{prompts} prompts of {DIALOGUES} dialogues, {size} bytes, equal those of transformers {transformers.__version__}"
    )


def compare_templates(binary, folder, work):
    for family, template in TEMPLATES.items():
        copy = os.path.join(work, family)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
            config = json.load(file)
        config.update(chat_template=template, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
        with open(os.path.join(copy, "tokenizer_config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        print(f"{family}: ", end="")
        compare(binary, copy)


def shard_documents(folder):
    """Of each document of a folder that `moe tokenize` wrote (src/text/shards.h) in one shard: ids,
    and for each whether it is learned from."""
    with open(os.path.join(folder, "tokens.json"), encoding="utf-8") as file:
        [shard] = json.load(file)["shards"]
    with open(os.path.join(folder, shard["file"]), "rb") as file:
        data = file.read()
    width, tokens, ends, spans = struct.unpack("<4Q", data[-56:-24])
    form = {1: "B", 2: "H", 4: "I"}[width]
    ids = struct.unpack(f"<{tokens}{form}", data[: tokens * width])
    at = -(-tokens * width // 8) * 8
    numbers = struct.unpack(f"<{ends + 2 * spans}I", data[at : at + 4 * (ends + 2 * spans)])
    learned = [1] * tokens
    for begin, end in zip(numbers[ends::2], numbers[ends + 1 :: 2]):
        learned[begin:end] = [0] * (end - begin)
    begins = (0,) + numbers[: ends - 1]
    return [(ids[b:e], learned[b:e]) for b, e in zip(begins, numbers[:ends])]


def compare_masks(binary, folder, data, work):
    model, tokens = os.path.join(work, "masks"), os.path.join(work, "masks-tokens")
    for path in (model, tokens):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(folder, model)
    path = os.path.join(model, "tokenizer_config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["chat_template"] = GENERATION
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    subprocess.run(
        [binary, "tokenize", "--data", data, "--tokenizer", model, "--out", tokens], check=True
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    with open(data, encoding="utf-8", newline="\n") as file:
        dialogues = [json.loads(line)["messages"] for line in file]
    documents = shard_documents(tokens)
    if len(documents) != len(dialogues):
        raise SystemExit(f"{len(documents)} documents of {len(dialogues)} dialogues")
    trained = total = 0
    for i, (messages, (ids, learned)) in enumerate(zip(dialogues, documents)):
        theirs = tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        if list(ids) != list(theirs["input_ids"]):
            raise SystemExit(f"dialogue {i}: other ids than transformers'")
        if list(learned) != list(theirs["assistant_masks"]):
            raise SystemExit(f"dialogue {i}: {learned} against {theirs['assistant_masks']}")
        trained += sum(learned)
        total += len(learned)
    print(
        f"{len(dialogues)} dialogues: of {total} tokens the same {trained} are learned from as by "
        f"the mask of transformers {transformers.__version__}"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", metavar="DATA")
    parser.add_argument("--bin")
    parser.add_argument("--model", metavar="FOLDER")
    parser.add_argument("--templates", metavar="WORK")
    parser.add_argument("--masks", metavar="WORK")
    parser.add_argument("--data")
    args = parser.parse_args()
    if args.write:
        write(args.write)
    if args.masks:
        compare_masks(os.path.abspath(args.bin), args.model, args.data, args.masks)
    elif args.templates:
        compare_templates(os.path.abspath(args.bin), args.model, args.templates)
    elif args.model:
        compare(os.path.abspath(args.bin), args.model)


if __name__ == "__main__":
    sys.exit(main())
