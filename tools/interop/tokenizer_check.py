#!/usr/bin/env python3
"""Compares `moe`'s BPE with Hugging Face `tokenizers`, id by id.

  --write TEXT      10,000 lines of mixed text, the same each time: code, emoji, Chinese, German, French, random Unicode
  --learn FOLDER    a tokenizer.json as Llama 3 has it, learned by `tokenizers` from --text
  --ids SCORES      compares what `moe score FOLDER --text TEXT --window W --per-token --json` read with what `tokenizers` makes of FOLDER/tokenizer.json
"""
import argparse
import json
import os
import random
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

LINES = 10000
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GERMAN = "der die das große Straße über für können müssen Mäuse Öl ändern Übung weiß daß heißt schön Prüfung Donaudampfschiffahrtsgesellschaft".split()
FRENCH = "l'été où ça élève naïve cœur garçon déjà français qu'il aujourd'hui s'il être même château forêt à côté".split()
ENGLISH = "I'm you've it's don't WE'LL the router takes experts of a model and she'd learn tokens o'clock THE'S".split()
CODE = ["for (int i = 0; i < n; ++i) {", "\treturn x->y[i] * 0x1F;", "    if a_b != c['d']:", "}\r", "// ----====----", "#include <vector>", "x = \"\\u00e9\" + '\\n'",
        "std::map<std::string, int64_t>::iterator it;", "    def __init__(self, *args, **kwargs):", "SELECT * FROM t WHERE a = 12345 AND b <= 6.78e-9;"]
EMOJI = ["😀", "👩‍👩‍👧", "🇩🇪", "👍🏽", "❤️", "🏳️‍🌈", "①", "½", "²", "㈱"]
SPACES = [" ", " ", " ", "  ", "   ", "\t", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u180e", "\u200b", "\r", "\x0b", "\x0c", "\x1c"]


def any_character(rng):
    """Assigned in this Python's Unicode: what is newer, the engines may know or not."""
    while True:
        c = chr(rng.randrange(1, 0x11000 if rng.random() < 0.8 else 0x110000))
        if c != "\n" and unicodedata.category(c) not in ("Cn", "Cs", "Co"):
            return c


def line(rng, kind):
    if kind == 0:
        return rng.choice(CODE) + rng.choice(["", " ", "  // " + rng.choice(ENGLISH)])
    if kind == 1:
        return "".join(any_character(rng) for _ in range(rng.randrange(1, 40)))
    if kind == 2:
        return "".join(chr(rng.randrange(0x4E00, 0x5000)) for _ in range(rng.randrange(1, 30))) + rng.choice("。，！?1") + str(rng.randrange(10**6))
    words = [GERMAN, FRENCH, ENGLISH, EMOJI + ENGLISH][kind - 3]
    return "".join(rng.choice(words) + (rng.choice(SPACES) if rng.random() < 0.2 else " ") for _ in range(rng.randrange(1, 14)))


def write(path):
    rng = random.Random(20)
    with open(path, "w", encoding="utf-8", newline="") as file:
        for i in range(LINES):
            file.write(line(rng, i % 7) + rng.choice(["\n", "\n", "\n", "\n\n", " \n"]))


def learn(folder, text):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|end_of_text|>", "the router", "the router takes"]
    tokenizer.train([text], trainers.BpeTrainer(vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special, show_progress=False))
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))


def compare(folder, text_path, scores_path, window):
    with open(text_path, encoding="utf-8", newline="") as file:
        text = file.read()
    with open(scores_path, encoding="utf-8") as file:
        ours = json.load(file)["ids"]
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    theirs = tokenizer.encode(text, add_special_tokens=False).ids
    if not len(theirs) - window < len(ours) <= len(theirs):
        raise SystemExit(f"{len(ours)} ids against {len(theirs)} of tokenizers; only a last window of less than {window} may be missing")
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            around = tokenizer.decode(theirs[max(0, i - 5):i + 5], skip_special_tokens=False)
            raise SystemExit(f"id {i} is {a}, tokenizers has {b}, near {ascii(around)}")
    if tokenizer.decode(theirs, skip_special_tokens=False) != text:
        raise SystemExit("tokenizers does not decode to the text")
    lines = text.count("\n")
    if lines < LINES or len(set(theirs)) < 1000:
        raise SystemExit(f"{lines} lines and {len(set(theirs))} different ids are too few to show anything")
    print(f"{len(ours)} ids of {lines} lines, {len(text.encode())} bytes, equal those of tokenizers {tokenizers.__version__}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", metavar="TEXT")
    parser.add_argument("--learn", metavar="FOLDER")
    parser.add_argument("--ids", metavar="SCORES")
    parser.add_argument("--model", metavar="FOLDER")
    parser.add_argument("--text")
    parser.add_argument("--window", type=int)
    args = parser.parse_args()
    if args.write:
        write(args.write)
    if args.learn:
        learn(args.learn, args.text)
    if args.ids:
        compare(args.model, args.text, args.ids, args.window)


if __name__ == "__main__":
    sys.exit(main())
