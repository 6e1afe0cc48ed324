#!/usr/bin/env python3
"""Compares what `moe serve` makes of requests by a folder of chat templates with what jinja2 makes
of them, set up as transformers sets it up.

--bin MOE --model FOLDER --templates FOLDER --work FOLDER

Every *.jinja of --templates is put into a copy of the model below --work and writes six dialogues;
the model's vocabulary has <|endoftext|>, as one of bpe:SIZE has.
Each has to give the same text, or be refused by both, or be refused here by name; the last may be
one in twenty. A message that calls tools may be written in several ways (its arguments as a text or
an object, its content null or empty), and each template takes its own: the text has to be that of
one of them.

llama.cpp's folder models/templates lies in the source package of llama_cpp_python, pinned in
tools/requirements-llama.txt, below vendor/llama.cpp."""

import argparse
import contextlib
import copy
import datetime
import glob
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

import jinja2

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
from jinja import environment  # noqa: E402

SHARE = 0.95
TOKEN = "<|endoftext|>"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather of a "place" <b>',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Ort, z. B. Köln"},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                },
                "required": ["city"],
            },
        },
    }
]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "abcdefghi",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Köln", "days": 2}'},
        }
    ],
}
RESULT = {
    "role": "tool",
    "name": "get_weather",
    "tool_call_id": "abcdefghi",
    "content": '{"t": 21}',
}


def said(*texts, system=None):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return ([{"role": "system", "content": system}] if system is not None else []) + messages


DIALOGUES = [
    (said("Hi", system="Be brief."), None),
    (said("Hi", "Hello", "2+2?"), None),
    (said("Weather?", system="Help."), TOOLS),
    (said("Weather?") + [CALL, RESULT], TOOLS),
    (said("", "", "x"), None),
    (said(" Hi \n", "<think>\nhm\n</think>\n\n Hello  ", "2? ", system=" S "), None),
]


class Refused(Exception):
    pass


def today():
    """jinja2 as transformers configures it, with today's date."""
    made = environment()
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


def in_every_style(messages):
    """The messages in each way in which a client may write their calls, that of transformers
    first."""
    styles = []
    for parsed in (True, False):
        for content in (None, ""):
            made = copy.deepcopy(messages)
            for message in made:
                for call in message.get("tool_calls", []):
                    message["content"] = content
                    function = call["function"]
                    if parsed:
                        function["arguments"] = json.loads(function["arguments"])
            if made not in styles:
                styles.append(made)
    return styles


def render_theirs(template, messages, tools):
    """What jinja2 writes in each style; empty where it refuses all of them."""
    texts = []
    for style in in_every_style(messages):
        try:
            texts.append(
                today()
                .from_string(template)
                .render(
                    messages=style,
                    tools=tools,
                    documents=None,
                    add_generation_prompt=True,
                    bos_token=TOKEN,
                    eos_token=TOKEN,
                )
            )
        except Exception:
            pass
    return texts


@contextlib.contextmanager
def serving(binary, model, template, work):
    """The address of a server of a copy of the model that has this template."""
    folder = os.path.join(work, "model")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder)
    path = os.path.join(folder, "tokenizer_config.json")
    config = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    config.pop("chat_template", None)
    config.update(bos_token=TOKEN, eos_token=TOKEN)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8", newline="") as f:
        f.write(template)
    server = subprocess.Popen(
        [binary, "serve", folder, "--port", "0"], stderr=subprocess.PIPE, encoding="utf-8"
    )
    lines = []
    try:
        for line in server.stderr:
            lines.append(line)
            if "listening on " in line:
                yield line.split("listening on ", 1)[1].split()[0]
                return
        raise Refused(" ".join(lines))
    finally:
        server.terminate()
        server.wait()
        server.stderr.close()


def post(url, body):
    request = urllib.request.Request(
        url + "/apply-template",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["prompt"]
    except urllib.error.HTTPError as e:
        raise Refused(e.read().decode(errors="replace")) from None


def render_ours(binary, model, template, work, dialogues):
    """For each dialogue what the server writes, or the Refused that says why not."""
    results = []
    try:
        with serving(binary, model, template, work) as url:
            for messages, tools in dialogues:
                body = {"messages": messages, **({"tools": tools} if tools else {})}
                try:
                    results.append(post(url, body))
                except Refused as e:
                    results.append(e)
    except Refused as e:
        return [e] * len(dialogues)
    return results


def compare(templates, ours):
    """ours(template, dialogues) is render_ours. Says what differs; False where too much does."""
    same = both = named = wrong = 0
    for path in templates:
        with open(path, encoding="utf-8", newline="") as file:
            template = file.read()
        name = os.path.basename(path)
        for i, result in enumerate(ours(template, DIALOGUES)):
            theirs = render_theirs(template, *DIALOGUES[i])
            if isinstance(result, Refused):
                if not theirs:
                    both += 1
                    continue
                named += 1
                print(f"{name}, dialogue {i + 1}: refused: {ascii(str(result))[:300]}")
            elif result in theirs:
                same += 1
            else:
                wrong += 1
                want = ascii(theirs[0]) if theirs else "a refusal"
                print(f"{name}, dialogue {i + 1}: {ascii(result)} against {want}")
    total = same + both + named + wrong
    print(
        f"{total} dialogues by {len(templates)} templates: {same} the same as jinja2 "
        f"{jinja2.__version__}, {both} refused by both, {named} refused here only, {wrong} different"
    )
    return total > 0 and wrong == 0 and same + both >= SHARE * total


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, metavar="MOE")
    parser.add_argument("--model", required=True, metavar="FOLDER")
    parser.add_argument("--templates", required=True, metavar="FOLDER")
    parser.add_argument("--work", required=True, metavar="FOLDER")
    args = parser.parse_args()
    templates = sorted(glob.glob(os.path.join(args.templates, "*.jinja")))
    binary = os.path.abspath(args.bin)
    good = compare(
        templates,
        lambda template, dialogues: render_ours(binary, args.model, template, args.work, dialogues),
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
