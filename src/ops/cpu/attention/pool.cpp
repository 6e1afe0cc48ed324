// Entries, each of whose numbers is a mean of tokens' (ops.h, pool_tokens_forward). Vectors run
// along the numbers, so that the sums of one are a chain over its tokens in their order.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/pool.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/attention/pool.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// x, and z with its bias, of a token of an entry, in f32, at numbers [begin, end) of the entry.
template <class A>
void LoadToken(float* x, float* z, const PoolCall& call, const PooledToken& token, int64_t begin,
               int64_t end) {
  const DF32 d;
  const int64_t at = token.part * call.width() + begin, all = call.x.cols();
  const float* bias = call.bias + token.place * all + at;
  const auto load = [&](const auto* from_x, const auto* from_z) HWY_ATTR {
    ForColumns(d, end - begin, [&](int64_t c, auto part) HWY_ATTR {
      Store(Load(d, from_x + c, part), d, x + c, part);
      Store(hn::Add(Load(d, from_z + c, part), Load(d, bias + c, part)), d, z + c, part);
    });
  };
  if (token.kept != nullptr) load(token.kept + at, token.kept + all + at);
  else load(call.x.row<A>(token.row) + at, call.z.row<A>(token.row) + at);
}

// z = softmax over the rows; y = sum of z x.  x, z [rows,width]
void SoftmaxRows(float* y, const float* x, float* z, int64_t rows, int64_t width) {
  const DF32 d;
  ForColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
    VF32 most = Load(d, z + c, part);
    for (int64_t j = 1; j < rows; ++j) most = hn::Max(most, Load(d, z + j * width + c, part));
    VF32 total = hn::Zero(d), sum = hn::Zero(d);
    for (int64_t j = 0; j < rows; ++j) {
      const VF32 e = ExpNormal(d, hn::Sub(Load(d, z + j * width + c, part), most));
      total = hn::Add(total, e);
      sum = hn::MulAdd(e, Load(d, x + j * width + c, part), sum);
      Store(e, d, z + j * width + c, part);
    }
    const VF32 share = hn::Div(hn::Set(d, 1.0f), total);
    for (int64_t j = 0; j < rows; ++j)
      Store(hn::Mul(share, Load(d, z + j * width + c, part)), d, z + j * width + c, part);
    Store(hn::Mul(share, sum), d, y + c, part);
  });
}

void PoolEntry(Tensor y, const PoolCall& call, int64_t entry, Arena& arena) {
  const ArenaScope scope(arena);
  const std::vector<PooledToken>& tokens = call.entries[static_cast<size_t>(entry)];
  const int64_t width = call.width(), rows = std::ssize(tokens);
  float *x = PoolRoom(arena, rows * width), *z = PoolRoom(arena, rows * width),
        *made = PoolRoom(arena, width);
  const DF32 d;
  WithFloat(y.dtype, [&](auto kind) HWY_ATTR {
    using A = decltype(kind);
    for (int64_t j = 0; j < rows; ++j)
      LoadToken<A>(x + j * width, z + j * width, call, tokens[static_cast<size_t>(j)], 0, width);
    SoftmaxRows(made, x, z, rows, width);
    A* to = y.row<A>(entry);
    ForColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
      Store(Load(d, made + c, part), d, to + c, part);
    });
  });
}

// Numbers [begin, end) of all entries: dx = s dy, dz = s (x - y) dy; dbias [M,W] += dz
void PoolColumnsBackward(Tensor dx, Tensor dz, float* dbias, Tensor dy, const PoolCall& call,
                         int64_t begin, int64_t end, Arena& arena) {
  const DF32 d;
  const int64_t width = end - begin;
  for (size_t entry = 0; entry < call.entries.size(); ++entry) {
    const ArenaScope scope(arena);
    const std::vector<PooledToken>& tokens = call.entries[entry];
    const int64_t rows = std::ssize(tokens);
    float *x = PoolRoom(arena, rows * width), *s = PoolRoom(arena, rows * width),
          *made = PoolRoom(arena, width);
    WithFloat(dy.dtype, [&](auto kind) HWY_ATTR {
      using A = decltype(kind);
      const A* grad = dy.row<A>(static_cast<int64_t>(entry)) + begin;
      for (int64_t j = 0; j < rows; ++j)
        LoadToken<A>(x + j * width, s + j * width, call, tokens[static_cast<size_t>(j)], begin,
                     end);
      SoftmaxRows(made, x, s, rows, width);
      for (int64_t j = 0; j < rows; ++j) {
        const PooledToken& token = tokens[static_cast<size_t>(j)];
        const int64_t at = token.part * call.width() + begin;
        A *to_x = dx.row<A>(token.row) + at, *to_z = dz.row<A>(token.row) + at;
        float* to_bias = dbias == nullptr ? nullptr : dbias + token.place * call.x.cols() + at;
        ForColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
          const VF32 by = hn::Mul(Load(d, s + j * width + c, part), Load(d, grad + c, part)),
                     slope = hn::Mul(
                         by, hn::Sub(Load(d, x + j * width + c, part), Load(d, made + c, part)));
          Store(by, d, to_x + c, part);
          Store(slope, d, to_z + c, part);
          if (to_bias != nullptr)
            Store(hn::Add(Load(d, to_bias + c, part), slope), d, to_bias + c, part);
        });
      }
    });
  }
}

