// The keys of models whose layers are what mixes tokens alone or an FFN alone, as a pattern says
// letter by letter (transformers:nemotron_h/configuration_nemotron_h.py).
#include "hub/folder/family_parts.h"
#include "hub/folder/mixer_rows.h"

namespace moe {
namespace {

constexpr const char *kHalfPattern = "hybrid_override_pattern",
                     *kListedHalves = "layers_block_type", *kListedTypes = "layer_types",
                     *kHeadWidthNow = "head_dim", *kHeadWidthOnce = "attention_head_dim",
                     *kLatentExperts = "moe_latent_size";
constexpr char kScan = 'M', kAttention = '*', kDense = '-', kRouted = 'E';

// The words of a list for each letter, as they were published and as transformers 5 writes them.
struct HalfWord {
  std::string_view word;
  char letter;
};
constexpr HalfWord kHalfWords[] = {{"mamba", kScan},          {"linear_attention", kScan},
                                   {"attention", kAttention}, {"full_attention", kAttention},
                                   {"mlp", kDense},           {"moe", kRouted}};

// Keys of sizes that transformers writes also where no layer has what they are of.
constexpr const char *kScanSizes[] = {"mamba_num_heads", "n_groups",    "mamba_head_dim",
                                      "ssm_state_size",  "conv_kernel", "use_conv_bias"},
                     *kExpertSizes[] = {"num_experts_per_tok",
                                        "moe_intermediate_size",
                                        "n_routed_experts",
                                        "n_shared_experts",
                                        "moe_shared_expert_intermediate_size",
                                        "n_group",
                                        "topk_group",
                                        "norm_topk_prob",
                                        "routed_scaling_factor",
                                        kLatentExperts};

template <class Visitor, class Config>
void visit_half_scan(Visitor& v, Config& c) {
  v.size(kScanSizes[0], c.scan.heads, 1);
  v.size(kScanSizes[1], c.scan.groups, 1);
  v.size(kScanSizes[2], c.scan.width, 1);
  v.size(kScanSizes[3], c.scan.states, 1);
  v.size(kScanSizes[4], c.scan.conv_width, 2);
  v.flag(kScanSizes[5], c.scan.conv_bias);
}

std::string listed_halves(const JsonReader& reader, const char* key) {
  std::string pattern;
  for (const std::string& word : reader.get<std::vector<std::string>>(key)) {
    const HalfWord* found = std::ranges::find(kHalfWords, word, &HalfWord::word);
    if (found == std::end(kHalfWords))
      fail("{}: \"{}\" has \"{}\" at layer {}; mamba, attention, mlp and moe are known",
           reader.where(), key, printable(word), pattern.size());
    pattern += found->letter;
  }
  return pattern;
}

// A letter for each layer.
std::string pattern_of(const JsonReader& reader) {
  std::string pattern;
  for (const char* key : {kListedHalves, kListedTypes}) {
    if (!reader.has(key)) continue;
    const std::string listed = listed_halves(reader, key);
    if (!pattern.empty() && listed != pattern)
      refuse(reader, key, "\"layers_block_type\" lists other layers; make them equal");
    pattern = listed;
  }
  if (pattern.empty()) pattern = reader.get<std::string>(kHalfPattern);
  else if (reader.get<std::string>(kHalfPattern, pattern) != pattern)
    refuse(reader, kHalfPattern, "a list of the config has other layers; make them equal");
  if (pattern.empty() || std::ssize(pattern) > kMaxLayers)
    fail("{}: {} layers are listed; it must be 1 to {}", reader.where(), pattern.size(),
         kMaxLayers);
  for (size_t i = 0; i < pattern.size(); ++i)
    if (std::ranges::find(kHalfWords, pattern[i], &HalfWord::letter) == std::end(kHalfWords))
      fail("{}: \"{}\" has \"{}\" at layer {}; M, *, - and E are known", reader.where(),
           kHalfPattern, printable(pattern.substr(i, 1)), i);
  return pattern;
}

}  // namespace

// Both were written under these keys only by some (huggingface nvidia/Nemotron-H-8B-Base-8K, github
// ml-explore/mlx-lm tests/test_models.py).
void read_half_sizes(const JsonReader& reader, ModelConfig& c) {
  c.layers = std::ssize(pattern_of(reader));
  c.head_width = reader.get_in<int64_t>(reader.has(kHeadWidthOnce) ? kHeadWidthOnce : kHeadWidthNow,
                                        1, kMaxSize);
}

void read_halves(const JsonReader& reader, ModelConfig& c) {
  const std::string pattern = pattern_of(reader);
  if (std::ssize(pattern) != c.layers)
    fail("{}: {} layers are listed, \"num_hidden_layers\" is {}", reader.where(), pattern.size(),
         c.layers);
  for (int64_t i = 0; i < c.layers; ++i) {
    const char letter = pattern[static_cast<size_t>(i)];
    const bool mixes = letter == kScan || letter == kAttention;
    (mixes ? c.mixer_only_layers : c.ffn_only_layers).push_back(i);
    if (letter == kScan) c.scan_layers.push_back(i);
    if (letter == kRouted) c.moe_layers.push_back(i);
  }
  check_step_limits(reader);
  FieldReader fields(reader);
  if (!c.scan_layers.empty()) visit_half_scan(fields, c);
  else
    for (const char* key : kScanSizes) stands(reader, key);
  if (!c.moe_layers.empty() && reader.has(kLatentExperts))
    refuse(reader, kLatentExperts,
           "experts that work in a width of their own are not supported, only null");
  if (c.moe_layers.empty())
    for (const char* key : kExpertSizes) stands(reader, key);
}

void write_halves(Json& json, const ModelConfig& c) {
  std::string pattern;
  for (int64_t i = 0; i < c.layers; ++i)
    pattern += c.mixer(i) == Mixer::scan ? kScan
               : c.mixes(i)              ? kAttention
               : c.is_moe(i)             ? kRouted
                                         : kDense;
  json[kHalfPattern] = pattern;
  FieldWriter fields(json);
  if (c.scan.present()) visit_half_scan(fields, c);
}

std::string why_not_halves(const ModelConfig& c) {
  for (int64_t i = 0; i < c.layers; ++i) {
    if (c.mixes(i) && c.has_ffn(i)) return fmt::format("layer {} mixes tokens and has an FFN", i);
    if (c.mixer(i) == Mixer::attention && c.attention(i).rotary_width > 0)
      return fmt::format("in layer {} something turns", i);
  }
  return c.dense_width < 1 ? "its dense layers have no width" : "";
}

}  // namespace moe
