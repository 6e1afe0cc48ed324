"""Linear layers that moe_cpp computes in inference, against PyTorch's own of the same weights."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import moe_cpp.torch as mt  # noqa: E402
from moe_cpp import Error  # noqa: E402
from moe_cpp.torch._linear import EngineLinear  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(24, 40)
        self.down = torch.nn.Linear(40, 24, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(torch.nn.functional.silu(self.up(x)))


def worst(got: Any, want: Any) -> float:
    return float((got - want).detach().abs().max() / want.detach().abs().max())


def pair() -> tuple[Any, Any]:
    """The same weights, PyTorch's and ours."""
    theirs = Net()
    ours = copy.deepcopy(theirs)
    assert mt.replace_linears(ours) == 2
    return theirs, ours


@pytest.mark.parametrize("shape", [(24,), (1, 24), (4, 24), (3, 5, 24), (0, 24), (2, 0, 24)])
def test_any_leading_shape(shape: tuple[int, ...]) -> None:
    theirs, ours = pair()
    x = torch.randn(shape)
    with torch.no_grad():
        for _ in range(3):  # weights are laid out at the second use
            torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-6)
    strided = torch.randn(24, 7).t()
    with torch.no_grad():
        torch.testing.assert_close(ours(strided), theirs(strided), rtol=1e-5, atol=1e-6)


def test_the_engine_computes_them_where_no_gradient_follows() -> None:
    theirs, ours = pair()
    x = torch.randn(9, 24)
    called: list[str] = []
    call = ours.up.engine.call

    def counted(function: str, *args: Any) -> None:
        called.append(function)
        call(function, *args)

    ours.up.engine.call = counted
    with torch.no_grad():
        ours(x)
    assert called == ["moe_layer_products"]
    want = theirs(x)
    got = ours(x)  # a gradient may follow: PyTorch's own, to the bit
    assert called == ["moe_layer_products"] and torch.equal(got, want)
    grads = []
    for net in (theirs, ours):
        net(x).square().sum().backward()
        grads.append([p.grad for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_bf16_and_autocast() -> None:
    theirs, ours = pair()
    x = torch.randn(9, 24)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert ours(x).dtype == torch.bfloat16
        assert worst(ours(x).float(), theirs(x).float()) < 2e-2
    precise = theirs(x).detach()
    theirs, ours = theirs.bfloat16(), ours.bfloat16()
    with torch.no_grad():
        half = x.bfloat16()
        errors = [worst(net(half).float(), precise) for net in (theirs, ours)]
        assert ours(half).dtype == torch.bfloat16
        assert errors[1] < 1.5 * errors[0] + 1e-3
        with pytest.raises(RuntimeError, match="dtype"):
            ours(x)


def test_changed_weights_are_seen() -> None:
    theirs, ours = pair()
    x = torch.randn(9, 24)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=0.1, fused=True)  # moves no version
    for _ in range(2):
        with torch.no_grad():
            before = [ours(x) for _ in range(3)][-1]
        ours(x).square().sum().backward()
        optimizer.step()
        theirs.load_state_dict(ours.state_dict())
        with torch.no_grad():
            assert worst(ours(x), theirs(x)) < 1e-5 < worst(ours(x), before)
    with torch.inference_mode():
        made_here = copy.deepcopy(Net())
        mt.replace_linears(made_here)
        made_here(x), made_here(x)
        made_here.load_state_dict(theirs.state_dict())
        assert worst(made_here(x), theirs(x)) < 1e-5


def test_copies_files_and_the_way_back() -> None:
    theirs, ours = pair()
    x = torch.randn(9, 24)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    with torch.no_grad():
        want = ours(x)
        assert torch.equal(copy.deepcopy(ours)(x), want)
        assert torch.equal(torch.load(file, weights_only=False)(x), want)
    assert isinstance(ours.up, torch.nn.Linear) and mt.replace_linears(ours) == 0
    assert mt.restore_linears(ours) == 2 and mt.restore_linears(ours) == 0
    assert vars(ours.up).keys() == vars(theirs.up).keys()
    assert not ours.up._load_state_dict_post_hooks
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


def test_compiles_without_a_break() -> None:
    theirs, ours = pair()
    torch.compiler.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for rows in (9, 4, 6):
            x = torch.randn(rows, 24)
            torch.testing.assert_close(compiled(x), theirs(x), rtol=1e-5, atol=1e-6)


def test_what_stays_pytorchs() -> None:
    class Own(torch.nn.Linear):  # type: ignore[misc]
        pass

    net = torch.nn.Sequential(Own(4, 4), torch.nn.Linear(4, 4, dtype=torch.float64))
    assert mt.replace_linears(net) == 0
    on_meta = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, device="meta"))
    with pytest.raises(Error, match="lies on meta; moe_cpp computes on the CPU"):
        mt.replace_linears(on_meta)
    assert not any(isinstance(m, EngineLinear) for m in on_meta)
