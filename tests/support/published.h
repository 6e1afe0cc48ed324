// Configurations of published models whose totals are known, for tests that count.
#pragma once

#include "model/config.h"

namespace moe::test {

// OLMoE-1B-7B, arXiv 2409.02060, table 1 and its config.json.
inline ModelConfig olmoe_7b() {
  ModelConfig c;
  c.vocab = 50304;
  c.width = 2048;
  c.layers = 16;
  c.heads = c.kv_heads = 16;
  c.head_width = 128;
  c.context = 4096;
  c.qk_norm = QkNorm::full;
  c.expert_width = 1024;
  c.routing.recipe = "olmoe";
  c.routing.experts = 64;
  c.routing.top_k = 8;
  return c;
}

}  // namespace moe::test
