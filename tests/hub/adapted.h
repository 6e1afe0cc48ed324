// Models with drawn adapters, for the tests of both forms that adapters are kept in.
#pragma once

#include "hub/adapter.h"
#include "hub/configs.h"
#include "support/check.h"

namespace moe::test {

inline std::vector<NamedConfig> every_small_config() {
  std::vector<NamedConfig> all = small_configs();
  for (const NamedConfig& family : small_families()) all.push_back(family);
  return all;
}

inline bool is_adapted(const Param& p) {
  return p.is_matrix() && (p.name.find(".attn.") != std::string::npos ||
                           p.name.find(".ffn.experts.") != std::string::npos ||
                           p.name.find(".ffn.shared.") != std::string::npos);
}

// A model of this config with drawn pairs of rank 2 for all its matrices.
struct Adapted {
  explicit Adapted(const ModelConfig& config) : model(config) {
    model.initialise(3);
    uint64_t seed = 10;
    for (Param* p : model.params()) {
      if (!is_adapted(*p)) continue;
      const Tensor& w = p->value;
      LowRank low{p, {}, {}};
      if (w.rank == 3) {
        low.a = draw(memory, DType::f32, {w.shape[0] * 2, w.cols()}, seed++)
                    .reshape({w.shape[0], 2, w.cols()});
        low.b =
            draw(memory, DType::f32, {w.rows(), 2}, seed++).reshape({w.shape[0], w.shape[1], 2});
      } else {
        low.a = draw(memory, DType::f32, {2, w.cols()}, seed++);
        low.b = draw(memory, DType::f32, {w.rows(), 2}, seed++);
      }
      file.matrices.push_back(low);
    }
    file.rank = 2;
    file.alpha = 5;
  }
  // W + 5/2 B A in double.
  std::vector<double> merged(const LowRank& low) const {
    std::vector<double> w = values(low.base->value);
    const auto a = values(low.a), b = values(low.b);
    const size_t cols = static_cast<size_t>(low.base->value.cols());
    const size_t out =
        low.base->value.rank == 3 ? static_cast<size_t>(low.base->value.shape[1]) : w.size() / cols;
    for (size_t i = 0; i < w.size(); ++i)
      for (size_t k = 0; k < 2; ++k)
        w[i] += 2.5 * b[i / cols * 2 + k] * a[(i / cols / out * 2 + k) * cols + i % cols];
    return w;
  }

  Model model;
  Arena memory;
  AdapterFile file;
};

}  // namespace moe::test
