#!/usr/bin/env python3
"""Compares `moe`'s tokenizers with Hugging Face `tokenizers`, and with sentencepiece where that
wrote the file, id by id.

--write TEXT      10,000 lines of mixed text, the same each time: code, emoji, Chinese, German,
French, random Unicode
--learn FOLDER    a tokenizer.json as --family has it, learned by `tokenizers` from --text, or a
tokenizer.model learned by sentencepiece, with the text to be compared, text.txt
--shards FOLDER   compares what `moe tokenize --tokenizer MODEL` wrote there of --text with what
`tokenizers` makes of MODEL/tokenizer.json --ids SCORES      compares what `moe score FOLDER --text
TEXT --window W --per-token --json` read with what `tokenizers` makes of FOLDER/tokenizer.json
"""

import argparse
import collections
import io
import json
import os
import random
import re
import sys
import unicodedata

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

LINES = 10000
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GERMAN = "der die das große Straße über für können müssen Mäuse Öl ändern Übung weiß daß heißt schön Prüfung Donaudampfschiffahrtsgesellschaft".split()
FRENCH = "l'été où ça élève naïve cœur garçon déjà français qu'il aujourd'hui s'il être même château forêt à côté".split()
ENGLISH = "I'm you've it's don't WE'LL the router takes experts of a model and she'd learn tokens o'clock THE'S".split()
CODE = [
    "for (int i = 0; i < n; ++i) {",
    "\treturn x->y[i] * 0x1F;",
    "    if a_b != c['d']:",
    "}\r",
    "// ----====----",
    "#include <vector>",
    "x = \"\\u00e9\" + '\\n'",
    "std::map<std::string, int64_t>::iterator it;",
    "    def __init__(self, *args, **kwargs):",
    "SELECT * FROM t WHERE a = 12345 AND b <= 6.78e-9;",
]
EMOJI = ["😀", "👩‍👩‍👧", "🇩🇪", "👍🏽", "❤️", "🏳️‍🌈", "①", "½", "²", "㈱"]
SPACES = [
    " ",
    " ",
    " ",
    "  ",
    "   ",
    "\t",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u2028",
    "\u0085",
    "\u180e",
    "\u200b",
    "\r",
    "\x0b",
    "\x0c",
    "\x1c",
]


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
        return (
            "".join(chr(rng.randrange(0x4E00, 0x5000)) for _ in range(rng.randrange(1, 30)))
            + rng.choice("。，！?1")
            + str(rng.randrange(10**6))
        )
    if kind == 6 and rng.random() < 0.1:
        return unicodedata.normalize(
            "NFD", " ".join(rng.choices(GERMAN + FRENCH, k=8))
        ) + rng.choice(
            ["  <x> \t", "<x>", " </s>x", "<s> y", " of\u0308l", "각\u11a8", "\u2581a b"]
        )
    words = [GERMAN, FRENCH, ENGLISH, EMOJI + ENGLISH][kind - 3]
    return "".join(
        rng.choice(words) + (rng.choice(SPACES) if rng.random() < 0.2 else " ")
        for _ in range(rng.randrange(1, 14))
    )


def write(path):
    rng = random.Random(20)
    with open(path, "w", encoding="utf-8", newline="") as file:
        for i in range(LINES):
            file.write(line(rng, i % 7) + rng.choice(["\n", "\n", "\n", "\n\n", " \n"]))


LETTERS = "".join(
    chr(c) for c in range(0x530) if unicodedata.category(chr(c)) in ("Lu", "Ll", "Lt")
)  # as a class; DeepSeek-LLM's lists more of them
MARK = "\u2581"


def split(*patterns):
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def byte_level(use_regex=False):
    return pre_tokenizers.ByteLevel(False, use_regex=use_regex)


def deepseek_llm():
    letters = re.sub(r"([\[\]\\^-])", r"\\\1", LETTERS)
    return split(
        "[\r\n]",
        r"\s?[" + letters + "]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        "[一-龥ࠀ-一가-퟿]+",
    ) + [pre_tokenizers.Digits(True), byte_level()]


DEEPSEEK3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""

CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    + CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    + CONTRACTION
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Over bytes: normalizer, steps that split, ignore_merges, marks, those in front of a text.
BYTES = {
    "gpt2": (None, [byte_level(True)], False, ["<|endoftext|>"], None),
    "llama3": (
        None,
        split(LLAMA3) + [byte_level()],
        True,
        ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"],
        "<|begin_of_text|>",
    ),
    "qwen2": (
        normalizers.NFC(),
        split(LLAMA3.replace("{1,3}", "")) + [byte_level()],
        False,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        None,
    ),
    "smollm2": (
        None,
        [pre_tokenizers.Digits(True), byte_level(True)],
        False,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        None,
    ),
    "olmoe": (
        normalizers.NFC(),
        [byte_level(True)],
        False,
        ["|||IP_ADDRESS|||", "<|endoftext|>"],
        None,
    ),
    "deepseek-llm": (
        normalizers.Sequence([]),
        deepseek_llm(),
        False,
        ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
        "<｜begin▁of▁sentence｜>",
    ),
    "deepseek-v3": (
        None,
        split(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3) + [byte_level()],
        False,
        ["<｜begin▁of▁sentence｜>", "<｜User｜>"],
        "<｜begin▁of▁sentence｜>",
    ),
    "gpt-oss": (
        None,
        split(O200K) + [byte_level()],
        False,
        ["<|startoftext|>", "<|endoftext|>", "<|start|>", "<|channel|>", "<|return|>"],
        None,
    ),
    "glm4": (
        None,
        split(LLAMA3) + [byte_level()],
        False,
        ["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>"],
        None,
    ),
}
# Unigram over characters: how learn_unigram normalises and cuts.
UNIGRAM = {"unigram": "split", "unigram-whole": "whole", "unigram-bytes": "bytes"}
# Files of sentencepiece itself, by the options of its trainer.
SENTENCEPIECE = {
    "spm-unigram": {"model_type": "unigram", "vocab_size": 3000},
    "spm-unigram-bytes": {
        "model_type": "unigram",
        "vocab_size": 3000,
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "identity",
    },
    "spm-bpe": {
        "model_type": "bpe",
        "vocab_size": 3000,
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "identity",
    },
    "spm-bpe-mapped": {"model_type": "bpe", "vocab_size": 3000, "byte_fallback": True},
}
# Over characters: the Metaspace's scheme; none: the normalizer Prepend and Replace; split: Replace, and
# a cut at spaces of which it left none.
CHARACTERS = {
    "llama2": None,
    "mistral": "first",
    "always": "always",
    "never": "never",
    "gemma": "split",
}


