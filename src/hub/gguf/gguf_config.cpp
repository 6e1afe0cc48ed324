#include "hub/gguf/gguf_config.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numbers>
#include <set>
#include <string>

#include "core/error.h"
#include "core/nearest.h"
#include "formats/gguf.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"

namespace moe {
namespace {

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

constexpr int64_t kMaxBlocks = 4096;  // as config.json has it
constexpr const char* kEps = "attention.layer_norm_epsilon";
constexpr const char* kRmsEps = "attention.layer_norm_rms_epsilon";
constexpr const char* kFactors = "rope_freqs.weight";
constexpr const char* kOwnConfig = "config";  // moe_cpp.config

// llama.cpp multiplies cosines and sines of YaRN by 1 + 0.1 ln(factor) beside its key of a further
// factor (ggml, ggml_rope_yarn).
float yarn_growth(float factor) { return 1 + 0.1f * std::log(factor); }

// Llama 3 files store what its four numbers make of each frequency and not the numbers: they are
// found again by making the factors anew. Only the original context differs between models; every
// published one has 1 and 4 for the other two.
RopeScaling recognised_llama3(const Gguf& file, const ModelConfig& c) {
  const Tensor stored = file.get(kFactors);
  if (stored.dtype != DType::f32 || stored.numel() != c.head_width / 2)
    fail("{}: tensor \"{}\" is {}; f32 [{}] is needed", file.path(), kFactors, describe(stored),
         c.head_width / 2);
  const float* factors = stored.as<float>();
  const float largest = *std::max_element(factors, factors + stored.numel());
  if (std::all_of(factors, factors + stored.numel(), [](float x) { return x == 1; })) return {};
  for (int64_t original = 16; original <= int64_t{1} << 20; original *= 2) {
    // A short head may have no frequency that is divided by the whole factor.
    for (const float factor : {largest, 2.0f, 4.0f, 8.0f, 16.0f, 32.0f, 64.0f}) {
      RopeScaling scaling{
          .kind = RopeScaling::Kind::llama3, .factor = factor, .original_context = original};
      if (!(factor >= 1)) continue;
      const std::vector<float> made = llama3_factors(scaling, c.rope_theta, c.head_width);
      if (std::equal(made.begin(), made.end(), factors,
                     [](float a, float b) { return std::fabs(a - b) <= 1e-5f * a; }))
        return scaling;
    }
  }
  fail(
      "{}: tensor \"{}\" divides the rotary frequencies in another way than Llama 3's scaling, "
      "which is not supported",
      file.path(), kFactors);
}

RopeScaling read_scaling(const Gguf& file, GgufKeys& keys, const GgufArchitecture& row,
                         const ModelConfig& c) {
  keys.ignore("rope.scaling.finetuned");
  keys.need_number("rope.scale_linear", 1, "\"rope.scaling.factor\" is the newer name");
  if (file.contains(kFactors) && row.llama3_scaling) {
    if (keys.has("rope.scaling.type") && keys.text("rope.scaling.type") != "none")
      fail(
          "{}: both key \"{}\" and tensor \"{}\" scale the rotary frequencies, which is not "
          "supported",
          keys.where(), keys.name("rope.scaling.type"), kFactors);
    return recognised_llama3(file, c);
  }
  RopeScaling scaling;
  const float factor = keys.number_or("rope.scaling.factor", 0, 1);
  // Without a type llama.cpp takes the factor as linear.
  const std::string type = keys.has("rope.scaling.type") ? keys.text("rope.scaling.type")
                           : factor == 1                 ? "none"
                                                         : "linear";
  if (type == "none") return scaling;
  if (type != "linear" && type != "yarn")
    fail("{}: key \"{}\" is \"{}\", which is not supported (none, linear and yarn are)",
         keys.where(), keys.name("rope.scaling.type"), printable(type));
  scaling.factor = keys.number("rope.scaling.factor", 1);
  scaling.kind = type == "linear" ? RopeScaling::Kind::linear : RopeScaling::Kind::yarn;
  if (type == "linear") {
    keys.ignore("rope.scaling.original_context_length");
    return scaling;
  }
  scaling.original_context = keys.size("rope.scaling.original_context_length", 1);
  scaling.beta_fast = keys.number_or("rope.scaling.yarn_beta_fast", 0, 32);
  scaling.beta_slow = keys.number_or("rope.scaling.yarn_beta_slow", 0, 1);
  scaling.attention_factor =
      yarn_growth(scaling.factor) * keys.number_or("rope.scaling.attn_factor", 0, 1);
  keys.need_number("rope.scaling.yarn_ext_factor", 1, "the blend is always whole");
  keys.need_number("rope.scaling.yarn_attn_factor", 1,
                   "\"rope.scaling.attn_factor\" is the one that counts");
  keys.need_number("rope.scaling.yarn_log_multiplier", 0, "it belongs to other architectures");
  return scaling;
}

void read_attention(const Gguf& file, GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  c.heads = keys.size("attention.head_count", 1);
  // docs/gguf.md: without these keys every head has keys of its own, and the heads make up the
  // width.
  c.kv_heads = keys.size_or("attention.head_count_kv", 1, c.heads);
  if (!keys.has("attention.key_length") && c.width % c.heads != 0)
    fail("{}: {} heads do not divide the width {}, and there is no key \"{}\"", keys.where(),
         c.heads, c.width, keys.name("attention.key_length"));
  c.head_width = keys.size_or("attention.key_length", 1, c.width / c.heads);
  keys.need_number("attention.value_length", static_cast<double>(c.head_width),
                   "values are as wide as keys");
  if (keys.has("attention.causal") && !keys.flag("attention.causal"))
    fail("{}: key \"{}\" is false; only decoders are supported", keys.where(),
         keys.name("attention.causal"));
  c.norm_eps = keys.number(row.norm == NormKind::rms ? kRmsEps : kEps, 0);
  const auto biases = [&](Biases has, const char* name) {
    return has == Biases::any ? file.contains(name) : has == Biases::yes;
  };
  c.attention_bias = biases(row.attention_bias, "blk.0.attn_q.bias");
  c.attention_out_bias = biases(row.attention_out_bias, "blk.0.attn_output.bias");
  c.ffn_bias = biases(row.ffn_bias, "blk.0.ffn_up.bias");
  if (row.positions != Positions::rope) return;
  c.rope_theta = keys.number("rope.freq_base", 0);
  keys.need_number("rope.dimension_count", static_cast<double>(c.head_width),
                   "heads are rotated whole");
  c.rope_scaling = read_scaling(file, keys, row, c);
}

void read_experts(GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  const int64_t experts = keys.size("expert_count", 1),
                used = keys.size("expert_used_count", 1, experts);
  c.expert_width = keys.size(row.expert_width, 1);
  c.dense_first = row.dense_first ? keys.size("leading_dense_block_count", 0, c.layers) : 0;
  c.dense_width = c.dense_first > 0 ? keys.size("feed_forward_length", 1) : c.expert_width;
  keys.ignore("feed_forward_length");
  keys.need_number("expert_feed_forward_length", static_cast<double>(c.expert_width),
                   "experts are as wide as \"feed_forward_length\"");
  if (row.shared == SharedExperts::counted) {
    c.shared_experts = keys.size("expert_shared_count", 1);
    c.shared_width = c.expert_width;
  } else if (row.shared == SharedExperts::gated) {
    c.shared_experts = 1;
    c.shared_width = keys.size("expert_shared_feed_forward_length", 1);
    c.shared_gate = true;
  }
  c.routing = default_options(find_recipe(row.recipe), experts, used, c.layers - c.dense_first);
  // What llama.cpp's graph of this architecture does whatever the file says.
  keys.need_number("expert_weights_scale", 1,
                   "llama.cpp's versions differ in whether they apply it");
  keys.need_number("expert_gating_func", 1, "the router is a softmax (1)");
  keys.need_number("expert_group_count", 1, "experts are chosen among all");
  keys.need_number("expert_group_used_count", 1, "experts are chosen among all");
  keys.need_number("moe_every_n_layers", 1, "every layer routes");
  if (keys.has("expert_weights_norm") && keys.flag("expert_weights_norm") != row.renormalises)
    fail("{}: key \"{}\" is {}, but llama.cpp's graph of {} does the other", keys.where(),
         keys.name("expert_weights_norm"), !row.renormalises, row.title);
}

void add_attention(std::vector<GgufEntry>& out, const std::string& prefix,
                   const GgufArchitecture& row, const ModelConfig& c) {
  using Type = GgufEntry::Type;
  const auto size = [&](const char* key, int64_t x) {
    out.push_back({prefix + key, Type::u32, x});
  };
  const auto number = [&](const char* key, float x) {
    out.push_back({prefix + key, Type::f32, static_cast<double>(x)});
  };
  size("attention.head_count", c.heads);
  size("attention.head_count_kv", c.kv_heads);
  number(row.norm == NormKind::rms ? kRmsEps : kEps, c.norm_eps);
  if (row.positions != Positions::rope) return;
  size("attention.key_length", c.head_width);
  size("attention.value_length", c.head_width);
  size("rope.dimension_count", c.head_width);
  number("rope.freq_base", c.rope_theta);
  const RopeScaling& s = c.rope_scaling;
  // Llama 3's is a tensor
  if (s.kind != RopeScaling::Kind::linear && s.kind != RopeScaling::Kind::yarn) return;
  out.push_back({prefix + "rope.scaling.type", Type::string,
                 std::string(s.kind == RopeScaling::Kind::linear ? "linear" : "yarn")});
  number("rope.scaling.factor", s.factor);
  if (s.kind == RopeScaling::Kind::linear) return;
  size("rope.scaling.original_context_length", s.original_context);
  number("rope.scaling.yarn_beta_fast", s.beta_fast);
  number("rope.scaling.yarn_beta_slow", s.beta_slow);
  const float further = s.attention_factor / yarn_growth(s.factor);
  if (std::fabs(further - 1) > 1e-6f) number("rope.scaling.attn_factor", further);
}

// Our own form holds the text of a config.json, read as one.
GgufModelConfig read_own(const Gguf& file, GgufKeys& keys) {
  const std::string& text = keys.text(kOwnConfig);
  keys.refuse_unknown();
  return {
      read_config(text, fmt::format("{}: key \"{}\"", file.path(), keys.name(kOwnConfig))).config,
      &own_gguf_architecture()};
}

}  // namespace

std::vector<float> llama3_factors(const RopeScaling& s, float theta, int64_t head_width) {
  std::vector<float> factors;
  const auto original = static_cast<double>(s.original_context);
  for (int64_t c = 0; c < head_width / 2; ++c) {
    const double wavelength =
        2 * std::numbers::pi *
        std::pow(static_cast<double>(theta),
                 2.0 * static_cast<double>(c) / static_cast<double>(head_width));
    double divisor = s.factor;
    if (wavelength < original / s.high_freq_factor) divisor = 1;
    else if (wavelength <= original / s.low_freq_factor) {
      const double smooth = (original / wavelength - s.low_freq_factor) /
                            (static_cast<double>(s.high_freq_factor) - s.low_freq_factor);
      divisor = 1 / ((1 - smooth) / s.factor + smooth);
    }
    factors.push_back(static_cast<float>(divisor));
  }
  return factors;
}

GgufModelConfig read_gguf_config(const Gguf& file) {
  const std::string& name = file.text("general.architecture");
  GgufKeys keys(file, name);
  if (name == own_gguf_architecture().name) return read_own(file, keys);
  const bool routes = keys.has("expert_count") && keys.size("expert_count", 0) > 0;
  const GgufArchitecture& row = find_gguf_architecture(name, routes, file.path());
  ModelConfig c;
  c.norm = row.norm;
  c.norm_bias = row.norm == NormKind::layer;
  c.positions = row.positions;
  c.qk_norm = row.qk_norm;
  c.act = row.act;
  c.gated = row.gated;
  c.layers = keys.size("block_count", 1, kMaxBlocks);
  c.width = keys.size("embedding_length", 1);
  c.context = keys.size("context_length", 1);
  c.vocab = file.get("token_embd.weight").rows();
  c.tied = !row.needs_head && !file.contains(kGgufHead);
  keys.ignore("vocab_size");  // the rows of the embedding
  keys.ignore("tensor_data_layout");
  read_attention(file, keys, row, c);
  if (routes) {
    read_experts(keys, row, c);
  } else {
    keys.need_number("expert_used_count", 0, "there are no experts");
    c.dense_width = c.expert_width = keys.size("feed_forward_length", 1);
  }
  keys.refuse_unknown();
  try {
    validate(c);
  } catch (const Error& e) {
    fail("{}: {}", file.path(), e.what());
  }
  return {c, &row};
}

std::vector<GgufEntry> gguf_config_entries(const GgufArchitecture& row, const ModelConfig& c) {
  using Type = GgufEntry::Type;
  const std::string prefix = std::string(row.name) + ".";
  std::vector<GgufEntry> out = {{"general.architecture", Type::string, std::string(row.name)},
                                {"general.type", Type::string, std::string("model")}};
  if (&row == &own_gguf_architecture()) {
    out.push_back({prefix + kOwnConfig, Type::string, config_to_json(c)});
    return out;
  }
  const auto size = [&](std::string_view key, int64_t x) {
    out.push_back({prefix + std::string(key), Type::u32, x});
  };
  size("block_count", c.layers);
  size("context_length", c.context);
  size("embedding_length", c.width);
  size("vocab_size", c.vocab);
  add_attention(out, prefix, row, c);
  if (!row.routes()) {
    size("feed_forward_length", c.dense_width);
    return out;
  }
  if (row.expert_width != "feed_forward_length") size("feed_forward_length", c.dense_width);
  size(row.expert_width, c.expert_width);
  size("expert_count", c.routing.experts);
  size("expert_used_count", c.routing.top_k);
  if (row.dense_first) size("leading_dense_block_count", c.layers - c.moe_layer_count());
  if (row.shared == SharedExperts::counted) {
    size("expert_shared_count", c.shared_experts * c.shared_width / c.expert_width);
    out.push_back({prefix + "expert_weights_scale", Type::f32, 1.0});
  }
  if (row.shared == SharedExperts::gated)
    size("expert_shared_feed_forward_length", c.shared_experts * c.shared_width);
  return out;
}

}  // namespace moe
