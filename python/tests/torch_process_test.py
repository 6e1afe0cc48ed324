"""Layers beyond one process: torch.compile's cache on the disk, exported programs, and children of
fork()."""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import moe_cpp.torch as mt  # noqa: E402
from moe_cpp.torch._engine import Engine  # noqa: E402


def python(script: str, *arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Prints how many of its graphs were found in the cache.
_COMPILED = """
import json, sys, torch, moe_cpp.torch as mt
from torch._dynamo.utils import counters
torch.set_num_threads(1)
torch.manual_seed(0)
layer = mt.MoE(16, 24, 8, **json.loads(sys.argv[1])).eval()
x = torch.randn(9, 16)
with torch.no_grad():
    want = layer(x)
    assert torch.allclose(torch.compile(layer, fullgraph=True)(x), want, atol=1e-6)
print(counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++")
def test_processes_share_a_cache_of_compiled_graphs(tmp_path: Path) -> None:
    """A graph is found again for the same options, and for no others."""
    mixtral, other = {"recipe": "mixtral", "top_k": 2}, {"recipe": "mixtral", "top_k": 4}
    found = [
        int(python(_COMPILED, json.dumps(options), TORCHINDUCTOR_CACHE_DIR=str(tmp_path)))
        for options in (mixtral, other, mixtral)
    ]
    assert found[:2] == [0, 0] and found[2] > 0


_EXPORTED = """
import sys, torch, moe_cpp.torch as mt
torch.set_num_threads(1)
x, want = torch.load(sys.argv[2])
other = mt.MoE(16, 24, 8, 4, "mixtral")
program = torch.export.load(sys.argv[1]).module()
for _ in range(2):
    assert torch.equal(program(x), want)
"""


def test_an_exported_program_runs_where_its_layer_was_not_made(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    layer, x = mt.MoE(16, 24, 8, 2, "mixtral").eval(), torch.randn(9, 16)
    program, tensors = tmp_path / "program.pt2", tmp_path / "tensors.pt"
    torch.export.save(torch.export.export(layer, (x,)), program)
    torch.save((x, layer(x).detach()), tensors)
    python(_EXPORTED, program, tensors)


def test_an_exported_program_takes_its_weights_with_it() -> None:
    torch.set_num_threads(1)
    layer, x, file = mt.MoE(16, 24, 8, 2, "mixtral").eval(), torch.randn(9, 16), io.BytesIO()
    key, want = layer.experts.engine.key, layer(x).detach()
    torch.export.save(torch.export.export(layer, (x,)), file)
    del layer
    gc.collect()
    assert key not in Engine._known
    file.seek(0)
    program = torch.export.load(file).module()
    with torch.no_grad():
        assert torch.equal(program(x), want)
        engine, bound = Engine._restored[key], dict(Engine._restored[key]._bound)
        assert torch.equal(program(x), want)
    assert engine._bound == bound and Engine._restored[key] is engine  # nothing is packed anew
    weights = [weakref.ref(tensor.untyped_storage()) for tensor in program.state_dict().values()]
    gone = weakref.ref(engine)
    assert len(weights) == 3 and all(weight() is not None for weight in weights)
    del program, engine
    torch.compiler.reset()
    gc.collect()
    assert all(weight() is None for weight in weights)
    assert gone() is None and key not in Engine._restored


def test_a_layer_that_is_made_while_its_key_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"recipe": "mixtral", "top_k": 2, "hidden_size": 18, "experts": 8}
    key, init, made = Engine(options).key, Engine.__init__, []

    def slow(self: Engine, *arguments: Any, key: str | None = None) -> None:
        init(self, *arguments, key=key)
        if key is not None:
            made.append(Engine(options))  # as another thread may

    monkeypatch.setattr(Engine, "__init__", slow)
    found = Engine.of(key)
    assert made[0].key == key and found is made[0] and Engine.of(key) is found
    assert key not in Engine._restored


def test_an_engine_is_found_once_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"recipe": "mixtral", "top_k": 2, "hidden_size": 16, "experts": 8}
    whole, register = set(vars(Engine(options))), Engine._register

    def looked_at(self: Engine) -> str:
        assert set(vars(self)) == whole - {"key"}
        return register(self)

    monkeypatch.setattr(Engine, "_register", looked_at)
    Engine(options)


def test_a_compiled_graph_outlives_its_layer() -> None:
    layer, x = mt.MoE(16, 24, 8, 2), torch.randn(9, 16, requires_grad=True)
    layer(x).sum().backward()
    want, x.grad = x.grad, None
    y = torch.compile(layer, backend="aot_eager")(x)
    del layer
    torch.compiler.reset()
    gc.collect()
    y.sum().backward()
    assert torch.allclose(x.grad, want, atol=1e-6)


def test_keys_say_what_an_engine_is(tmp_path: Path) -> None:
    options = {"recipe": "mixtral", "top_k": 2, "hidden_size": 16, "experts": 8}
    first, second = Engine(options), Engine(dict(reversed(options.items())))
    assert first.key.rpartition("#")[0] == second.key.rpartition("#")[0]
    assert Engine.of(first.key) is first and Engine.of(second.key) is second
    assert Engine(options | {"top_k": 4}).key.rpartition("#")[0] not in first.key
    file = tmp_path / "stages.json"
    keys = []
    for base in ("mixtral", "olmoe"):
        file.write_text(json.dumps({"base": base}), encoding="utf-8")
        engine = Engine({"recipe": "custom", "top_k": 2, "hidden_size": 16, "stages": file})
        keys.append(engine.key)
    assert keys[0] != keys[1]
    restored = Engine.of(keys[0])
    assert Engine.of(keys[0]) is restored and restored.key == keys[0]
    assert restored.options["stages"] == {"base": "mixtral"}


# Its child would wait for threads of OpenMP that only its parent has.
_FORKED = """
import os, signal, sys, torch, moe_cpp.torch as mt
torch.set_num_threads(2)
torch.manual_seed(0)
(torch.randn(1000, 1000) @ torch.randn(1000, 1000)).exp().sum()
layer = mt.MoE(256, 256, 8, 2).eval()
x = torch.randn(512, 256)
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        with torch.no_grad():
            return layer(x[128 * i : 128 * (i + 1)])
child = os.fork()
if child == 0:
    signal.alarm(30)
    torch.no_grad().__enter__()
    mt.MoE(256, 256, 8, 2)(x), layer(x)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
ours = torch.cat(list(torch.utils.data.DataLoader(Data(), num_workers=2, timeout=60)))
with torch.no_grad():
    assert torch.allclose(ours.view(512, 256), layer(x), atol=1e-6)
"""


def test_layers_in_forked_processes() -> None:
    python(_FORKED)


# Threads that the child has none of: one uses a layer, one makes layers, one is behind a step.
_FORKED_AT_WORK = """
import os, signal, threading, torch, moe_cpp, moe_cpp.torch as mt
from moe_cpp.torch import _engine
torch.set_num_threads(1)
layer, x = mt.MoE(16, 24, 8, 2), torch.randn(9, 16)
go_on, threads = threading.Event(), []
def hold(context, inside):
    with context:
        inside.set()
        go_on.wait()
for context in (
    layer.experts.engine._busy.take(), _engine.Engine._known_lock, _engine._FORGETFUL_LOCK
):
    inside = threading.Event()
    threads.append(threading.Thread(target=hold, args=(context, inside)))
    threads[-1].start()
    inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    other = mt.MoE(16, 24, 8, 2)
    optimizer = torch.optim.AdamW(other.parameters(), fused=True)
    other(x).sum().backward()
    optimizer.step()
    try:
        layer(x)
    except moe_cpp.Error as error:
        print(error, flush=True)
        os._exit(0)
    os._exit(3)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
go_on.set()
for thread in threads:
    thread.join()
assert code == 0
"""


def test_a_layer_that_was_at_work_is_not_in_the_way_of_others() -> None:
    assert "this layer was at work when fork() copied the process" in python(_FORKED_AT_WORK)
