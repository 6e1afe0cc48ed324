#!/usr/bin/env python3
"""Tiny random models of every family as transformers writes them (deepseek: as its reference does),
and what `moe` makes of them: the log-probabilities of 512 tokens in one piece and token by token,
the experts that were chosen, the same from a GGUF file, the gradients of a step, what `moe` saves,
loaded back by transformers, the model quantised, and a dialogue with it. One process, because
loading transformers takes longer than all of that. Prints a line or more for each model, those of
the ones that failed once more, and at last how many passed.
"""

import argparse
import contextlib
import copy
import io
import json
import os
import shutil
import subprocess
import sys

import gguf
import numpy
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

import deepseek_reference
import delta_reference
import scores
from cases import CASES
from own_forms import EVEN, NOT_FOR_LLAMA_CPP

MARGIN = 1e-5  # routers that are nearer than this to choosing another expert may do so
MAY_DIFFER = 0.001  # of the tokens of a layer
LOGITS = 1e-6  # of what was saved and loaded back
WINDOW = 512
GRADIENTS = 1e-4  # of a parameter's, relative to its norm
CONTEXT = 64  # of the step that shows them
# AdamW's first step is lr g / (|g| + eps): with this eps it is linear in g
EPS = 1e6
STEP = 1e3
# What a class makes of its config where a folder lacks it, as those that `moe` writes do.
MADE_AGAIN = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
QUANTISED = 0.05  # nats a token that Q8_0 may change of a random model's
TABLE = """# Families

Which models of other people are read and written. `scripts/interop.sh` runs a tiny random model of
each through all of it and fails where this table, which `tools/interop/architectures.py` writes, is
another than what it found:

- **folder**: the log-probabilities of 512 tokens are transformers' within 1e-4, in one piece and
  token by token, every token chooses the same experts, and what is saved loads there as it was.
- **GGUF**: the architecture that a file is written for and read as; `moe_cpp` is our own form,
  which llama.cpp does not run, with the reason.
- **trains**: each parameter's gradient of one step is transformers' within 1e-4 of its norm.
- **quantised**: as `q8_0` the model says what it said, within 0.05 nats a token.
- **chat**: `moe chat` answers.

What each family is, and what of it is refused: [model-folder.md](model-folder.md#architectures).

| `model_type` | folder | GGUF | trains | quantised | chat |
|---|---|---|---|---|---|
"""

# transformers 5.23 has the class and not its entry: it means it for the text within a `mistral3`.
transformers.AutoModelForCausalLM.register(
    transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True
)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def randomise(model):
    """Numbers that make every part count: fresh norms are one, biases zero and logits nearly so,
    and a mistake in them would not show. An embedding that is the head too is drawn smaller: logits
    of 30 and more would be compared to the last bits of f32."""
    generator = torch.Generator().manual_seed(2)
    embedding = (
        0.2 if getattr(getattr(model, "config", None), "tie_word_embeddings", False) else 0.5
    )
    unscaled = getattr(getattr(model, "config", None), "model_type", "").startswith("gemma4")
    with torch.no_grad():
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("tid2eid"):  # of each id some experts, no two alike
                experts = model.config.n_routed_experts
                for row in buffer:
                    row.copy_(torch.randperm(experts, generator=generator)[: len(row)])
            elif name.endswith("layer_scalar"):
                buffer.copy_(1 + 0.2 * torch.randn(buffer.shape, generator=generator))
        for name, parameter in sorted(model.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                # A head that forgets all at every token gives the sign of <k, q>, in which f32 and
                # f64 differ wherever that is nearly 0.
                parameter.copy_(drawn - 3)
            elif parameter.dim() == 1:
                parameter.add_(0.2 * drawn)
                if unscaled and name.endswith("q_norm.weight"):
                    # Its scores are not over the root of a head's width: with norms near one they
                    # are 30 and more, where transformers' angles in f32 make 1e-4 of the logits.
                    parameter.mul_(0.25)
            else:
                parameter.copy_(
                    (
                        embedding
                        if "embed" in name or "wte" in name
                        else 0.5
                        if name.endswith("gate.weight")
                        else 0.2
                    )
                    * drawn
                )


def for_llama_cpp(sizes):
    """Widths that its blocks divide, indexers as wide as its transform of them takes, and no YaRN
    whose ends are not rounded, which it rounds."""
    sizes = {
        key: EVEN.get(size, size) if key.endswith(("_size", "_rank")) or key == "head_dim" else size
        for key, size in sizes.items()
    }
    if "index_head_dim" in sizes:
        sizes["index_head_dim"] = 128
    if not sizes.get("rope_parameters", {}).get("truncate", True):
        sizes["rope_parameters"] = dict(rope_type="default", rope_theta=10000.0)
    return sizes


def write(case, folder, tokenizer, dtype="f32", shard=None, llama=False):
    name, sizes = CASES[case]
    sizes = copy.deepcopy(for_llama_cpp(sizes) if llama else sizes)  # configs add to what they get
    torch.manual_seed(1)
    os.makedirs(folder, exist_ok=True)
    if name:
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**sizes))
        randomise(model)
        model.to(DTYPES[dtype]).save_pretrained(
            folder, **({"max_shard_size": shard} if shard else {})
        )
    else:
        model = deepseek_reference.DeepSeekMoe(sizes)
        randomise(model)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(sizes, file, indent=2)
        save_file(
            {n: t.detach().to(DTYPES[dtype]).contiguous() for n, t in model.state_dict().items()},
            os.path.join(folder, "model.safetensors"),
            {"format": "pt"},
        )
    shutil.copy(tokenizer, os.path.join(folder, "tokenizer.json"))


