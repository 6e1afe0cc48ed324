"""Reads `moe score --per-token --json` and compares its log-probabilities with a PyTorch model's,
window by window."""

import json

import torch

TOLERANCE = 1e-4


def read(path, window):
    """ids [W,window] and logprobs [W,window-1]; the first token of a window has no prediction and
    must be null."""
    with open(path, encoding="utf-8") as file:
        reply = json.load(file)
    ids, logprobs = reply["ids"], reply["logprobs"]
    if len(ids) != len(logprobs) or len(ids) == 0 or len(ids) % window:
        raise SystemExit(
            f"{path}: {len(ids)} ids and {len(logprobs)} logprobs are not whole windows of {window}"
        )
    for i, value in enumerate(logprobs):
        if (value is None) != (i % window == 0):
            raise SystemExit(
                f"{path}: logprobs[{i}] is {value}; only the first of each window of {window} is null"
            )
    rows = range(0, len(ids), window)
    return (
        torch.tensor([ids[r : r + window] for r in rows]),
        torch.tensor([logprobs[r + 1 : r + window] for r in rows], dtype=torch.float64),
    )


def compare(name, logits_of, path, window):
    """Prints the largest difference; logits_of(ids [1,window]) gives logits [1,window,V]. Returns
    the exit status."""
    ids, ours = read(path, window)
    worst, total, theirs_total = 0.0, 0.0, 0.0
    with torch.no_grad():
        for row, want in zip(ids, ours):
            logits = logits_of(row[None])[0, :-1].double()
            theirs = logits.log_softmax(-1).gather(-1, row[1:, None])[:, 0]
            difference = float((theirs - want).abs().max())
            worst = difference if not difference <= worst else worst
            total, theirs_total = total - float(want.sum()), theirs_total - float(theirs.sum())
    count = ours.numel()
    print(
        f"{name}: {count} predictions, nats per token {total / count:.6f} here and {theirs_total / count:.6f} there, "
        f"largest difference {worst:.2e} (allowed {TOLERANCE:.0e})"
    )
    return 0 if worst <= TOLERANCE else 1