// A token's x and z, as a state has them.
void KeepToken(float* to, Tensor x, Tensor z, int64_t row) {
  const DF32 d;
  WithFloat(x.dtype, [&](auto kind) HWY_ATTR {
    using A = decltype(kind);
    for (const Tensor* from : {&x, &z}) {
      ForColumns(d, x.cols(), [&](int64_t c, auto part) HWY_ATTR {
        Store(Load(d, from->row<A>(row) + c, part), d, to + c, part);
      });
      to += x.cols();
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(PoolEntry);
HWY_EXPORT(PoolColumnsBackward);
HWY_EXPORT(KeepToken);

constexpr int64_t kPoolColumns = 64;  // numbers of entries that a thread takes at a time

// The tokens of each entry whose last one is in the batch.
std::vector<std::vector<PooledToken>> entries_of(const char* op, int64_t parts, int64_t tokens,
                                                 const Tensor& x, std::span<const int64_t> bounds,
                                                 std::span<const int32_t> positions,
                                                 std::span<float* const> state) {
  std::vector<std::vector<PooledToken>> all;
  for (size_t s = 0; s + 1 < bounds.size(); ++s) {
    if (bounds[s] == bounds[s + 1]) continue;
    const int64_t first = positions[static_cast<size_t>(bounds[s])];
    need(first == 0 || !state.empty(), op, "sequences from their beginning, or states", {{"x", x}});
    for (int64_t n = bounds[s]; n < bounds[s + 1]; ++n) {
      const int64_t position = positions[static_cast<size_t>(n)];
      need(position == first + n - bounds[s], op, "positions that rise by one", {{"x", x}});
      if ((position + 1) % tokens != 0) continue;
      std::vector<PooledToken>& entry = all.emplace_back();
      for (int64_t p = std::max<int64_t>(0, position + 1 - parts * tokens); p <= position; ++p) {
        const int64_t row = bounds[s] + p - first;
        const float* kept = p >= first ? nullptr : state[s] + p % (parts * tokens) * 2 * x.cols();
        // of two parts the first is of the tokens before
        entry.push_back({row, p % tokens, p + tokens <= position ? 0 : parts - 1, kept});
      }
    }
  }
  return all;
}

PoolCall check_pool(const char* op, const Tensor& y, const Tensor& x, const Tensor& z,
                    const Param& bias, int64_t parts, std::span<const int64_t> bounds,
                    std::span<const int32_t> positions, std::span<float* const> state) {
  need((parts == 1 || parts == 2) && x.cols() % parts == 0 && is_float(x) && same_matrix(x, z) &&
           z.dtype == x.dtype && bias.value.rank == 2 && bias.value.dtype == DType::f32 &&
           bias.value.dense() && bias.value.cols() == x.cols() && bounds.size() >= 2 &&
           bounds.front() == 0 && bounds.back() == x.rows() && std::ssize(positions) == x.rows() &&
           (state.empty() || state.size() + 1 == bounds.size()),
       op, "x and z [N,W] f32 or bf16, bias [M,W] f32, N positions, bounds from 0 to N",
       {{"x", x}, {"z", z}, {"bias", bias.value}});
  PoolCall call{x, z, bias.value.as<float>(), parts,
                entries_of(op, parts, bias.value.rows(), x, bounds, positions, state)};
  need(y.empty() ? call.entries.empty()
                 : y.dtype == x.dtype && y.rows() == std::ssize(call.entries) &&
                       y.cols() * parts == x.cols(),
       op, "y [T,C] like x, a row for each entry, x of C or 2 C numbers", {{"y", y}, {"x", x}});
  return call;
}

}  // namespace

void pool_tokens_forward(Run& run, Tensor y, Tensor x, Tensor z, const Param& bias, int64_t parts,
                         std::span<const int64_t> bounds, std::span<const int32_t> positions,
                         std::span<float* const> state) {
  const PoolCall call =
      check_pool("pool_tokens_forward", y, x, z, bias, parts, bounds, positions, state);
  choose_isa();
  parallel_for(run.threads, std::ssize(call.entries), 1,
               [&](int64_t begin, int64_t end, int thread) {
                 for (int64_t entry = begin; entry < end; ++entry) HWY_DYNAMIC_DISPATCH(PoolEntry)
                 (y, call, entry, run.thread_scratch[static_cast<size_t>(thread)]);
               });
  const int64_t kept = call.parts * bias.value.rows();
  for (size_t s = 0; s < state.size(); ++s)
    for (int64_t n = std::max(bounds[s], bounds[s + 1] - kept); n < bounds[s + 1]; ++n)
      HWY_DYNAMIC_DISPATCH(KeepToken)
  (state[s] + positions[static_cast<size_t>(n)] % kept * 2 * x.cols(), x, z, n);
}

void pool_tokens_backward(Run& run, Tensor dx, Tensor dz, Param& bias, Tensor dy, Tensor x,
                          Tensor z, int64_t parts, std::span<const int64_t> bounds,
                          std::span<const int32_t> positions) {
  const char* op = "pool_tokens_backward";
  const PoolCall call = check_pool(op, dy, x, z, bias, parts, bounds, positions, {});
  need(same_matrix(dx, x) && dx.dtype == x.dtype && same_matrix(dz, z) && dz.dtype == z.dtype, op,
       "dx and dz like x", {{"dx", dx}, {"dz", dz}, {"x", x}});
  choose_isa();
  zero(run, dx);
  zero(run, dz);
  if (call.entries.empty()) return;
  float* dbias = nullptr;
  if (!bias.grad.empty()) {
    settle_grad(run, bias);
    dbias = bias.grad.as<float>();
  }
  const int64_t width = call.width();
  parallel_for(run.threads, (width + kPoolColumns - 1) / kPoolColumns, 1,
               [&](int64_t begin, int64_t end, int thread) {
                 for (int64_t i = begin; i < end; ++i) HWY_DYNAMIC_DISPATCH(PoolColumnsBackward)
                 (dx, dz, dbias, dy, call, i * kPoolColumns,
                  std::min(width, (i + 1) * kPoolColumns),
                  run.thread_scratch[static_cast<size_t>(thread)]);
               });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
