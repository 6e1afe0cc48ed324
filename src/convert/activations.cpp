// ATopK marking as CMoE does it (arXiv 2502.04416, section 3.2; github JarvisPei/CMoE,
// CMoE_utils.py, which divides by norms), in integers and bits where its code has bf16 matrices.
#include "convert/activations.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/threads.h"

namespace moe {
namespace {

constexpr int64_t kChunk = 512;  // tokens whose scaled products stand in memory together

template <class T>
double norm_of(const T* row, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += static_cast<double>(to_f32(row[i])) * static_cast<double>(to_f32(row[i]));
  return std::sqrt(sum);
}

float inverse(double norm) { return norm > 0 ? static_cast<float>(1 / norm) : 0.0f; }

std::vector<float> inverse_norms(Run& run, Tensor rows) {
  std::vector<float> out(static_cast<size_t>(rows.rows()));
  parallel_for(run.threads, rows.rows(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      out[static_cast<size_t>(r)] =
          inverse(rows.dtype == DType::bf16 ? norm_of(rows.row<bf16>(r), rows.cols())
                                            : norm_of(rows.row<float>(r), rows.cols()));
  });
  return out;
}

// out[n,f] = in[first + n, f] * by_row[first + n] * by_column[f]
template <class T>
void scale_rows(Tensor out, Tensor in, int64_t first, int64_t begin, int64_t end,
                const std::vector<float>& by_row, const std::vector<float>& by_column) {
  for (int64_t n = begin; n < end; ++n) {
    const T* from = in.row<T>(first + n);
    float* to = out.row<float>(n);
    const float factor = by_row[static_cast<size_t>(first + n)];
    for (int64_t f = 0; f < in.cols(); ++f)
      to[f] = to_f32(from[f]) * factor * by_column[static_cast<size_t>(f)];
  }
}

void scaled(Run& run, Tensor out, Tensor in, int64_t first, const std::vector<float>& by_row,
            const std::vector<float>& by_column) {
  parallel_for(run.threads, out.rows(), 16, [&](int64_t begin, int64_t end, int) {
    if (in.dtype == DType::bf16) scale_rows<bf16>(out, in, first, begin, end, by_row, by_column);
    else scale_rows<float>(out, in, first, begin, end, by_row, by_column);
  });
}

// The indices of the `count` largest |x|, the largest first.
template <class T>
void strongest(const T* x, int64_t n, std::vector<std::pair<float, int32_t>>& best, size_t count) {
  best.clear();
  float least = -1;
  for (int64_t f = 0; f < n; ++f) {
    const float size = std::fabs(to_f32(x[f]));
    if (!(size > least)) continue;
    if (best.size() == count) best.pop_back();
    auto at = best.end();
    while (at != best.begin() && (at - 1)->first < size) --at;
    best.insert(at, {size, static_cast<int32_t>(f)});
    if (best.size() == count) least = best.back().first;
  }
}

// A word of bits belongs to one thread: shares begin at multiples of 64 tokens.
void mark_rows(Run& run, Marks& marks, Tensor hidden, int64_t first, int64_t count) {
  parallel_for(run.threads, (hidden.rows() + 63) / 64, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<std::pair<float, int32_t>> best;
    for (int64_t n = begin * 64; n < std::min(end * 64, hidden.rows()); ++n) {
      if (hidden.dtype == DType::bf16)
        strongest(hidden.row<bf16>(n), hidden.cols(), best, static_cast<size_t>(count));
      else strongest(hidden.row<float>(n), hidden.cols(), best, static_cast<size_t>(count));
      for (const auto& [size, neuron] : best) marks.set(neuron, first + n);
    }
  });
}

}  // namespace

