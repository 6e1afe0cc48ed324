// What the readers of a GGUF's config share; for them only.
#pragma once

#include <cfloat>
#include <cmath>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/error.h"
#include "core/nearest.h"
#include "formats/gguf.h"
#include "hub/gguf/gguf_architectures.h"

namespace moe {

// The keys of one architecture in a GGUF, "llama.block_count" and the like, each read at most once
// by name, so that what nobody read is found.
class GgufKeys {
 public:
  GgufKeys(const Gguf& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  const std::string& where() const { return file_.path(); }
  std::string name(std::string_view key) {
    std::string full = prefix_ + std::string(key);
    read_.insert(full);
    return full;
  }
  bool has(std::string_view key) { return file_.has(name(key)); }
  // Whether it stands there as this type.
  template <class T>
  bool holds(std::string_view key) {
    const auto found = file_.metadata().find(name(key));
    return found != file_.metadata().end() && std::holds_alternative<T>(found->second);
  }
  int64_t size(std::string_view key, int64_t low, int64_t high = int64_t{1} << 24) {
    return file_.integer(name(key), low, high);
  }
  int64_t size_or(std::string_view key, int64_t low, int64_t otherwise) {
    return has(key) ? size(key, low) : otherwise;
  }
  float number(std::string_view key, double low) {
    const double x = file_.number(name(key));
    if (!(x >= low && x <= FLT_MAX))
      fail("{}: key \"{}\" is {}; it must be at least {}", where(), name(key), x, low);
    return static_cast<float>(x);
  }
  float number_or(std::string_view key, double low, float otherwise) {
    return has(key) ? number(key, low) : otherwise;
  }
  const std::string& text(std::string_view key) { return file_.text(name(key)); }
  const std::vector<int64_t>& integers(std::string_view key) { return file_.integers(name(key)); }
  const std::vector<bool>& flags(std::string_view key) { return file_.flags(name(key)); }
  const std::vector<double>& numbers(std::string_view key) { return file_.numbers(name(key)); }
  bool flag(std::string_view key) { return file_.flag(name(key)); }
  // A key that may stand there only with the one value that is what happens here.
  void need_number(std::string_view key, double wanted, std::string_view why) {
    if (!has(key)) return;
    const double x = file_.number(name(key));
    if (x != wanted)
      fail("{}: key \"{}\" is {}; {}, so only {} is supported", where(), name(key), x, why, wanted);
  }
  void ignore(std::string_view key) { name(key); }
  // What nobody read may change the mathematics.
  void refuse_unknown() const {
    for (const auto& [key, value] : file_.metadata())
      if (key.starts_with(prefix_) && !read_.contains(key))
        fail("{}: key \"{}\" is not known here, and it may change what the model computes{}",
             where(), printable(key), suggestion(key, {read_.begin(), read_.end()}, 0));
  }

 private:
  const Gguf& file_;
  std::string prefix_;
  std::set<std::string> read_;
};

inline constexpr const char* kKvHeads = "attention.head_count_kv";
inline constexpr const char* kGgufGating = "expert_gating_func";

// llama.cpp multiplies cosines and sines of YaRN by it beside its key of a further factor (ggml,
// ggml_rope_yarn).
inline float yarn_growth(float factor) { return 1 + 0.1f * std::log(factor); }

// A list has something for each layer, those that predict further tokens behind the others.
template <class T>
const std::vector<T>& listed_by_layers(const std::vector<T>& list, GgufKeys& keys,
                                       const char* key) {
  if (const int64_t blocks = keys.size("block_count", 1); std::ssize(list) != blocks)
    fail("{}: key \"{}\" lists {} layers of {}", keys.where(), keys.name(key), list.size(), blocks);
  return list;
}

// What attention sees where it is sparse (gguf_indexers.cpp).
void read_gguf_indexers(const Gguf&, GgufKeys&, const GgufArchitecture&, ModelConfig&);
void add_gguf_indexers(std::vector<GgufEntry>&, const std::string& prefix, const GgufArchitecture&,
                       const ModelConfig&);
std::string why_not_gguf_indexers(const GgufArchitecture&, const ModelConfig&);
// Whether layers choose blocks where they should.
std::string why_not_block_layers(const GgufArchitecture&, const ModelConfig&);

// Layers that have something else in place of attention (gguf_mixers.cpp).
void read_kimi_layers(GgufKeys&, const GgufArchitecture&, ModelConfig&);
void read_convolutions(GgufKeys&, ModelConfig&);
void read_linear_sizes(GgufKeys&, ModelConfig&);
void read_state_layers(GgufKeys&, const GgufArchitecture&, ModelConfig&);
// Heads, by layers where some have none, and the sizes of what stands there; widths of FFNs where
// layers are one sublayer.
void add_kv_heads(std::vector<GgufEntry>&, const std::string& prefix, const GgufArchitecture&,
                  const ModelConfig&);
std::string why_not_state_sizes(const GgufArchitecture&, const ModelConfig&);
void read_gguf_lightning(GgufKeys&, ModelConfig&);
void add_gguf_lightning(std::vector<GgufEntry>&, const std::string& prefix, const ModelConfig&);
std::string why_not_gguf_lightning(const GgufArchitecture&, const ModelConfig&);
void add_linear(std::vector<GgufEntry>&, const std::string& prefix, const ModelConfig&);
// Those of n layers that are not every `every`th.
std::vector<int64_t> layers_between(int64_t every, int64_t n);
// Experts, and FFNs of a model without any (gguf_experts.cpp).
void read_gguf_experts(const Gguf&, GgufKeys&, const GgufArchitecture&, ModelConfig&);
void read_gguf_dense(GgufKeys&, const GgufArchitecture&, ModelConfig&);
void add_gguf_experts(std::vector<GgufEntry>&, const std::string& prefix, const GgufArchitecture&,
                      const ModelConfig&);
void add_gguf_dense(std::vector<GgufEntry>&, const std::string& prefix, const GgufArchitecture&,
                    const ModelConfig&);
// Windows and heads that are said layer by layer (gguf_windows.cpp). Where a file has no list of
// windows, all layers have one but each `every`th from the first on; 0: a list has to be there.
void read_window_layers(GgufKeys&, ModelConfig&, int64_t every = 0);
// Heads of layers with a window, and of those without where these have another number, else 0.
struct HeadsByWindow {
  int64_t heads = 0, full = 0;
};
HeadsByWindow read_heads_by_window(GgufKeys&, const ModelConfig&, const char* key);
void read_listed(const Gguf&, GgufKeys&, const GgufArchitecture&, ModelConfig&);
void add_window_layers(std::vector<GgufEntry>&, const std::string& prefix, const ModelConfig&);
// One number where all layers have as many.
void add_heads_by_layers(std::vector<GgufEntry>&, const std::string& key, const ModelConfig&,
                         int64_t AttentionShape::*heads);
void add_listed(std::vector<GgufEntry>&, const std::string& prefix, const GgufArchitecture&,
                const ModelConfig&);
std::string why_not_listed(const GgufArchitecture&, const ModelConfig&);
// Keys of few rows (gguf_few_keys.cpp).
void read_few_keys(const Gguf&, GgufKeys&, const GgufArchitecture&, ModelConfig&);
void add_few_keys(std::vector<GgufEntry>&, const std::string& prefix, const GgufArchitecture&,
                  const ModelConfig&);
// What Hy4 has beside latents and indexers (gguf_hy4.cpp).
void read_hy4(GgufKeys&, ModelConfig&);
void add_hy4(std::vector<GgufEntry>&, const std::string& prefix, const ModelConfig&);
std::string why_not_hy4(const ModelConfig&);
// Of graphs that scale what turns of latent attention by YaRN, and no scores.
void refuse_latent_yarn(GgufKeys&);
// What sets Gemma 4 apart (gguf_gemma4.cpp): heads of two kinds, windows layer by layer, the share
// of a head that turns; nothing of any other row.
void read_gemma4(const Gguf&, GgufKeys&, ModelConfig&);
void add_gemma4(std::vector<GgufEntry>&, const std::string& prefix, const ModelConfig&);
std::string why_not_gemma4(const ModelConfig&);
std::vector<float> gemma4_factors(const ModelConfig&);
// What sets Llama 4 apart (gguf_llama4.cpp): its attention, which layers route, and how far apart
// these are by the first of them.
void read_gguf_llama4(GgufKeys&, ModelConfig&);
void read_gguf_llama4_layers(GgufKeys&, const GgufArchitecture&, ModelConfig&);
int64_t llama4_step(const ModelConfig&);
std::string why_not_llama4(const ModelConfig&);
// Factors of the rotary frequencies that stand in tensors.
struct GgufRopeFactors {
  std::string tensor;
  std::vector<float> factors;
};
std::vector<GgufRopeFactors> gguf_rope_factors(const GgufArchitecture&, const ModelConfig&);

}  // namespace moe
