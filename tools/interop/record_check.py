#!/usr/bin/env python3
"""Reads a routing record of `moe score --record` with safetensors and NumPy and holds it against
transformers' own routing of the same ids, f32: the experts of every token are the largest router
logits, in that order, and the weights are the softmax probabilities transformers gives them."""

import argparse
import sys

import numpy
import torch
import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM

TOLERANCE = 1e-5
TIE = 1e-5  # logits this near may be ranked either way


def read(path):
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def fail_unless(holds, what):
    if not holds:
        raise SystemExit(what)


def probabilities(logits):
    """Of what transformers gives as a layer's router logits. Newer versions give probabilities
    under this name; a softmax of either ranks alike, and their logarithms are logits."""
    ready = bool((logits >= 0).all() and ((logits.sum(-1) - 1).abs() < 1e-4).all())
    return logits if ready else logits.softmax(-1)


def check_layer(layer, logits, experts, weights, config):
    """logits [N, E], experts and weights [N, K]. Returns the largest difference of a weight, and
    how many ties are ranked otherwise."""
    k = config.num_experts_per_tok
    fail_unless(
        experts.dtype == numpy.int32
        and weights.dtype == numpy.float32
        and experts.shape == weights.shape == (len(logits), k),
        "shapes",
    )
    probs = probabilities(logits)
    ranked = numpy.take_along_axis(probs.log().numpy(), experts, 1)
    wanted = probs.log().topk(k).values.numpy()
    fail_unless(
        numpy.abs(ranked - wanted).max() <= TIE,
        f"layer {layer}: transformers ranks other experts first",
    )
    theirs = numpy.take_along_axis(probs.numpy(), experts, 1)
    if config.norm_topk_prob:
        theirs = theirs / theirs.sum(-1, keepdims=True)
        fail_unless(
            numpy.abs(weights.sum(-1) - 1).max() <= TOLERANCE,
            f"layer {layer}: renormalised weights do not add up to 1",
        )
    else:
        fail_unless(
            bool((weights.sum(-1) < 1).all()),
            f"layer {layer}: probabilities of {k} of {config.num_experts} experts add up to 1 or more",
        )
    return float(numpy.abs(theirs - weights).max()), int((ranked != wanted).sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="model folder, olmoe")
    parser.add_argument("record")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, local_files_only=True
    ).eval()
    config = model.config
    tensors, metadata = read(args.record)
    fail_unless(
        metadata["routing_record"] == "1", f"{args.record}: version {metadata['routing_record']}"
    )
    layers, k = config.num_hidden_layers, config.num_experts_per_tok
    fail_unless(
        (int(metadata["layers"]), int(metadata["experts"]), int(metadata["slots"]))
        == (layers, config.num_experts, k),
        f"{args.record}: {metadata} is not of {args.model}",
    )
    ids, bounds = tensors["ids"], tensors["bounds"]
    fail_unless(
        bounds[0] == 0
        and bounds[-1] == len(ids)
        and set(numpy.diff(bounds)) == {int(metadata["window"])},
        f"bounds {bounds}",
    )
    fail_unless(len(tensors) == 2 + 2 * layers, f"{sorted(tensors)}")

    pairs, worst, ties = 0, 0.0, 0
    for begin, end in zip(bounds[:-1], bounds[1:]):
        with torch.no_grad():
            out = model(
                torch.from_numpy(ids[begin:end].astype(numpy.int64))[None],
                use_cache=False,
                output_router_logits=True,
            )
        for layer, logits in enumerate(out.router_logits):
            experts, weights = (
                tensors[f"layers.{layer}.{what}"][begin:end] for what in ("experts", "weights")
            )
            difference, of_ties = check_layer(
                layer, logits.reshape(end - begin, -1), experts, weights, config
            )
            worst, ties, pairs = max(worst, difference), ties + of_ties, pairs + experts.size
    print(
        f"transformers {transformers.__version__}: {pairs} choices of {layers} layers alike ({ties} of them ties within {TIE:.0e}), "
        f"largest difference of a weight {worst:.2e} (allowed {TOLERANCE:.0e})"
    )
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
