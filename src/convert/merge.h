// Several dense models of one shape become one: each gives the FFNs of an expert, the base gives
// everything else, and the routers come from how the base reads prompts that stand for each expert
// (github arcee-ai/mergekit, docs/moe.md and mergekit/moe/router.py, whose gates are taken before
// the norm; a router sees what comes out of it, so these are taken there).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "convert/assembly.h"

namespace moe {

enum class Gates {
  hidden,      // what the router sees at the last token of a prompt, mean over prompts
  hidden_avg,  // mean over the tokens of a prompt, then over prompts
  random,      // N(0, router_std)
};
const std::vector<std::string>& gates_names();  // in this order

// Prompts as token ids. What stands for an expert counts positive, what stands for none of its work
// negative.
struct GatePrompts {
  std::vector<std::vector<int32_t>> positive, negative;
};

struct MergeExpert {
  Model* model = nullptr;
  std::string name;  // for messages
  GatePrompts prompts;
};

struct MergeOptions {
  RoutingOptions routing;  // recipe and K; E is the number of experts
  Gates gates = Gates::hidden;
  float router_std = 0.02f;
  uint64_t seed = 1;
  int threads = 1;
  // told after each prompt; may throw
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct MergedLayer {
  int64_t layer = 0;
  double condition = 1;  // of the matrix of gates: largest over smallest singular value
};
// Above this the gates of a layer hardly tell some experts apart.
constexpr double kBadCondition = 5;

struct Merged {
  std::unique_ptr<Model> model;
  std::vector<PartFate> parts;
  std::vector<MergedLayer> layers;
  std::vector<std::string> notes;  // what experts have otherwise than the base, and does not matter
};

// What merge() cannot view in its sources.
struct MergeCopies {
  int64_t bytes = 0;    // of the result's own numbers
  std::string widened;  // which models make banks f32 that could be views, and why; empty: none do
};
// Usage errors where shapes differ, as merge() has them.
MergeCopies merging_copies(const Model& base, std::span<const MergeExpert> experts);

// Usage errors, naming experts: less than two of them; shapes that differ (the field and both
// values); two with the same FFNs or the same prompts; prompts that are missing or cancel out. The
// result's weights are views of those of base and experts, which must outlive it.
//   gate_e = normalised(mean over positive prompts of x - mean over negative ones),
//     x [D]: what ffn_norm of the layer gives
Merged merge(Model& base, std::span<const MergeExpert> experts, const MergeOptions&);

}  // namespace moe
