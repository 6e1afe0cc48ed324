"""A model in the children of fork(): it computes there as in its parent, unless a thread that is
not there was using it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_START = """
import os, signal, sys, threading, moe_cpp as moe
model = moe.load(sys.argv[1], threads=2)

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            work()
        except BaseException as error:
            print(error, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

inside, go_on = threading.Event(), threading.Event()

def in_child_during(use, work):
    busy = threading.Thread(target=use)
    busy.start()
    inside.wait()
    code = in_child(work)
    go_on.set()
    busy.join()
    return code
"""

_AFTER_A_CALL = """
text = "the cat sat on the mat " * 100
want = model.score(text).nats_per_token

def work():
    assert model.score(text).nats_per_token == want
    with moe.load(sys.argv[1], threads=2) as other:
        assert other.score(text).nats_per_token == want

assert in_child(work) == 0
work()
"""

_DURING_A_CALL = """
def wait(text):
    inside.set()
    go_on.wait()
    return True

generate = lambda: model.generate("the ", tokens=5, on_text=wait)
assert in_child_during(generate, lambda: model.encode("the ")) == 1
assert in_child(lambda: model.encode("the ")) == 0
"""

# A thread that waits for its turn may have the lock before it says that it is the holder.
_AT_THE_EDGE = """
def begin():
    with model._turns._lock:
        inside.set()
        go_on.wait()

assert in_child_during(begin, lambda: model.encode("the ")) == 0
"""


def run(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _START + script, folder],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_child_computes_after_its_parent_has(folder: Path) -> None:
    run(_AFTER_A_CALL, folder)


def test_what_a_thread_of_the_parent_uses_is_refused(folder: Path) -> None:
    said = run(_DURING_A_CALL, folder)
    assert "this model was at work when fork() copied the process" in said
    assert "'spawn'" in said and "fork while nothing of moe_cpp computes" in said


def test_what_a_thread_of_the_parent_is_about_to_use_is_not_waited_for(folder: Path) -> None:
    run(_AT_THE_EDGE, folder)