def is_deepseek(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return json.load(file)["model_type"] == "deepseek"


def router_of(layer):
    """A layer's router and its selection bias, or None for either."""
    names = ("mlp", "feed_forward", "block_sparse_moe", "mixer", "ffn")
    block = next(getattr(layer, name) for name in names if hasattr(layer, name))
    gate = getattr(block, "gate", None) or getattr(block, "router", None)
    gate = getattr(gate, "wg", getattr(gate, "gate", gate))
    if gate is not None and not hasattr(gate, "weight") and not hasattr(gate, "classifier"):
        gate = gate.layer  # DBRX's
    if gate is not None and not hasattr(gate, "num_group") and hasattr(block, "n_group"):
        gate.num_group, gate.topk_group = block.n_group, block.topk_group
    name = "e_score_correction_bias"
    bias = getattr(gate, name, getattr(block, name, getattr(block, "expert_bias", None)))
    statics = getattr(gate, "moe_statics", None)
    return gate, bias if statics is None else getattr(statics, name)[0]


def weight_of_router(gate):
    return getattr(gate, "classifier", gate).weight  # LongCat's has a layer of its own


def choosing_scores(gate, bias, x, ids=None):
    """What a router takes the largest of: [T,E], with -inf where it may not choose."""
    if hasattr(gate, "tid2eid"):  # a table of the ids says it
        chosen = torch.zeros(len(x), gate.num_experts)
        return chosen.scatter_(1, gate.tid2eid[ids.reshape(-1)].long(), 1)
    logits = x @ weight_of_router(gate).T + (0 if getattr(gate, "bias", None) is None else gate.bias)
    if type(gate).__name__ == "Kolibri1TopKRouter":  # whose bias is one of logits
        return logits + bias
    if type(gate).__name__ == "DeepseekV4TopKRouter":
        return torch.nn.functional.softplus(logits).sqrt() + bias
    softmax = bias is None or hasattr(gate, "moe_statics") or hasattr(gate, "classifier")
    scores = logits.softmax(-1) if softmax else logits.sigmoid()
    scores = scores if bias is None else scores + bias
    if getattr(gate, "topk_method", None) == "greedy" or not getattr(gate, "num_group", None):
        return scores
    groups = scores.view(len(x), gate.num_group, -1)
    best = groups.amax(-1) if bias is None else groups.topk(2, -1)[0].sum(-1)
    kept = torch.zeros_like(best).scatter_(1, best.topk(gate.topk_group, -1)[1], 1)
    return groups.masked_fill(kept[..., None] == 0, float("-inf")).flatten(1)


def with_zero_experts(folder):
    """The folder, or a copy with matrices of zero experts, which transformers asks for and does not
    read; published checkpoints and what `moe` saves have none."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    if not config.get("zero_expert_num"):
        return folder
    copied = folder + "-with-zero-experts"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(folder, copied, ignore=shutil.ignore_patterns("checkpoint-*"))
    path = os.path.join(copied, "model.safetensors")
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    experts = config["n_routed_experts"]
    for layer in range(config["num_layers"]):
        for which in ("gate_proj", "up_proj"):
            name = f"model.layers.{layer}.mlp.experts.{{}}.{which}.weight"
            for e in range(experts, experts + config["zero_expert_num"]):
                tensors.setdefault(name.format(e), torch.zeros_like(tensors[name.format(0)]))
    save_file(tensors, path, {"format": "pt"})
    return copied


class Reference:
    """logits(ids [1,T]) [1,T,V] and, after it, router probabilities {layer: [T,E]}; f32 whatever
    the folder holds."""

    def __init__(self, folder):
        self.probs = {}
        if is_deepseek(folder):
            self.model = deepseek_reference.load(folder)
            return
        self.model, info = transformers.AutoModelForCausalLM.from_pretrained(
            with_zero_experts(folder),
            dtype=torch.float32,
            output_loading_info=True,
            local_files_only=True,
            attn_implementation="eager",
            experts_implementation="eager",
        )
        info["missing_keys"] = {
            name for name in info["missing_keys"] if not name.endswith(MADE_AGAIN)
        }
        wrong = {kind: sorted(names)[:4] for kind, names in info.items() if names}
        if wrong:
            raise SystemExit(f"{folder}: transformers did not take every tensor: {wrong}")
        self.model.eval()
        # In a mapped file a tensor lies where the header's length puts it, and PyTorch's products
        # add in another order where that is not at a whole vector.
        for param in self.model.parameters():
            param.data = param.data.clone()
        if delta_reference.takes(self.model):
            delta_reference.compute_in_double(self.model)
        self.k = getattr(self.model.config, "num_experts_per_tok", None)
        base = self.model.base_model
        base = getattr(base, "model", base)  # Llama 4's is the whole by the prefix it gives itself
        for index, layer in enumerate(getattr(base, "layers", getattr(base, "blocks", []))):
            if hasattr(layer, "router"):  # says its scores itself
                layer.router.register_forward_hook(
                    lambda _, __, out, index=index: self.probs.__setitem__(index, out[0])
                )
                continue
            gate, bias = router_of(layer)
            if hasattr(layer, "mlps"):  # LongCat's, which is two of ours
                index *= 2
            if gate is not None:
                gate.register_forward_hook(
                    lambda gate, x, _, index=index, bias=bias: self.probs.__setitem__(
                        index,
                        choosing_scores(
                            gate, bias, x[0].reshape(-1, weight_of_router(gate).shape[1]), *x[1:2]
                        ),
                    )
                )

    def logits(self, ids):
        with torch.no_grad():
            if isinstance(self.model, deepseek_reference.DeepSeekMoe):
                out = self.model(ids)
                self.probs = self.model.router_probs()
                return out
            return self.model(ids, use_cache=False).logits


def compare_record(reference, path):
    """Every token's experts are the K largest probabilities; those whose K-th and next are nearer
    than MARGIN may be others and are listed."""
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    ids, bounds = tensors["ids"], tensors["bounds"]
    tokens, differing, lines = 0, 0, []
    layers = sorted(int(name.split(".")[1]) for name in tensors if name.endswith(".experts"))
    for begin, end in zip(bounds[:-1], bounds[1:]):
        reference.logits(torch.from_numpy(ids[begin:end].astype(numpy.int64))[None])
        if sorted(reference.probs) != layers:
            raise SystemExit(f"layers {layers} are recorded, {sorted(reference.probs)} route")
        for layer, probs in reference.probs.items():
            ours = numpy.sort(tensors[f"layers.{layer}.experts"][begin:end], 1)
            k = ours.shape[1]
            best, which = probs.topk(k + 1, -1)
            theirs = numpy.sort(which[:, :k].numpy(), 1)
            margin = (best[:, k - 1] - best[:, k]).numpy()
            tokens += len(ours)
            for token in numpy.flatnonzero((ours != theirs).any(1)):
                differing += 1
                lines.append(
                    f"layer {layer} token {begin + token}: {ours[token].tolist()} here, {theirs[token].tolist()} there, margin {margin[token]:.1e}"
                )
                if margin[token] >= MARGIN:
                    raise SystemExit("another choice: " + lines[-1])
    for line in lines:
        print(line)
    print(
        f"choices of {tokens} tokens of {len(layers)} layers: {differing} differ, each within {MARGIN:.0e} (allowed {MAY_DIFFER:.1%} of them)"
    )
    return 0 if differing <= MAY_DIFFER * tokens else 1


def same(folder, saved, ids_path, window):
    ids, _ = scores.read(ids_path, window)
    with (
        open(os.path.join(saved, "config.json"), encoding="utf-8") as a,
        open(os.path.join(folder, "config.json"), encoding="utf-8") as b,
    ):
        types = json.load(a)["model_type"], json.load(b)["model_type"]
    if types[0] != types[1]:
        raise SystemExit(f"{saved} is {types[0]}, {folder} is {types[1]}")
    worst = float(
        (Reference(saved).logits(ids[:1]) - Reference(folder).logits(ids[:1])).abs().max()
    )
    print(
        f"{types[1]} as we save it: largest difference of a logit {worst:.1e} (allowed {LOGITS:.0e})"
    )
    return 0 if worst <= LOGITS else 1


def compare_gradients(folder, before, after, train_text):
    """Of every parameter what the step did is STEP times its gradient."""
    with open(train_text, "rb") as file:
        ids = torch.tensor(list(file.read(CONTEXT + 1)))
    reference = Reference(folder).model.requires_grad_()
    out = reference(ids[None, :-1])
    logits = getattr(out, "logits", out)
    torch.nn.functional.cross_entropy(logits[0], ids[1:]).backward()
    with open(os.path.join(after, "metrics.jsonl"), encoding="utf-8") as file:
        loss = next(line["ce"] for line in map(json.loads, file) if "ce" in line)
    first, last = (dict(Reference(of).model.named_parameters()) for of in (before, after))
    grads = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in reference.named_parameters()
    }
    # Nothing depends on some, as on the biases of keys: theirs are what rounding leaves.
    least = 1e-4 * max(float(grad.norm()) for grad in grads.values())
    worst, where = 0.0, ""
    for name, grad in grads.items():
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            continue  # moved by its own rule
        if ".indexer." in name and not grad.any():
            continue  # what it chooses has no gradient, and nothing moves it
        ours = (first[name] - last[name]).detach() / STEP
        off = float((ours - grad).norm()) / max(float(grad.norm()), least)
        if not off <= worst:
            worst, where = off, name
    print(
        f"gradients of {len(grads)} parameters, ce {loss:.6f}: differ by {worst:.1e} at most,"
        f" of {where} (allowed {GRADIENTS:.0e})"
    )
    return 0 if worst <= GRADIENTS else 1


class Moe:
    """The command, on one text; each call leaves its result in a file and returns the path."""

    def __init__(self, args):
        """args: as add_arguments has them."""
        self.binary, self.work, self.text, self.train_text = (
            args.bin,
            args.work,
            args.text,
            args.train_text,
        )
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        os.makedirs(self.work, exist_ok=True)

    def run(self, *args, to=None, stdin=""):
        done = subprocess.run(
            [self.binary, *map(str, args)],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(
                f"moe {' '.join(map(str, args))}: exit {done.returncode}: {done.stderr.strip()}"
            )
        if to:
            with open(to, "w", encoding="utf-8") as file:
                file.write(done.stdout)
        return to

    def scored(self, model, *more, to=None):
        words = ["--text", self.text, "--window", WINDOW, "--dtype", "f32"]
        return self.run("score", model, *words, *more, to=to)

    def score(self, model, *more):
        return self.scored(model, "--per-token", "--json", *more, to=model + ".json")

    def record(self, model):
        self.scored(model, "--record", model + ".record")
        return model + ".record"

    def trained(self, model):
        """The folder as it is written again before the first step of a training, and after it: a
        step of STEP times the gradient of the first window's cross-entropy."""
        out = model + ".saved"
        # fmt: off
        self.run(
            "train", "--from", model, "--data", self.train_text, "--out", out,
            "--context", CONTEXT, "--batch", 1, "--shuffle", "none",
            "--steps", 1, "--warmup", 0, "--schedule", "constant", "--save-every", 1,
            "--lr", STEP * EPS, "--eps", EPS, "--weight-decay", 0, "--clip", 0,
            "--balance", 0, "--z-loss", 0, "--dtype", "f32", "--no-report",
        )
        # fmt: on
        return os.path.join(out, "checkpoint-0"), out

    def gguf(self, model):
        """The model as a GGUF file, and why llama.cpp does not run that; None where it does."""
        with open(
            self.run("convert", model, model + ".gguf", "--json", to=model + ".convert.json"),
            encoding="utf-8",
        ) as file:
            return model + ".gguf", json.load(file).get("not_for_llama_cpp")


def quantised_and_chatted(moe, case, tokenizer):
    """Whether the model in Q8_0 says what it said, and whether it answers."""
    folder = os.path.join(moe.work, case + "-even")
    write(case, folder, tokenizer, llama=True)
    small = folder + ".gguf"
    moe.run("convert", folder, small, "--quant", "q8_0")
    nats = []
    for model in (folder, small):
        with open(moe.score(model), encoding="utf-8") as file:
            nats.append(json.load(file)["nats_per_token"])
    moe.run("chat", small, "--json", "-n", 4, "--seed", 1, stdin="Hello\n")
    print(f"as q8_0 {nats[1]:.4f} nats per token after {nats[0]:.4f} (allowed {QUANTISED}), and it answers")
    return abs(nats[1] - nats[0]) <= QUANTISED


def architecture_in(path):
    return gguf.GGUFReader(path).get_field("general.architecture").contents()


def table_of(forms):
    """The page, of {family: [(variant, architecture of its GGUF, why that is our own)]}."""
    rows = []
    for family, variants in forms.items():
        said = {}  # {(architecture, why): as it is written}, each once
        for variant, architecture, reason in variants:
            why = (reason or "").split(", but ")[-1].split("; ")[-1]
            named = f"{variant}: {why}" if variant else why
            said.setdefault((architecture, why), f"`{architecture}`" + (f" ({named})" if why else ""))
        rows.append(f"| `{family}` | yes | {', '.join(said.values())} | yes | yes | yes |\n")
    return TABLE + "".join(sorted(rows))


def check_case(moe, case, dtype, shard, tokenizer, forms):
    """Raises SystemExit, or returns False, where something differs; adds to `forms`."""
    folder = os.path.join(moe.work, f"{case}-{dtype}" + ("-sharded" if shard else ""))
    write(case, folder, tokenizer, dtype, shard)
    if shard and not os.path.exists(os.path.join(folder, "model.safetensors.index.json")):
        raise SystemExit("there are no shards")
    reference = Reference(folder)
    name = "the reference" if is_deepseek(folder) else "transformers " + transformers.__version__
    good = scores.compare(name, reference.logits, moe.score(folder), WINDOW) == 0
    good &= (
        scores.compare(
            name + ", token by token", reference.logits, moe.score(folder, "--chunk", 1), WINDOW
        )
        == 0
    )
    if reference.probs:
        good &= compare_record(reference, moe.record(folder)) == 0
    if dtype != "f32":
        return good
    before, after = moe.trained(folder)
    good &= same(folder, before, folder + ".json", WINDOW) == 0
    good &= compare_gradients(folder, before, after, moe.train_text) == 0
    file, reason = moe.gguf(folder)
    if (reason is None) != (case not in NOT_FOR_LLAMA_CPP) or NOT_FOR_LLAMA_CPP.get(
        case, ""
    ) not in (reason or ""):
        raise SystemExit(f"{file}: not for llama.cpp because: {reason}")
    good &= scores.compare(name + ", from GGUF", reference.logits, moe.score(file), WINDOW) == 0
    good &= quantised_and_chatted(moe, case, tokenizer)
    family, _, variant = case.partition("-")
    forms.setdefault(family, []).append((variant, architecture_in(file), reason))
    return good


def add_arguments(parser):
    parser.add_argument("--bin", required=True)
    parser.add_argument("--work", required=True, help="a folder for the models")
    parser.add_argument("--text", required=True, help="one window of bytes to score")
    parser.add_argument("--train-text", required=True, help="something to take steps on")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json of bytes")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--table", help="write the table of families there, when all is as it should be")
    parser.add_argument(
        "--for-llama-cpp",
        action="store_true",
        help="only write the models that llama.cpp knows, one for each architecture, in sizes "
        "that it can quantise, and their names",
    )
    parser.add_argument(
        "cases",
        nargs="*",
        metavar="CASE[:DTYPE[:SHARD]]",
        help="default: all in f32, three in the halves, one in shards",
    )
    args = parser.parse_args()
    moe = Moe(args)
    if args.for_llama_cpp:
        for case in args.cases or [c for c in CASES if c not in NOT_FOR_LLAMA_CPP]:
            write(case, os.path.join(moe.work, case), args.tokenizer, llama=True)
            print(case)
        return 0
    cases = args.cases or [
        *CASES,
        *(f"{case}:{dtype}" for dtype in ("bf16", "f16") for case in ("llama", "gpt2", "mixtral")),
        "qwen3_moe:bf16:100KB",
    ]
    failed, forms = {}, {}
    for case in cases:
        name, dtype, shard = (case.split(":") + ["f32", None])[:2] + [
            (case.split(":") + [None, None, None])[2]
        ]
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                print(f"{case}:")
                try:
                    good = check_case(moe, name, dtype, shard, args.tokenizer, forms)
                except SystemExit as e:
                    print(e)
                    good = False
        finally:
            print(said.getvalue(), end="", flush=True)
        if not good:
            failed[case] = said.getvalue()
    if args.table and not failed:
        with open(args.table, "w", encoding="utf-8") as out:
            out.write(table_of(forms))
    for text in failed.values():  # once more where the end of a log is read
        print(text, end="")
    print(
        f"{len(cases) - len(failed)} of {len(cases)} models as they should be"
        + (f", not {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
