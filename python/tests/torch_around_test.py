"""Attention and RMS norms of moe_cpp.torch, against PyTorch's own, with their gradients."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import moe_cpp.torch as mt  # noqa: E402
from moe_cpp import Error  # noqa: E402
from moe_cpp.torch._norm import EngineNorm  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def worst(got: Any, want: Any) -> float:
    return float((got.float() - want.float()).detach().norm() / want.float().detach().norm())


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("sizes", [(2, 6, 6, 37, 16, 16), (1, 4, 2, 130, 32, 24), (3, 8, 1, 2, 8, 8)])
def test_attention_is_pytorchs(dtype: Any, bound: float, sizes: tuple[int, ...]) -> None:
    batch, heads, groups, tokens, width, value_width = sizes
    shapes = ((heads, width), (groups, width), (groups, value_width))
    drawn = [torch.randn(batch, tokens, *shape, dtype=dtype).transpose(1, 2) for shape in shapes]
    ours = [t.clone().requires_grad_() for t in drawn]
    theirs = [t.float().requires_grad_() for t in drawn]
    got = mt.attention(*ours)
    want = F.scaled_dot_product_attention(*theirs, is_causal=True, enable_gqa=True)
    assert got.dtype == dtype and got.shape == want.shape
    assert worst(got, want) < bound
    dout = torch.randn_like(got)
    got.backward(dout)
    want.backward(dout.float())
    for mine, other in zip(ours, theirs, strict=True):
        assert worst(mine.grad, other.grad) < 3 * bound


def test_attention_within_a_window() -> None:
    q, k, v = (torch.randn(1, 2, 40, 8) for _ in range(3))
    at = torch.arange(40)
    mask = (at[:, None] >= at) & (at[:, None] - at < 7)
    want = F.scaled_dot_product_attention(q, k, v, mask, scale=0.5)
    assert worst(mt.attention(q, k, v, scale=0.5, window=7), want) < 1e-6


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("groups, tokens", [(8, 1), (2, 1), (2, 3)])
def test_attention_behind_a_cache(dtype: Any, bound: float, groups: int, tokens: int) -> None:
    q = torch.randn(2, 8, tokens, 16, dtype=dtype)
    k, v = (torch.randn(2, groups, 70, width, dtype=dtype) for width in (16, 12))
    at = torch.arange(70)
    mask = at <= at[70 - tokens :, None]
    want = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask, enable_gqa=True)
    assert worst(mt.attention(q, k, v), want) < bound
    with pytest.raises(Error, match="no gradient"):
        mt.attention(q.requires_grad_(), k, v)


def test_attention_says_what_does_not_fit() -> None:
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 3, 5, 8)
    with pytest.raises(Error, match="heads is 4 and kv_heads 3"):
        mt.attention(q, k, k)
    with pytest.raises(Error, match="with as many tokens"):
        mt.attention(q, q[:, :, :4], q[:, :, :4])
    with pytest.raises(Error, match="attention takes"):
        mt.attention(q[0], q[0], q[0])
    with pytest.raises(Error, match="one dtype"):
        mt.attention(q, q.bfloat16(), q)
    with pytest.raises(Error, match="float16; moe_cpp computes in"):
        mt.attention(q.half(), q.half(), q.half())


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm_is_the_formula(offset: float) -> None:
    x = torch.randn(3, 5, 24, requires_grad=True)
    weight = torch.randn(24, requires_grad=True)
    dy = torch.randn(3, 5, 24)
    results = []
    for y in (
        mt.rms_norm(x, weight, 1e-3, offset),
        F.rms_norm(x, (24,), weight + offset, 1e-3),
    ):
        results.append((y, *torch.autograd.grad(y, (x, weight), dy)))
    for got, want in zip(*results, strict=True):
        assert worst(got, want) < 1e-6
    with pytest.raises(Error, match="weight must be"):
        mt.rms_norm(x, weight[:5])


class RMSNorm(torch.nn.Module):  # type: ignore[misc]
    """As transformers' models have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width))
        self.variance_epsilon = 1e-5

    def forward(self, x: Any) -> Any:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class LargeRMSNorm(RMSNorm):
    """Another formula under such a name."""

    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


def test_norms_are_replaced_where_their_numbers_are_the_formulas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moe_cpp.torch._norm._FEWEST_NUMBERS", 0)
    theirs = torch.nn.Sequential(RMSNorm(24), LargeRMSNorm(24), torch.nn.RMSNorm(24, eps=1e-5))
    ours = copy.deepcopy(theirs)
    assert mt.replace_norms(ours) == 2 and mt.replace_norms(ours) == 0
    assert [type(m) is EngineNorm for m in ours] == [True, False, True]
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = torch.randn(9, 24, requires_grad=True)
    dy = torch.randn(9, 24)
    ours(x).backward(dy)
    mine, x.grad = x.grad, None
    theirs(x).backward(dy)
    assert worst(mine, x.grad) < 1e-5
    for got, want in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert worst(got.grad, want.grad) < 1e-5
    # bf16 rows beside f32 weights, as autocast has them: of the type that the norm gives itself
    half = x.detach().bfloat16()
    assert ours[0](half).dtype == theirs[0](half).dtype == torch.float32
    assert worst(ours[0](half), theirs[0](half)) < 1e-2
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(x), ours(x)) and torch.equal(copy.deepcopy(ours)(x), ours(x))
    # in another type than it was asked in: what it was before computes it
    assert torch.equal(copy.deepcopy(ours)[:1].bfloat16()(half), theirs[:1].bfloat16()(half))
    assert mt.restore_norms(ours) == 2
    assert [type(m) for m in ours] == [type(m) for m in theirs]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.func's own
def test_torch_func_is_refused_where_it_would_give_zeros() -> None:
    x, weight = torch.randn(3, 8), torch.ones(8)
    experts = mt.Experts(4, 8, 8)
    chosen, weights = torch.tensor([[0, 1]] * 3), torch.ones(3, 2)
    functions = [
        lambda t: mt.rms_norm(t, weight),
        lambda t: experts(t, chosen, weights),
        lambda t: mt.route(t, "mixtral", top_k=2, training=False).weights,
        lambda t: mt.attention(*(3 * [t.view(1, 1, 3, 8)])),
    ]
    for function in functions:
        with pytest.raises(Error, match="torch.func"):
            torch.func.jvp(function, (x,), (x,))
        with pytest.raises(Error, match="torch.func"):
            torch.func.vmap(function)(x.unsqueeze(0))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.func's own
def test_norms_leave_torch_func_to_pytorch() -> None:
    norm, x = RMSNorm(8), torch.randn(3, 8)
    want = torch.func.jvp(norm, (x,), (x,))
    assert mt.replace_norms(norm) == 1
    torch.testing.assert_close(torch.func.jvp(norm, (x,), (x,)), want)
