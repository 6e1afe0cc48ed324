// Formulas: transformers:modeling_rope_utils.py, in double. linear: Kaiokendev 2023; llama3:
// Llama 3.1's release; yarn: arXiv 2309.00071, section 3.2; proportional: Gemma 4's release;
// longrope: arXiv 2402.13753, with one rule for all positions of a text, as its makers run it.
#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <utility>
#include <vector>
#include "core/error.h"

namespace moe {
namespace {

// Long waves are stretched by `factor`, short ones stay; between them, where there is anything
// between them, the share of the stretched one grows with the wavelength.
double llama3(double f, const RopeScaling& s) {
  // within the original context
  const double turns = static_cast<double>(s.original_context) * f / (2 * std::numbers::pi);
  if (turns < s.low_freq_factor) return f / s.factor;
  if (turns >= s.high_freq_factor) return f;
  const double kept =
      (turns - s.low_freq_factor) / (static_cast<double>(s.high_freq_factor) - s.low_freq_factor);
  return (1 - kept) * f / s.factor + kept * f;
}

// The c, no whole number, whose pair turns `rotations` times within the original context.
double pair_of(double rotations, int64_t head_width, double theta, const RopeScaling& s) {
  return static_cast<double>(head_width) *
         std::log(static_cast<double>(s.original_context) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(theta));
}

// Pairs before the ramp keep their frequency, those behind it are stretched by `factor`.
struct Ramp {
  double first, last;

