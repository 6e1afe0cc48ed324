"""The optimizer step of a layer: what torch.utils.checkpoint computes twice has the gradients of
what is computed once and is counted once, and the step's memory is of no default dtype."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import moe_cpp.torch as mt  # noqa: E402
from moe_cpp.torch import _step  # noqa: E402

Call = Callable[[Any, Any, int], Any]  # layer, x, place of the micro-batch: y and the balance loss


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    yield
    torch.set_default_dtype(default)


def run(layer: Any, x: Any, **more: Any) -> Any:
    y = layer(x, **more)
    return y, mt.aux_loss(layer, balance=1.0)


def plain(layer: Any, x: Any, _: int) -> Any:
    return run(layer, x)


def step(layer: Any, batches: Any, call: Call, apart: bool) -> dict[str, Any]:
    """Gradients and counts of one step over micro-batches, each with a backward of its own or all
    with one."""
    layer, losses = copy.deepcopy(layer), []
    torch.manual_seed(1)
    for place, batch in enumerate(batches):
        y, balance = call(layer, batch.clone().requires_grad_(), place)
        losses.append(y.square().mean() + balance)
        if apart:
            losses.pop().backward()
    if losses:
        sum(losses).backward()
    found = {name: p.grad for name, p in layer.named_parameters()}
    return found | {"counts": layer.router._counts, "balance": layer.router._balance_counts}


def compare(layer: Any, got: Call, want: Call) -> None:
    """Bit for bit."""
    # Each is uneven in a way of its own, so that the counts so far matter to the balance.
    batches = [torch.randn(2, 30, 16) + torch.randn(16) for _ in range(3)]
    for apart in (True, False):
        wanted = step(layer, batches, want, apart)
        assert wanted["router.weight"].abs().max() > 0
        for name, tensor in step(layer, batches, got, apart).items():
            assert torch.equal(tensor, wanted[name]), f"{name}, apart {apart}"


@pytest.mark.parametrize("keep_generator", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("recipe", ["qwen3-moe", "deepseek-v3"])
def test_checkpointing_has_the_same_gradients(
    recipe: str, reentrant: bool, keep_generator: bool
) -> None:
    layer = mt.MoE(16, 24, 8, 2, recipe)

    def twice(layer: Any, x: Any, _: int) -> Any:
        options = {"use_reentrant": reentrant, "preserve_rng_state": keep_generator}
        return checkpoint(run, layer, x, **options)

    compare(layer, twice, plain)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_of_calls_with_one_seed_or_one_input(reentrant: bool) -> None:
    layer = mt.MoE(16, 24, 8, 2, "qwen3-moe")
    same = torch.randn(2, 30, 16)

    def seeded(layer: Any, x: Any, _: int) -> Any:
        return run(layer, x, seed=7)

    def one_input(layer: Any, x: Any, place: int) -> Any:
        return run(layer, same + 0 * x if place % 2 else x)

    def twice(call: Call) -> Call:
        return lambda layer, x, place: checkpoint(call, layer, x, place, use_reentrant=reentrant)

    for call in (seeded, one_input):
        compare(layer, twice(call), call)


def test_a_layer_that_is_called_several_times_in_a_checkpoint() -> None:
    def several(layer: Any, x: Any, _: int) -> Any:
        y, first = run(layer, x)
        y, second = run(layer, x + y)
        return y, first + second

    def twice(layer: Any, x: Any, place: int) -> Any:
        return checkpoint(several, layer, x, place, use_reentrant=False)

    compare(mt.MoE(16, 24, 8, 2, "qwen3-moe"), twice, several)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_of_what_is_compiled(reentrant: bool) -> None:
    compiled = torch.compile(run, backend="aot_eager")

    def twice(layer: Any, x: Any, _: int) -> Any:
        return checkpoint(compiled, layer, x, use_reentrant=reentrant)

    torch.compiler.reset()
    compare(mt.MoE(16, 24, 8, 2, "qwen3-moe"), twice, plain)


def test_a_call_that_is_looked_for_while_others_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = mt.MoE(16, 24, 8, 2, "qwen3-moe"), torch.randn(9, 16)
    for seed in range(3):
        layer(x, seed=seed)
    seen, alike = layer.router.engine.forwards, _step._Forward.alike
    want = seen[1].before

    def slow(self: Any, other: Any) -> int:
        seen.append(seen[-1])  # as another thread's forward
        return alike(self, other)

    monkeypatch.setattr(_step._Forward, "alike", slow)
    monkeypatch.setattr(_step, "_is_again", lambda: True)
    sums = torch.zeros(8, dtype=torch.int64)
    got = _step.counts_before(layer.router.engine, x, torch.tensor(1), sums)
    assert torch.equal(got, want) and want.sum() > 0 and len(seen) > 3


def test_calls_are_kept_until_the_step_ends() -> None:
    layer = mt.MoE(16, 24, 8, 2, "qwen3-moe")
    for _ in range(3):
        layer(torch.randn(9, 16))
    assert len(layer.router.engine.forwards) == 3
    mt.end_step(layer)
    assert len(layer.router.engine.forwards) == 0


@pytest.mark.parametrize("recipe", ["deepseek-v3", "expert-choice", "qwen3-moe"])
def test_a_step_in_another_default_dtype(recipe: str) -> None:
    """The parameters are of the default dtype, as any module's; the step's memory is not."""
    x, moved = torch.randn(4, 30, 16), []
    weights = mt.MoE(16, 24, 8, 2, recipe).bfloat16().state_dict()
    for dtype in (torch.float32, torch.bfloat16):
        torch.set_default_dtype(dtype)
        layer = mt.MoE(16, 24, 8, 2, recipe)
        layer.load_state_dict(weights)
        assert layer.experts.down_proj.dtype == dtype
        assert all(buffer.dtype == torch.float32 for buffer in layer.buffers())
        for _ in range(3):
            layer(x)
            assert mt.aux_loss(layer).dtype == torch.float32
            mt.end_step(layer)
        moved.append(list(layer.buffers()))
    assert all(torch.equal(a, b) for a, b in zip(*moved, strict=True))
    assert all(buffer.abs().max() > 0 for buffer in moved[0])


def test_routes_in_another_default_dtype() -> None:
    torch.set_default_dtype(torch.bfloat16)
    logits = torch.randn(9, 8, dtype=torch.float32)
    routing = mt.route(logits, "deepseek-v3", 2, expert_groups=1, groups_kept=1)
    assert routing.weights.dtype == torch.float32
    assert mt.route(logits, "gemma4", 2).weights.dtype == torch.float32