void run_dense(Run& run, Activations& a, ExpertBank& dense) {
  const std::array<int64_t, 2> all = {0, a.x.rows()};
  const int64_t tokens = a.x.rows(), width = dense.width();
  a.gate = dense.gate.present() ? run.saved.alloc(a.x.dtype, {tokens, width}) : Tensor{};
  a.up = run.saved.alloc(a.x.dtype, {tokens, width});
  if (dense.gate.present())
    ops::matmul_forward(run, {{dense.gate, a.gate}, {dense.up, a.up}}, a.x, all);
  else ops::matmul_forward(run, a.up, a.x, dense.up, all);
  if (dense.gate_bias.present()) ops::bias_forward_acc(run, a.gate, dense.gate_bias, {}, all);
  if (dense.up_bias.present()) ops::bias_forward_acc(run, a.up, dense.up_bias, {}, all);
  a.hidden = run.saved.alloc(a.x.dtype, {tokens, width});
  ops::ffn_act_forward(run, a.hidden, a.gate, a.up, {}, dense.act);
  a.out = run.saved.alloc(DType::f32, {tokens, a.x.cols()});
  ops::matmul_forward(run, a.out, a.hidden, dense.down, all);
  if (dense.down_bias.present()) ops::bias_forward_acc(run, a.out, dense.down_bias, {}, all);
}

Marks::Marks(int64_t neurons, int64_t tokens)
    : neurons_(neurons),
      tokens_(tokens),
      words_((tokens + 63) / 64),
      bits_(static_cast<size_t>(neurons_ * words_), 0) {}

int64_t Marks::rate(int64_t neuron) const {
  int64_t sum = 0;
  for (uint64_t word : of(neuron)) sum += std::popcount(word);
  return sum;
}

int64_t Marks::distance(int64_t a, int64_t b) const {
  const auto x = of(a), y = of(b);
  int64_t sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += std::popcount(x[i] ^ y[i]);
  return sum;
}

Marks mark_strongest(Run& run, const Activations& a, const ExpertBank& dense, Profile profile,
                     int64_t count) {
  Marks marks(a.neurons(), a.tokens());
  if (profile == Profile::raw) {
    mark_rows(run, marks, a.hidden, 0, count);
    return marks;
  }
  const std::vector<float> of_x = inverse_norms(run, a.x),
                           of_up = inverse_norms(run, dense.up.value.at(0));
  const std::vector<float> of_gate =
      a.gate.empty() ? std::vector<float>() : inverse_norms(run, dense.gate.value.at(0));
  for (int64_t first = 0; first < a.tokens(); first += kChunk) {
    ArenaScope scope(run.scratch);
    const int64_t rows = std::min(kChunk, a.tokens() - first);
    const auto chunk = [&] { return run.scratch.alloc(DType::f32, {rows, a.neurons()}); };
    Tensor up = chunk(), gate;
    scaled(run, up, a.up, first, of_x, of_up);
    if (!a.gate.empty()) scaled(run, gate = chunk(), a.gate, first, of_x, of_gate);
    Tensor hidden = chunk();
    ops::ffn_act_forward(run, hidden, gate, up, {}, dense.act);
    mark_rows(run, marks, hidden, first, count);
  }
  return marks;
}

std::vector<float> slice_mass(Run& run, const Activations& a, std::span<const int32_t> slice_of,
                              int64_t slices) {
  std::vector<float> mass(static_cast<size_t>(a.tokens() * slices), 0);
  const auto add_rows = [&]<class T>(int64_t begin, int64_t end, T) {
    for (int64_t n = begin; n < end; ++n) {
      const T* hidden = a.hidden.row<T>(n);
      float* sums = mass.data() + n * slices;
      for (int64_t f = 0; f < a.neurons(); ++f)
        if (const int32_t s = slice_of[static_cast<size_t>(f)]; s >= 0)
          sums[s] += std::fabs(to_f32(hidden[f]));
    }
  };
  parallel_for(run.threads, a.tokens(), 16, [&](int64_t begin, int64_t end, int) {
    if (a.hidden.dtype == DType::bf16) add_rows(begin, end, bf16{});
    else add_rows(begin, end, float{});
  });
  return mass;
}

}  // namespace moe
