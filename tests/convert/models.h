// Small models for the tests of convert/.
#pragma once

#include <memory>
#include <vector>

#include "model/model.h"
#include "support/tiny_model.h"

namespace moe::test {

inline ModelConfig dense_config() {
  ModelConfig c;
  c.vocab = 64;
  c.width = 32;
  c.layers = 4;
  c.heads = c.kv_heads = 2;
  c.head_width = 16;
  c.context = 32;
  c.dense_width = c.expert_width = 48;
  c.init = {.std = 0.3f, .cut = 0, .scale_residual = false};
  return c;
}

// Every parameter is drawn, biases and norms too.
inline std::unique_ptr<Model> drawn_model(const ModelConfig& config, uint64_t seed = 3) {
  auto model = fresh(config, seed);
  const RngKey key = RngKey::from_seed(seed).fold(99);
  for (Param* p : model->params())
    if (!p->is_matrix())
      for (int64_t i = 0; i < p->value.numel(); ++i)
        p->value.as<float>()[i] += 0.2f * normal(key, static_cast<uint64_t>(i));
  return model;
}

inline std::vector<int32_t> some_ids(int64_t n = 24, uint64_t seed = 5) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i)
    ids.push_back(
        static_cast<int32_t>(uniform_index(RngKey::from_seed(seed), static_cast<uint64_t>(i), 64)));
  return ids;
}

}  // namespace moe::test
