#!/usr/bin/env python3
"""Turns the metrics.jsonl of a training run into what TensorBoard or Weights & Biases show.

    tools/metrics_to_tensorboard.py OUT [--events FOLDER] [--follow]     then: tensorboard --logdir
    OUT/tensorboard
    tools/metrics_to_tensorboard.py OUT --wandb PROJECT [--offline]

OUT is the folder of the run. Every number of a line becomes a scalar of its name at its step:
train/ce, eval/ce (held-out), train/lr, speed/tokens_per_second, routing/max_vio, and of each MoE
layer routing/layer_3/max_vio and its shares as routing/layer_3/load_max and load_min. --follow goes
on as the run writes, until Ctrl-C. Event files want the package tensorboard (neither TensorFlow nor
PyTorch), --wandb the package wandb."""

import argparse
import json
import pathlib
import sys
import time

SPEED = {"seconds", "tokens", "tokens_per_second", "flops_per_second"}
ROUTING = {"max_vio", "dropped"}


def scalars(line):
    """The scalars of a line of metrics.jsonl by name."""
    found = {}
    for key, value in line.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or key == "step":
            continue
        name = (
            f"eval/{key.removeprefix('eval_')}"
            if key.startswith("eval_")
            else f"{'speed' if key in SPEED else 'routing' if key in ROUTING else 'train'}/{key}"
        )
        found[name] = value
    for layer in line.get("layers", []):
        at = f"routing/layer_{layer['layer']}"
        found |= {
            f"{at}/max_vio": layer["max_vio"],
            f"{at}/dropped": layer["dropped"],
            f"{at}/load_max": max(layer["load"]),
            f"{at}/load_min": min(layer["load"]),
        }
    found["train/alarms"] = len(line.get("alarms", []))
    return found


def lines(path, follow):
    """Whole lines as they come; half a line that a run is writing is read once it is whole."""
    with open(path, encoding="utf-8") as file:
        rest = ""
        while True:
            rest += file.readline()
            if rest.endswith("\n"):
                yield json.loads(rest)
                rest = ""
            elif follow:
                time.sleep(1)
            else:
                return


def to_events(folder, entries):
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        sys.exit("event files want the package tensorboard: pip install tensorboard")
    if any(folder.glob("events.out.tfevents.*")):
        sys.exit(
            f"{folder} holds event files already, and TensorBoard would draw both; delete it or name another one with --events"
        )
    writer = EventFileWriter(str(folder))
    start, count = time.time(), 0
    try:
        for line in entries:
            # The time axis is that of the run, its seconds of steps, laid off from now.
            values = [
                Summary.Value(tag=name, simple_value=value) for name, value in scalars(line).items()
            ]
            writer.add_event(
                Event(
                    wall_time=start + line["seconds"],
                    step=line["step"],
                    summary=Summary(value=values),
                )
            )
            count += 1
    except KeyboardInterrupt:
        pass
    writer.close()
    print(f"{count} steps are in {folder}; look at them with: tensorboard --logdir {folder}")


def to_wandb(project, name, offline, entries):
    try:
        import wandb
    except ImportError:
        sys.exit("--wandb wants the package wandb: pip install wandb")
    run = wandb.init(project=project, name=name, mode="offline" if offline else "online")
    try:
        for line in entries:
            run.log(scalars(line), step=line["step"])
    except KeyboardInterrupt:
        pass
    run.finish()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=pathlib.Path, help="the folder of a run")
    parser.add_argument(
        "--events", type=pathlib.Path, help="where event files go; default: OUT/tensorboard"
    )
    parser.add_argument("--wandb", metavar="PROJECT", help="to Weights & Biases instead")
    parser.add_argument(
        "--offline",
        action="store_true",
        help="of --wandb: leave the run in ./wandb, for wandb sync",
    )
    parser.add_argument("--follow", action="store_true", help="go on as the run writes")
    args = parser.parse_args()
    metrics = args.out / "metrics.jsonl"
    if not metrics.is_file():
        sys.exit(f"{metrics} is not there; name the folder of a training run")
    entries = lines(metrics, args.follow)
    if args.wandb:
        to_wandb(args.wandb, args.out.name, args.offline, entries)
    else:
        to_events(args.events or args.out / "tensorboard", entries)


if __name__ == "__main__":
    main()
