// A model small enough that a test can train it, and text for it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "support/check.h"
#include "text/corpus.h"
#include "train/trainer.h"

namespace moe::test {

// Two layers of width 32 over bytes; every layer routes, with noise and capacity drops (nanomoe),
// and drops activations out: whatever draws random numbers is on.
inline ModelConfig noisy_config() {
  ModelConfig c;
  c.vocab = 256;
  c.width = 32;
  c.layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_width = 16;
  c.context = 32;
  c.dense_width = c.expert_width = 48;
  c.dropout = 0.1f;
  c.routing = default_options(find_recipe("nanomoe"), 4, 2, 2);
  return c;
}

// The same without randomness, drops or auxiliary losses: the loss is a plain mean over tokens.
inline ModelConfig plain_config() {
  ModelConfig c = noisy_config();
  c.dropout = 0;
  c.routing = default_options(find_recipe("olmoe"), 4, 2, 2);
  c.routing.coef = {};
  return c;
}

inline std::unique_ptr<Model> fresh(const ModelConfig& config, uint64_t seed = 7,
                                    const comm::Group& experts = {}) {
  auto model = std::make_unique<Model>(config, Storage::owned, experts);
  model->initialise(seed);
  return model;
}

inline TrainOptions tiny_options() {
  TrainOptions o;
  o.context = 32;
  o.batch = 4;
  o.steps = 5;
  o.lr = 3e-3;
  o.warmup = 2;
  o.threads = 2;
  return o;
}

// Text with something to learn: words that repeat in an order drawn once.
inline Corpus tiny_corpus(int64_t words = 600) {
  const std::vector<std::string> lexicon = {"the ",  "router ", "sends ",   "each ", "token ",
                                            "to ",   "two ",    "experts ", "and ",  "adds ",
                                            "what ", "they ",   "say. "};
  const RngKey key = RngKey::from_seed(11);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < words; ++i)
    for (char c : lexicon[uniform_index(key, static_cast<uint64_t>(i), lexicon.size())])
      ids.push_back(static_cast<unsigned char>(c));
  return Corpus(std::move(ids));
}

// Questions with a word that is asked for and one that is not, in bytes.
inline Corpus tiny_pairs(int64_t count = 24, int64_t first = 0) {
  const std::vector<std::string> words = {"router", "token", "expert", "layer", "loss", "weight"};
  std::vector<int32_t> ids;
  std::vector<uint32_t> ends;
  std::vector<TokenSpan> untrained;
  for (int64_t p = first; p < first + count; ++p)
    for (const int64_t shift : {1, 3}) {
      const auto word = [&](int64_t i) { return words[static_cast<size_t>(i) % words.size()]; };
      const std::string prompt = word(p) + word(p / 6) + "?", reply = word(p + shift) + ".";
      const auto begin = static_cast<uint32_t>(ids.size());
      for (const char c : prompt + reply) ids.push_back(static_cast<unsigned char>(c));
      untrained.push_back({begin, begin + static_cast<uint32_t>(prompt.size())});
      ends.push_back(static_cast<uint32_t>(ids.size()));
    }
  return Corpus::of_pairs(ids, ends, untrained);
}

inline bool same_weights(const Model& a, const Model& b) {
  if (a.params().size() != b.params().size()) return false;
  for (size_t i = 0; i < a.params().size(); ++i)
    if (!same_bits(a.params()[i]->value, b.params()[i]->value)) return false;
  return true;
}

}  // namespace moe::test
