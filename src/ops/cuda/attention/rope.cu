// Rotary positions as ops/cpu/attention/rope.cpp has them; the angles are taken there.
#include <algorithm>

#include "ops/cpu/functions.h"
#include "ops/cuda/kernel.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

constexpr int kRopeThreads = 128;

// What a launch turns: pairs (c, c + half) of heads of `width` numbers.
struct Turn {
  const float* table;   // [U, 2 * half]: cosines, then sines
  const int32_t* slot;  // [N]
  int width, half;
  float sign;  // turning back takes -sin
};
// Tensors that turn alike, as queries and keys do: blockIdx.y says which.
constexpr int kMostTurned = 2;
template <class A>
struct Turned {
  Rows<A> x[kMostTurned];
  int pairs[kMostTurned];  // of a row; in steps where it is turned in steps
};

// (a, b) -> (a cos - b sin, b cos + a sin).  x [N, H*C]; a block turns `pairs` pairs of a row
template <class A>
__global__ void rope_rows(const __grid_constant__ Turned<A> all, Turn turn) {
  begin_in_turn();
  const Rows<A> x = all.x[blockIdx.y];
  const int pairs = all.pairs[blockIdx.y];
  const float* cosine = turn.table + int64_t{turn.slot[blockIdx.x]} * 2 * turn.half;
  A* row = x.row(blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += static_cast<int>(blockDim.x)) {
    const int c = i % turn.half;
    A *low = row + i / turn.half * turn.width + c, *high = low + turn.half;
    const float a = load(low), b = load(high), cs = cosine[c],
                sn = turn.sign * cosine[turn.half + c];
    store(low, a * cs - b * sn);
    store(high, b * cs + a * sn);
  }
}
// The same, kStep pairs at a time.
template <class A>
__global__ void rope_steps(const __grid_constant__ Turned<A> all, Turn turn) {
  begin_in_turn();
  const Rows<A> x = all.x[blockIdx.y];
  const int steps = all.pairs[blockIdx.y];
  const float* cosine = turn.table + int64_t{turn.slot[blockIdx.x]} * 2 * turn.half;
  const int steps_of_head = turn.half / kStep;
  A* row = x.row(blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < steps; i += static_cast<int>(blockDim.x)) {
    const int c = i % steps_of_head * kStep;
    A *low = row + i / steps_of_head * turn.width + c, *high = low + turn.half;
    float a[kStep], b[kStep], cs[kStep], sn[kStep];
    load_step(a, low);
    load_step(b, high);
    load_step(cs, cosine + c);
    load_step(sn, cosine + turn.half + c);
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      const float was = a[k], by = turn.sign * sn[k];
      a[k] = was * cs[k] - b[k] * by;
      b[k] = b[k] * cs[k] + was * by;
    }
    store_step(low, a);
    store_step(high, b);
  }
}

bool turns_in_steps(const Tensor& x, int64_t head_width, const Turn& turn) {
  return turn.half % kStep == 0 && head_width % kStep == 0 && rows_in_steps({x});
}

// All in steps, or none.
void turn_together(Run& run, std::span<const Tensor> all, int64_t head_width, const Turn& turn) {
  const bool steps = turns_in_steps(all[0], head_width, turn);
  with_float(all[0].dtype, [&](auto of_x) {
    using A = decltype(of_x);
    Turned<A> turned{};
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t pairs = all[i].cols() / head_width * turn.half;
      turned.x[i] = Rows<A>(all[i]);
      turned.pairs[i] = static_cast<int>(steps ? pairs / kStep : pairs);
    }
    launch(run, steps ? rope_steps<A> : rope_rows<A>,
           dim3(static_cast<unsigned>(all[0].rows()), static_cast<unsigned>(all.size())),
           dim3(kRopeThreads), 0, turned, turn);
  });
}

}  // namespace

CosSinTable cos_sin_table(Run& run, Arena& memory, std::span<const int32_t> positions,
                          const RopeFrequencies& table) {
  if (memory.device() == nullptr) return cpu::cos_sin_table(run.on_cpu(), memory, positions, table);
  Arena host(1);
  const CosSinTable made = cpu::cos_sin_table(run.on_cpu(), host, positions, table);
  const auto put = [&](Tensor t) {
    t.data = memory.put(std::span(static_cast<const char*>(t.data), static_cast<size_t>(t.bytes())))
                 .data();
    return t;
  };
  return {put(made.table), put(made.slot)};
}

void rope_acc(Run& run, List<Tensor> all, int64_t head_width, const CosSinTable& cos_sin,
              bool inverse) {
  const int64_t rotary = cos_sin.table.cols(), half = rotary / 2;
  check_rope(all, head_width, cos_sin);
  const Turn turn{cos_sin.table.as<float>(), cos_sin.slot.as<int32_t>(),
                  static_cast<int>(head_width), static_cast<int>(half), inverse ? -1.0f : 1.0f};
  const std::span<const Tensor> tensors = all;
  for (size_t at = 0, end = 0; at < tensors.size(); at = end) {
    const auto like_first = [&](const Tensor& x) {
      return x.dtype == tensors[at].dtype &&
             turns_in_steps(x, head_width, turn) == turns_in_steps(tensors[at], head_width, turn);
    };
    for (end = at + 1; end < std::min(tensors.size(), at + kMostTurned); ++end)
      if (!like_first(tensors[end])) break;
    turn_together(run, tensors.subspan(at, end - at), head_width, turn);
  }
}

}  // namespace moe::ops::cuda
