// Hy4's keys of residual streams and of held experts (github ggml-org/llama.cpp,
// src/models/hy-v4.cpp and conversion/hy_v4.py).
#include <algorithm>

#include "hub/gguf/gguf_keys.h"

namespace moe {
namespace {

constexpr const char *kStreams = "hyper_connection.count",
                     *kStreamsMagnitude = "hyper_connection.magnitude",
                     *kStreamsEps = "hyper_connection.epsilon", *kHeldAt = "swiglu_clamp_exp",
                     *kScalingType = "rope.scaling.type";
constexpr double kKnownHold = 10;  // ops::Act has it

}  // namespace

void refuse_latent_yarn(GgufKeys& keys) {
  if (keys.has(kScalingType) && keys.text(kScalingType) == "yarn")
    fail(
        "{}: key \"{}\" is \"yarn\", of which llama.cpp here scales no scores; it is not supported",
        keys.where(), keys.name(kScalingType));
}

// The norm of an indexer's keys has the model's epsilon there.
void read_hy4(GgufKeys& keys, ModelConfig& c) {
  refuse_latent_yarn(keys);
  c.hyper = {.streams = keys.size(kStreams, 2),
             .mixes = false,
             .magnitude = keys.number(kStreamsMagnitude, FLT_MIN),
             .eps = keys.number(kStreamsEps, 0)};
  c.sparse.norm_eps = c.norm_eps;
  c.experts_held = true;
  if (!keys.holds<std::vector<double>>(kHeldAt)) {
    keys.number(kHeldAt, 0);
    return keys.need_number(kHeldAt, kKnownHold, "experts are held there");
  }
  const std::vector<double>& limits = listed_by_layers(keys.numbers(kHeldAt), keys, kHeldAt);
  if (std::ranges::any_of(limits, [](double x) { return x != kKnownHold; }))
    fail("{}: key \"{}\" lists other limits than {}, where experts are held", keys.where(),
         keys.name(kHeldAt), kKnownHold);
}

void add_hy4(std::vector<GgufEntry>& out, const std::string& prefix, const ModelConfig& c) {
  using Type = GgufEntry::Type;
  out.push_back({prefix + kStreams, Type::u32, c.hyper.streams});
  for (const auto& [key, x] :
       {std::pair{kStreamsMagnitude, c.hyper.magnitude}, {kStreamsEps, c.hyper.eps}})
    out.push_back({prefix + key, Type::f32, static_cast<double>(x)});
  out.push_back({prefix + kHeldAt, Type::f32s,
                 std::vector<double>(static_cast<size_t>(c.layers), kKnownHold)});
}

std::string why_not_hy4(const ModelConfig& c) {
  if (!c.hyper.present()) return "it has one residual stream";
  if (c.hyper.mixes) return "its residual streams are mixed";
  if (!c.experts_held) return "its routed experts are not held";
  if (c.sparse.norm_eps != c.norm_eps) return "norms of its indexers have an epsilon of their own";
  if (c.latent.query_width == 0) return "its queries are made of the token";
  return c.sparse.width <= c.rotary_width ? "heads of its indexers turn whole" : "";
}

}  // namespace moe