def learn_bytes(text, normalizer, steps, ignore_merges, marks, front):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    marks = marks + ["the router", "the router takes"]
    tokenizer.train(
        [text],
        trainers.BpeTrainer(
            vocab_size=3000,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=marks,
            show_progress=False,
        ),
    )
    # Words that see the normalised text and take the space around them.
    tokenizer.add_tokens(
        [
            AddedToken("    ", normalized=True),
            AddedToken("o\u0308l", normalized=True),
            AddedToken("<x>", lstrip=True, rstrip=True, normalized=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if front:
        template = processors.TemplateProcessing(
            single=f"{front} $A",
            pair=f"{front} $A {front} $B",
            special_tokens=[(front, tokenizer.token_to_id(front))],
        )
        tokenizer.post_processor = processors.Sequence([tokenizer.post_processor, template])
    return tokenizer


def learn_characters(text, scheme):
    """A vocabulary in the order of SentencePiece, where the place is the score, and of each token
    every way to cut it in two as a merge."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    learner.train(
        [text], trainers.BpeTrainer(vocab_size=2500, limit_alphabet=300, show_progress=False)
    )
    words = [
        word
        for word, _ in sorted(learner.get_vocab().items(), key=lambda item: item[1])
        if len(word) > 1
    ] + [MARK * n for n in (16, 8, 4, 2)][::-1]
    words += [word for word in learner.get_vocab() if len(word) == 1]
    words = list(dict.fromkeys(words + [MARK]))
    vocab = {
        word: i
        for i, word in enumerate(
            ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + words
        )
    }
    cuts = [(word[:i], word[i:]) for word in words for i in range(1, len(word))]
    merges = [cut for cut in cuts if cut[0] in vocab and cut[1] in vocab]
    merges.sort(key=lambda cut: (vocab[cut[0] + cut[1]], vocab[cut[0]], vocab[cut[1]]))
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    strip = [decoders.Strip(" ", 1, 0)] if scheme not in ("never", "split") else []
    if scheme == "split":
        tokenizer.normalizer = normalizers.Replace(" ", MARK)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    elif scheme:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            prepend_scheme=scheme, split=scheme == "always"
        )
    else:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]
        )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()] + strip
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(mark, normalized=False, special=True) for mark in ("<unk>", "<s>", "</s>")]
    )
    return tokenizer


def lines_of_common(path):
    """The lines without rare characters, which would fill a small vocabulary."""
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    count = collections.Counter("".join(lines))
    return [line for line in lines if all(count[c] > 8 for c in line)]


def write_text(folder, text, kept):
    """FOLDER/text.txt: what is kept of the text, to be compared in place of it."""
    with open(text, encoding="utf-8", newline="") as file:
        content = kept(file.read())
    with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8", newline="") as file:
        file.write(content)


def known_of_old(text):
    """Without what Unicode 3.2 lacks: tokenizers' tables of what is compatible are old."""
    return "".join(c for c in text if unicodedata.ucd_3_2_0.category(c) != "Cn")


def learn_unigram(folder, text, form):
    """As T5's, XLM-R's and llm-jp's files are: SentencePiece's map of characters, then words."""
    charsmap = charsmap_of(trained_by_sentencepiece(text, model_type="unigram", vocab_size=800))
    squeeze = normalizers.Replace(Regex(" {2,}"), " ")
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always", split=form != "whole")
    learner = Tokenizer(models.Unigram())
    learner.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), squeeze])
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator(
        lines_of_common(text),
        trainers.UnigramTrainer(
            vocab_size=3000,
            special_tokens=["<unk>", "<s>", "</s>"],
            unk_token="<unk>",
            show_progress=False,
        ),
    )
    vocab = [tuple(entry) for entry in json.loads(learner.to_str())["model"]["vocab"]]
    if form == "bytes":
        write_text(folder, text, known_of_old)
        vocab += [(f"<0x{b:02X}>", 0.0) for b in range(256)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=form == "bytes"))
    steps = {
        "split": [normalizers.Precompiled(charsmap)],
        "whole": [normalizers.Precompiled(charsmap), normalizers.Strip(False, True), squeeze],
        "bytes": [normalizers.NFKC(), squeeze],
    }
    tokenizer.normalizer = normalizers.Sequence(steps[form])
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
        if form == "split"
        else metaspace
    )
    tokenizer.decoder = (
        decoders.Sequence(
            [
                decoders.Replace(MARK, " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        if form == "bytes"
        else decoders.Metaspace()
    )
    tokenizer.add_special_tokens(
        [AddedToken(mark, normalized=False, special=True) for mark in ("<unk>", "<s>", "</s>")]
    )
    return tokenizer


def trained_by_sentencepiece(text, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines_of_common(text)),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return model.getvalue()


def charsmap_of(model):
    """precompiled_charsmap (2) of normalizer_spec (3) of sentencepiece_model.proto."""

    def varint(data, at):
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                return value, at

    def field(data, wanted):
        at = 0
        while at < len(data):
            tag, at = varint(data, at)
            size = {1: 8, 5: 4}.get(tag & 7)
            if tag & 7 == 0:
                _, at = varint(data, at)
                continue
            if size is None:
                size, at = varint(data, at)
            if tag >> 3 == wanted:
                return data[at : at + size]
            at += size
        raise SystemExit(f"the model has no field {wanted}")

    return field(field(model, 3), 2)


def learn_sentencepiece(folder, text, **options):
    """FOLDER/tokenizer.model and FOLDER/text.txt: the text without the marks that moe, as
    transformers, looks for in a text and sentencepiece does not."""
    write_text(folder, text, lambda content: re.sub("</?s>|<unk>", "", content))
    with open(os.path.join(folder, "tokenizer.model"), "wb") as file:
        file.write(trained_by_sentencepiece(text, **options))


def compare_sentencepiece(folder, ours):
    model = sentencepiece.SentencePieceProcessor(
        model_file=os.path.join(folder, "tokenizer.model")
    )
    with open(os.path.join(folder, "text.txt"), encoding="utf-8", newline="") as file:
        text = file.read()
    theirs = model.encode(text)
    report_difference(ours, theirs, lambda ids: model.decode(ids), "sentencepiece")
    if len(set(theirs)) < 1000:
        raise SystemExit(f"{len(set(theirs))} different ids are too few to show anything")
    lines = text.count("\n")
    print(f"{len(ours)} ids of {lines} lines equal those of sentencepiece {sentencepiece.__version__}")


def report_difference(ours, theirs, decode, whose):
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            around = decode(theirs[max(0, i - 5) : i + 5])
            raise SystemExit(f"id {i} is {a}, {whose} has {b}, near {ascii(around)}")
    if len(ours) != len(theirs):
        raise SystemExit(f"{len(ours)} ids against {len(theirs)} of {whose}")


def learn(folder, text, family):
    os.makedirs(folder, exist_ok=True)
    if family in SENTENCEPIECE:
        return learn_sentencepiece(folder, text, **SENTENCEPIECE[family])
    if family in BYTES:
        tokenizer = learn_bytes(text, *BYTES[family])
    elif family in UNIGRAM:
        tokenizer = learn_unigram(folder, text, UNIGRAM[family])
    else:
        tokenizer = learn_characters(text, CHARACTERS[family])
    tokenizer.save(os.path.join(folder, "tokenizer.json"))


def shard_ids(folder):
    """The ids of a folder that `moe tokenize` wrote (src/text/shards.h), which has one shard here."""
    with open(os.path.join(folder, "tokens.json"), encoding="utf-8") as file:
        index = json.load(file)
    width = 1 if index["vocab"] <= 1 << 8 else 2 if index["vocab"] <= 1 << 16 else 4
    [shard] = index["shards"]
    return np.fromfile(
        os.path.join(folder, shard["file"]), dtype=f"<u{width}", count=shard["tokens"]
    ).tolist()


def without_stripped(text):
    """What forms over characters, and a mark that strips, do not give back: the mark of a space as
    such, spaces in front and beside marks."""
    return re.sub(r"\s*(<x>|</?s>)\s*", r"\1", text.replace(MARK, " ").lstrip(" "))


def compare(folder, text_path, ours, window):
    """`window`: a last one of fewer ids may be missing."""
    with open(text_path, encoding="utf-8", newline="") as file:
        text = file.read()
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    theirs = tokenizer.encode(text, add_special_tokens=False).ids
    if not len(theirs) - window < len(ours) <= len(theirs):
        raise SystemExit(
            f"{len(ours)} ids against {len(theirs)} of tokenizers; only a last window of less than {window} may be missing"
        )
    report_difference(
        ours,
        theirs[: len(ours)],
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
        "tokenizers",
    )
    back = tokenizer.decode(theirs, skip_special_tokens=False)
    composed = (
        tokenizer.normalizer.normalize_str(text)
        if isinstance(tokenizer.normalizer, normalizers.NFC)
        else text
    )
    keeps = not isinstance(tokenizer.model, models.Unigram)  # their maps change characters
    if keeps and without_stripped(back) != without_stripped(composed):
        raise SystemExit("tokenizers does not decode to the text")
    lines = text.count("\n")
    if lines < LINES or len(set(theirs)) < 1000:
        raise SystemExit(
            f"{lines} lines and {len(set(theirs))} different ids are too few to show anything"
        )
    print(
        f"{len(ours)} ids of {lines} lines, {len(text.encode())} bytes, equal those of tokenizers {tokenizers.__version__}"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", metavar="TEXT")
    parser.add_argument("--learn", metavar="FOLDER")
    parser.add_argument("--ids", metavar="SCORES")
    parser.add_argument("--shards", metavar="FOLDER")
    families = [*BYTES, *CHARACTERS, *UNIGRAM, *SENTENCEPIECE]
    parser.add_argument("--family", choices=families, default="llama3")
    parser.add_argument("--model", metavar="FOLDER")
    parser.add_argument("--text")
    parser.add_argument("--window", type=int)
    args = parser.parse_args()
    if args.write:
        write(args.write)
    if args.learn:
        learn(args.learn, args.text, args.family)
    if args.ids:
        with open(args.ids, encoding="utf-8") as file:
            compare(args.model, args.text, json.load(file)["ids"], args.window)
    if args.shards and os.path.exists(os.path.join(args.model, "tokenizer.model")):
        compare_sentencepiece(args.model, shard_ids(args.shards))
    elif args.shards:
        compare(args.model, args.text, shard_ids(args.shards), 1)


if __name__ == "__main__":
    sys.exit(main())
