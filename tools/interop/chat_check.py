#!/usr/bin/env python3
"""Compares the prompts that `moe chat` makes of dialogues with those of transformers'
apply_chat_template, by the template in the model's folder.

--write DATA        200 dialogues to train on, the same each time
--bin MOE --model FOLDER     talks with the model 20 times and compares text and ids
--templates WORK             the same for the template of each family that `moe chat` knows, put
into a copy of the model below WORK
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys

import transformers

DIALOGUES = 20
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
# Of each family a text of ours that says what the published one says: how messages follow each
# other, spaces and defaults.
CHATML = (
    "{% for m in messages %}DEFAULT{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
DEFAULT = "{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a model, \\'kind\\'.<|im_end|>\\n' }}{% endif %}"
QWEN25 = (
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}{%- else %}"
    "{{- '<|im_start|>system\\nYou are Q. You help.<|im_end|>\\n' }}{%- endif %}"
    "{%- for m in messages %}{%- if not (loop.first and m.role == 'system') %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
QWEN3 = (
    "{% for m in messages %}{% set said = m.content %}{% if m.role == 'assistant' and '</think>' in said %}{% set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
LLAMA31 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set told = messages[0]['content'] | trim %}{% set rest = messages[1:] %}{% else %}{% set told = '' %}"
    "{% set rest = messages %}{% endif %}{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}{{ 'Cutting Knowledge Date: December 2023\\n' }}"
    "{{ 'Today Date: ' + DATE + '\\n\\n' }}{{ told + '<|eot_id|>' }}{% for m in rest %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
LLAMA2 = (
    "{% set told = messages[0]['content'] if messages[0]['role'] == 'system' else false %}{% set rest = messages[1:] if told is not false else messages %}"
    "{% for m in rest %}{% set said = '<<SYS>>\\n' + told + '\\n<</SYS>>\\n\\n' + m['content'] if loop.first and told is not false else m['content'] %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + said.strip() + ' [/INST]' }}{% else %}{{ ' ' + said.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)


def mistral(open_mark, close_mark, reply, last):
    return (
        (
            "{% set system_message = messages[0]['content'] if messages[0]['role'] == 'system' else false %}{% set rest = messages[1:] if system_message is not false else messages %}"
            "{{ bos_token }}{% for message in rest %}{% if message['role'] == 'user' %}{% if WHERE is not false %}"
            "{{ 'OPEN' + system_message + '\\n\\n' + message['content'] + 'CLOSE' }}{% else %}{{ 'OPEN' + message['content'] + 'CLOSE' }}{% endif %}"
            "{% else %}{{ REPLY }}{% endif %}{% endfor %}"
        )
        .replace(
            "WHERE", "loop.last and system_message" if last else "loop.first and system_message"
        )
        .replace("OPEN", open_mark)
        .replace("CLOSE", close_mark)
        .replace("REPLY", reply)
    )


DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ 'User: ' + m['content'] + '\\n\\n' }}{% elif m['role'] == 'assistant' %}"
    "{{ 'Assistant: ' + m['content'] + eos_token }}{% else %}{{ m['content'] + '\\n\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
TULU = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|assistant|>\\n' + m['content'] + eos_token }}{% if not loop.last %}{{ '\\n' }}{% endif %}"
    "{% elif m['role'] == 'user' %}{{ '<|user|>\\n' + m['content'] + '\\n' }}{% else %}{{ '<|system|>\\n' + m['content'] + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}\n{% if m['role'] == 'user' %}\n{{ '<|user|>\\n' + m['content'] + eos_token }}\n{% elif m['role'] == 'system' %}\n"
    "{{ '<|system|>\\n' + m['content'] + eos_token }}\n{% else %}\n{{ '<|assistant|>\\n' + m['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
TEMPLATES = {
    "chatml": CHATML.replace("DEFAULT", ""),
    "smollm2": CHATML.replace("DEFAULT", DEFAULT),
    "qwen2.5": QWEN25,
    "qwen3": QWEN3,
    "llama3": LLAMA3,
    "llama3.1": LLAMA31.replace("DATE", "'26 Jul 2024'"),
    "llama3.2": LLAMA31.replace("DATE", "strftime_now('%d %b %Y')"),
    "llama2": LLAMA2,
    "mistral-v1": mistral(" [INST] ", " [/INST]", "' ' + message['content'] + eos_token", False),
    "mistral-v3": mistral("[INST] ", "[/INST]", "' ' + message['content']|trim + eos_token", True),
    "mistral-tekken": mistral("[INST]", "[/INST]", "message['content'] + eos_token", True),
    "deepseek": DEEPSEEK,
    "tulu": TULU,
    "zephyr": ZEPHYR,
}
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


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", metavar="DATA")
    parser.add_argument("--bin")
    parser.add_argument("--model", metavar="FOLDER")
    parser.add_argument("--templates", metavar="WORK")
    args = parser.parse_args()
    if args.write:
        write(args.write)
    if args.templates:
        compare_templates(os.path.abspath(args.bin), args.model, args.templates)
    elif args.model:
        compare(os.path.abspath(args.bin), args.model)


if __name__ == "__main__":
    sys.exit(main())