  double stretched(int64_t c) const {
    return std::clamp((static_cast<double>(c) - first) / (last - first), 0.0, 1.0);
  }
};
Ramp yarn_ramp(int64_t head_width, double theta, const RopeScaling& s) {
  Ramp ramp{pair_of(s.beta_fast, head_width, theta, s), pair_of(s.beta_slow, head_width, theta, s)};
  if (s.truncate) ramp = {std::floor(ramp.first), std::ceil(ramp.last)};
  ramp = {std::max(ramp.first, 0.0), std::min(ramp.last, static_cast<double>(head_width - 1))};
  if (ramp.first == ramp.last) ramp.last += 0.001;
  return ramp;
}

}  // namespace

int64_t turning_pairs(const RopeScaling& s, int64_t head_width) {
  return static_cast<int64_t>(static_cast<double>(s.share) * static_cast<double>(head_width)) / 2;
}

ops::RopeFrequencies rope_frequencies(int64_t head_width, float theta, const RopeScaling& scaling,
                                      bool stretched) {
  using Kind = RopeScaling::Kind;
  const double base = theta, factor = scaling.factor;
  const Ramp ramp = scaling.kind == Kind::yarn ? yarn_ramp(head_width, base, scaling) : Ramp{0, 1};
  ops::RopeFrequencies table;
  for (int64_t c = 0; c < head_width / 2; ++c) {
    const double f =
        std::pow(base, -2.0 * static_cast<double>(c) / static_cast<double>(head_width));
    switch (scaling.kind) {
      case Kind::none:
      case Kind::dynamic: table.frequency.push_back(f); break;
      case Kind::linear: table.frequency.push_back(f / factor); break;
      case Kind::llama3: table.frequency.push_back(llama3(f, scaling)); break;
      case Kind::yarn:
        table.frequency.push_back(f / factor * ramp.stretched(c) + f * (1 - ramp.stretched(c)));
        break;
      case Kind::proportional:
        table.frequency.push_back(c < turning_pairs(scaling, head_width) ? f / factor : 0);
        break;
      case Kind::longrope: {
        const std::vector<float>& of = stretched ? scaling.long_factors : scaling.short_factors;
        table.frequency.push_back(f / static_cast<double>(of.at(static_cast<size_t>(c))));
        break;
      }
    }
  }
  if (scaling.kind == Kind::yarn || scaling.kind == Kind::longrope)
    table.factor = stretched ? scaling.long_attention_factor : scaling.attention_factor;
  return table;
}

bool stretches(const RopeScaling& s, int64_t limit) {
  return s.kind == RopeScaling::Kind::longrope && limit > s.original_context;
}

ops::CosSinTable cos_sin_of(Run& run, Arena& memory, const Batch& batch,
                            const ops::RopeFrequencies& usual,
                            const ops::RopeFrequencies& stretched,
                            const std::vector<bool>& stretch) {
  const auto all = [&](bool value) {
    return std::find(stretch.begin(), stretch.end(), !value) == stretch.end();
  };
  if (all(false)) return ops::cos_sin_table(run, memory, batch.positions, usual);
  if (all(true)) return ops::cos_sin_table(run, memory, batch.positions, stretched);
  Run& here = run.device == nullptr ? run : run.on_cpu();
  const ArenaScope scope(here.scratch);
  const ops::CosSinTable a = ops::cos_sin_table(here, here.scratch, batch.positions, usual),
                         b = ops::cos_sin_table(here, here.scratch, batch.positions, stretched);
  // The rows of both, one below the other; a row's place is the same in each.
  const int64_t count = a.table.rows(), width = a.table.cols();
  std::vector<float> both(a.table.as<float>(), a.table.as<float>() + count * width);
  both.insert(both.end(), b.table.as<float>(), b.table.as<float>() + count * width);
  std::vector<int32_t> slot(a.slot.as<int32_t>(), a.slot.as<int32_t>() + a.slot.numel());
  for (size_t s = 0; s < stretch.size(); ++s)
    for (int64_t n = batch.bounds[s]; stretch[s] && n < batch.bounds[s + 1]; ++n)
      slot[static_cast<size_t>(n)] += static_cast<int32_t>(count);
  const auto put = [&](const auto& from, DType dtype, std::initializer_list<int64_t> shape) {
    return Tensor(memory.put(std::span(from)).data(), dtype, shape);
  };
  return {put(std::as_const(both), DType::f32, {2 * count, width}),
          put(std::as_const(slot), DType::i32, {std::ssize(slot)})};
}

ops::CosSinTable grown_cos_sin(Run& run, Arena& memory, const Batch& batch,
                               const ops::RopeFrequencies& usual, const QueryGrowth& growth) {
  Run& here = run.device == nullptr ? run : run.on_cpu();
  const ArenaScope scope(here.scratch);
  const ops::CosSinTable plain = ops::cos_sin_table(here, here.scratch, batch.positions, usual);
  const int64_t count = plain.table.rows(), width = plain.table.cols();
  const std::vector<int32_t> slot(plain.slot.as<int32_t>(),
                                  plain.slot.as<int32_t>() + plain.slot.numel());
  std::vector<int32_t> position(static_cast<size_t>(count));
  for (size_t n = 0; n < slot.size(); ++n)
    position[static_cast<size_t>(slot[n])] = batch.positions[n];
  std::vector<float> grown(plain.table.as<float>(), plain.table.as<float>() + count * width);
  for (size_t i = 0; i < grown.size(); ++i) {
    const int64_t at = position[i / static_cast<size_t>(width)],
                  steps = (growth.where_still ? at + 1 : at) / growth.context;
    grown[i] *= static_cast<float>(1 + static_cast<double>(growth.beta) *
                                           std::log1p(static_cast<double>(steps)));
  }
  const auto put = [&](const auto& from, DType dtype, std::initializer_list<int64_t> shape) {
    return Tensor(memory.put(std::span(from)).data(), dtype, shape);
  };
  return {put(std::as_const(grown), DType::f32, {count, width}),
          put(slot, DType::i32, {std::ssize(slot)})};
}

ops::RopeFrequencies still_frequencies(int64_t head_width) {
  return {.frequency = std::vector<double>(static_cast<size_t>(head_width / 2), 0.0)};
}

float score_factor(const RopeScaling& s) {
  if (s.kind != RopeScaling::Kind::yarn || s.factor <= 1) return 1;
  const double m =
      0.1 * static_cast<double>(s.score_mscale) * std::log(static_cast<double>(s.factor)) + 1;
  return static_cast<float>(m * m);
}

namespace {

void validate_longrope(const RopeScaling& s) {
  const auto positive = [](float x) { return x > 0 && std::isfinite(x); };
  if (s.short_factors.size() != s.long_factors.size())
    fail_usage("longrope has {} factors of short texts and {} of long ones; it needs as many",
               s.short_factors.size(), s.long_factors.size());
  for (const std::vector<float>* factors : {&s.short_factors, &s.long_factors})
    if (!std::all_of(factors->begin(), factors->end(), positive))
      fail_usage("a factor of longrope is not above 0 and finite; each divides a frequency");
  if (!positive(s.attention_factor) || !positive(s.long_attention_factor))
    fail_usage("longrope multiplies cosines by {} and {}; both must be above 0", s.attention_factor,
               s.long_attention_factor);
}

}  // namespace

void validate(const RopeScaling& s) {
  using Kind = RopeScaling::Kind;
  if (s.kind == Kind::none) return;
  if (!(s.factor > 0 && std::isfinite(s.factor)))
    fail_usage("the factor of the rotary scaling is {}; it must be above 0", s.factor);
  if (s.kind == Kind::linear || s.kind == Kind::dynamic) return;
  if (s.kind == Kind::proportional) {
    if (!(s.share > 0 && s.share <= 1))
      fail_usage("a share of {} of each head turns; it must be above 0 and at most 1", s.share);
    return;
  }
  if (s.kind != Kind::longrope && !s.short_factors.empty())
    fail_usage("factors of each pair belong to rotary scaling of the kind longrope alone");
  if (s.original_context < 1)
    fail_usage("the rotary scaling's original context is {}; it must be at least 1",
               s.original_context);
  if (s.kind == Kind::llama3 &&
      !(s.low_freq_factor > 0 && s.high_freq_factor >= s.low_freq_factor &&
        std::isfinite(s.high_freq_factor)))
    fail_usage(
        "the rotary scaling goes from low_freq_factor {} to high_freq_factor {}; the second must "
        "be "
        "at least the first, and that above 0",
        s.low_freq_factor, s.high_freq_factor);
  if (s.kind == Kind::longrope) return validate_longrope(s);
  if (s.kind != Kind::yarn) return;
  if (!(s.beta_slow > 0 && s.beta_fast >= s.beta_slow && std::isfinite(s.beta_fast)))
    fail_usage(
        "the rotary scaling goes from beta_slow {} to beta_fast {}; it must rise from above 0",
        s.beta_slow, s.beta_fast);
  if (!(s.attention_factor > 0 && std::isfinite(s.attention_factor)))
    fail_usage("the rotary scaling's attention_factor is {}; it must be above 0",
               s.attention_factor);
  if (!(s.score_mscale >= 0 && std::isfinite(s.score_mscale)))
    fail_usage("the rotary scaling's mscale_all_dim is {}; it must be at least 0", s.score_mscale);
}

}  // namespace moe
