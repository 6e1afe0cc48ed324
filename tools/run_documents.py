#!/usr/bin/env python3
"""Runs the commands of Markdown documents, in order, in one shell, and compares what they print
where a document says that it can be compared.

    tools/run_documents.py [--show] FOLDER DOCUMENT...

FOLDER is where the commands run; it must hold what they need, and they may write below out/ only.
What counts:

- a block fenced as ```sh holds commands. Every one must end with status 0; variables last from
block to block.
- `<!-- not run: REASON -->` before such a block leaves it out; the reason is printed.
- `<!-- checked -->` before another block: it is, line for line, what the block of commands above it
prints on stdout. A line `...` stands for any lines.
- `&&` has no place in a block that is run: the shell would pass over a failure in front of it.
- a block that begins with a command (moe, scripts/..., build/...) must be fenced as ```sh, so that
nothing is forgotten.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = re.compile(r"(\$ )?(\./)?(moe|scripts/\S+|build/\S+|git|cmake|pip|apt-get|bench/\S+)\s")
LIMIT = 1800  # seconds after which the commands of a document are taken to hang


class Fault(Exception):
    """What is wrong with a document, beginning with its name and line."""


@dataclass
class Commands:
    """A block of commands, the line of its first one, and what it must print."""

    line: int
    text: str
    expected: list[tuple[int, list[str]]] = field(default_factory=list)


def read_blocks(name: str, text: str) -> tuple[list[Commands], list[tuple[int, str]]]:
    """The blocks to run, and the lines and reasons of those that are not."""
    runs: list[Commands] = []
    skipped: list[tuple[int, str]] = []
    mark, last = (
        "",
        None,
    )  # the comment before a block; the block of commands that an output belongs to
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.startswith("```"):
            if line.strip():
                mark = line.strip()
            at += 1
            continue
        kind, begin = line[3:].strip(), at + 1
        at = begin
        while at < len(lines) and not lines[at].startswith("```"):
            at += 1
        if at == len(lines):
            raise Fault(f"{name}:{begin}: this block does not end")
        body = lines[begin:at]
        where = f"{name}:{begin + 1}"
        reason = re.fullmatch(r"<!-- not run: (.+) -->", mark)
        if kind == "sh" and reason:
            skipped.append((begin + 1, reason[1]))
            last = None
        elif kind == "sh":
            if any("&&" in command for command in body):
                raise Fault(f"{where}: '&&' hides a failure in front of it; write two lines")
            last = Commands(begin + 1, "\n".join(body))
            runs.append(last)
        elif mark == "<!-- checked -->":
            if last is None:
                raise Fault(f"{where}: no commands that were run stand above this checked output")
            last.expected.append((begin + 1, body))
        elif kind == "" and body and COMMAND.match(body[0]):
            raise Fault(f"{where}: these look like commands; fence them as ```sh")
        mark = ""
        at += 1
    if not runs:
        raise Fault(f"{name}: there is no command in it")
    return runs, skipped


def alike(expected: list[str], printed: list[str]) -> bool:
    """Whether the lines are the same, `...` standing for any number of them."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + r"\n"
        for line in expected
    )
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in printed)) is not None


def shell_script(blocks: list[Path]) -> str:
    """Each block is a file whose lines have the numbers they have in the document, so that the
    shell names the place of a failure."""
    parts = ["set -Eeuo pipefail", "trap 'echo $LINENO $? >&3' ERR"]
    for block in blocks:
        folder = block.parent
        parts.append(f'{{ source "{block}"; }} >"{folder}/stdout" 2>"{folder}/stderr" </dev/null')
        parts.append(f'echo $EPOCHREALTIME >"{folder}/done"')
    return "\n".join(parts) + "\n"


def describe_failure(name: str, text: str, line: int, said: str, code: int, stderr: Path) -> str:
    """The place, the line of the document, and the end of what the commands wrote to stderr.
    `said`: the number of the line and its status."""
    why = f"is not done after {LIMIT} s" if code < 0 else "failed"
    if said:
        line, status = (int(word) for word in said.split()[:2])
        why = f"ended with status {status}"
    last = (
        stderr.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
        if stderr.exists()
        else []
    )
    return "\n    ".join([f"{name}:{line}: {why}: {text.splitlines()[line - 1]}", *last])


def run_document(folder: Path, name: str, text: str, show: bool) -> None:
    """Runs and compares; raises Fault at the first thing that is wrong."""
    runs, skipped = read_blocks(name, text)
    with tempfile.TemporaryDirectory() as work:
        blocks = []
        for number, commands in enumerate(runs):
            block = Path(work) / str(number) / name.replace("/", "%")
            block.parent.mkdir()
            block.write_text("\n" * (commands.line - 1) + commands.text + "\n", encoding="utf-8")
            blocks.append(block)
        script = Path(work) / "script"
        script.write_text(shell_script(blocks), encoding="utf-8")
        began = time.time()
        with open(Path(work) / "failure", "w+", encoding="utf-8") as failure:
            # Descriptor 3 is where the trap writes; a group of its own, so that nothing is left
            # running when this ends early.
            shell = subprocess.Popen(
                ["bash", "-c", f'exec 3>"{failure.name}"; source "{script}"'],
                cwd=folder,
                start_new_session=True,
            )
            try:
                code = shell.wait(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                if shell.poll() is None:
                    os.killpg(shell.pid, signal.SIGTERM)
                    shell.wait()
            said = failure.read().strip()
        for commands, block in zip(runs, blocks):
            done = block.parent / "done"
            if not done.exists():
                raise Fault(
                    describe_failure(name, text, commands.line, said, code, block.parent / "stderr")
                )
            ended = float(done.read_text())
            first = next(line for line in commands.text.split("\n") if line.strip())
            print(f"  {ended - began:6.1f} s  {name}:{commands.line}: {first[:110]}", flush=True)
            began = ended
            printed = (
                (block.parent / "stdout").read_text(encoding="utf-8", errors="replace").splitlines()
            )
            if show:
                print("\n".join(f"    {line}" for line in printed), flush=True)
            for line, expected in commands.expected:
                if not alike(expected, printed):
                    change = "\n".join(
                        difflib.unified_diff(
                            expected, printed, "the document", "what was printed", lineterm=""
                        )
                    )
                    raise Fault(f"{name}:{line}: the commands print something else\n{change}")
    for line, reason in skipped:
        print(f"  not run   {name}:{line}: {reason}", flush=True)
    checked = sum(len(commands.expected) for commands in runs)
    print(
        f"{name}: {len(runs)} blocks of commands run, {checked} outputs compared, {len(skipped)} blocks not run",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--show", action="store_true", help="print what each block of commands prints on stdout"
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("documents", nargs="+")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    before = set(os.listdir(arguments.folder))
    for name in arguments.documents:
        try:
            run_document(
                arguments.folder, name, Path(name).read_text(encoding="utf-8"), arguments.show
            )
            left = sorted(set(os.listdir(arguments.folder)) - before - {"out"})
            if left:
                raise Fault(
                    f"{name}: its commands write {', '.join(left)}; everything belongs below out/"
                )
        except Fault as fault:
            print(fault, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
