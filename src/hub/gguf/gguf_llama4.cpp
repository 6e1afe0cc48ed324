// What sets Llama 4 apart (github ggml-org/llama.cpp, src/models/llama4.cpp, src/llama-graph.cpp
// and conversion/llama4.py): chunks of attention and queries that grow where nothing turns, by
// numbers that stand in llama.cpp's code; norms of queries and keys in all models but those of so
// many experts; every so-many-th layer routes.
#include "hub/gguf/gguf_keys.h"

namespace moe {
namespace {

// Tokens of a chunk, and those before the first step of what queries grow by.
constexpr int64_t kGgufLlama4Tokens = 8192;
constexpr float kGgufLlama4Growth = 0.1f;
constexpr int64_t kGgufLlama4Normless = 128;  // Maverick's
constexpr const char* kGgufLlama4Window = "attention.sliding_window";

}  // namespace

void read_gguf_llama4(GgufKeys& keys, ModelConfig& c) {
  keys.need_number(
      kGgufLlama4Window, static_cast<double>(kGgufLlama4Tokens),
      "llama.cpp cuts attention into chunks of so many tokens, or with 0 into none, as "
      "models without experts have it");
  c.window_chunks = true;
  c.query_growth = {.beta = kGgufLlama4Growth, .context = kGgufLlama4Tokens, .where_still = true};
  c.qk_norm = keys.size("expert_count", 1) == kGgufLlama4Normless ? QkNorm::none : QkNorm::bare;
}

void read_gguf_llama4_layers(GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  const int64_t step = keys.size(row.step, 1);
  if (step > c.layers)
    fail("{}: key \"{}\" is {}, so that none of {} layers routes; some have to", keys.where(),
         keys.name(row.step), step, c.layers);
  if (step > 1)
    for (int64_t i = step - 1; i < c.layers; i += step) c.moe_layers.push_back(i);
  c.weigh_inputs = true;
}

int64_t llama4_step(const ModelConfig& c) {
  int64_t first = 0;
  while (first < c.layers && !c.is_moe(first)) ++first;
  return first + 1;
}

std::string why_not_llama4(const ModelConfig& c) {
  if (!c.window_chunks) return "its attention is not cut into chunks";
  if (c.attention_window != kGgufLlama4Tokens)
    return fmt::format("its attention is cut into chunks of {} tokens, not of {}",
                       c.attention_window, kGgufLlama4Tokens);
  const QueryGrowth& g = c.query_growth;
  if (!g.where_still || g.beta != kGgufLlama4Growth || g.context != kGgufLlama4Tokens)
    return fmt::format("its queries do not grow by {} each {} tokens where nothing turns",
                       kGgufLlama4Growth, kGgufLlama4Tokens);
  if (!c.weigh_inputs) return "weights multiply what its experts make";
  const bool normed = c.qk_norm != QkNorm::none;
  if (normed == (c.routing.experts != kGgufLlama4Normless)) return "";
  return fmt::format("its queries and keys are {}normalised, with {} experts", normed ? "" : "not ",
                     c.routing.experts);
}

}  // namespace moe
