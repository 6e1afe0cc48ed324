#include "hub/quant_mix.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "core/nearest.h"

namespace moe {

// A tensor as the rules ask about it. Layer numbers are the model's, dense and MoE layers alike.
struct MixSlot {
  int64_t layer = 0, layers = 0;
  int64_t experts = 0;  // 0: dense
  bool shares_values;   // fewer key/value heads than heads
};

namespace {

bool first_four(const MixSlot& p) { return p.layer < 4; }
bool first_eighth(const MixSlot& p) { return p.layer < p.layers / 8; }
// The first and the last eighth, and every third layer between them.
bool more_bits(const MixSlot& p) {
  const int64_t eighth = p.layers / 8;
  return p.layer < eighth || p.layer >= 7 * p.layers / 8 || (p.layer - eighth) % 3 == 2;
}
// With 8 experts attention is so small a part of the model that its bits cost little.
bool of_eight_experts(const MixSlot& p) { return p.experts == 8; }
// Llama 2 70B and its like: 80 layers, whose value matrices are an eighth of the query's.
bool of_eighty_layers(const MixSlot& p) { return p.layers == 80 && p.shares_values; }

}  // namespace

struct MixRule {
  std::string_view part;  // of the tensor's name, between its dots or the beginning of that
  bool (*where)(const MixSlot&);
  DType dtype;
};

namespace {

constexpr std::string_view kValues = "attn_v", kFused = "attn_qkv", kKeys = "attn_k", kOutput = "attn_output", kDown = "ffn_down";

// The first rule that holds decides.
constexpr MixRule kEvery[] = {
    {kValues, of_eight_experts, DType::q8_0},
    {kFused, of_eight_experts, DType::q8_0},
    {kKeys, of_eight_experts, DType::q8_0},
};
constexpr MixRule kFourSmall[] = {
    {kValues, first_four, DType::q5_k}, {kValues, of_eighty_layers, DType::q5_k}, {kFused, first_four, DType::q5_k},
    {kDown, first_eighth, DType::q5_k}, {kOutput, of_eight_experts, DType::q5_k},
};
constexpr MixRule kFourMedium[] = {
    {kValues, more_bits, DType::q6_k}, {kValues, of_eighty_layers, DType::q5_k}, {kFused, more_bits, DType::q6_k},
    {kDown, more_bits, DType::q6_k},   {kOutput, of_eight_experts, DType::q5_k},
};
constexpr MixRule kFiveMedium[] = {
    {kValues, more_bits, DType::q6_k},
    {kFused, more_bits, DType::q6_k},
    {kDown, more_bits, DType::q6_k},
};

constexpr QuantMix kMixes[] = {
    {"q8_0", "", DType::q8_0, 7, "8.5 bits a number, hardly any loss", {}},
    {"q6_k", "", DType::q6_k, 18, "6.6 bits", {}},
    {"q5_k_m", "q5_k", DType::q5_k, 17, "5.5 bits, 6.6 where it matters most", kFiveMedium},
    {"q5_k_s", "", DType::q5_k, 16, "5.5 bits", {}},
    {"q5_1", "", DType::q5_1, 9, "6 bits", {}},
    {"q5_0", "", DType::q5_0, 8, "5.5 bits", {}},
    {"q4_k_m", "q4_k", DType::q4_k, 15, "4.5 bits, 6.6 where it matters most: the usual choice", kFourMedium},
    {"q4_k_s", "", DType::q4_k, 14, "4.5 bits, 5.5 in the first layers", kFourSmall},
    {"q4_1", "", DType::q4_1, 3, "5 bits", {}},
    {"q4_0", "", DType::q4_0, 2, "4.5 bits", {}},
};

// What llama.cpp has and we do not make, by how the names begin.
struct NotMade {
  std::string_view begin, type, instead;
};
constexpr NotMade kNotMade[] = {
    {"q2_k", "Q2_K", "q4_k_s, the smallest that is made here"},         {"q3_k", "Q3_K", "q4_k_s, the smallest that is made here"},
    {"iq", "the IQ types", "q4_k_m, or q4_k_s where it must be small"}, {"tq", "the ternary types", "q4_k_s, the smallest that is made here"},
    {"mxfp4", "MXFP4", "q4_k_m, or q4_0, whose blocks are as large"},
};

std::string lower(std::string_view name) {
  std::string out(name);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// Of "blk.3.ffn_down_exps.weight": 3 and "ffn_down_exps".
std::optional<std::pair<int64_t, std::string_view>> layer_and_part(std::string_view tensor) {
  constexpr std::string_view kBlock = "blk.";
  if (!tensor.starts_with(kBlock)) return std::nullopt;
  int64_t layer = 0;
  const char* const begin = tensor.data() + kBlock.size();
  const auto [end, error] = std::from_chars(begin, tensor.data() + tensor.size(), layer);
  if (error != std::errc() || end == tensor.data() + tensor.size()) return std::nullopt;
  const std::string_view rest = tensor.substr(static_cast<size_t>(end - tensor.data()) + 1);
  return std::pair{layer, rest.substr(0, rest.find('.'))};
}

// "ffn_down" stands for ffn_down_exps and ffn_down_shexp as well; "attn_k" not for attn_k_norm, which is no matrix anyway.
bool names(std::string_view rule, std::string_view part) { return part == rule || (part.starts_with(rule) && part.substr(rule.size()).starts_with("_")); }

}  // namespace

std::span<const QuantMix> quant_mixes() { return kMixes; }

std::vector<std::string> quant_mix_names() {
  std::vector<std::string> out;
  for (const QuantMix& mix : kMixes) out.emplace_back(mix.name);
  return out;
}

const QuantMix& find_quant_mix(std::string_view name, std::string_view option) {
  const std::string wanted = lower(name);
  for (const QuantMix& mix : kMixes)
    if (mix.name == wanted || (!mix.alias.empty() && mix.alias == wanted)) return mix;
  for (const NotMade& other : kNotMade)
    if (wanted.starts_with(other.begin))
      fail_usage("{} {}: llama.cpp makes it of {}, which moe neither reads nor writes; take {}", option, printable(name, 40), other.type, other.instead);
  const std::optional<DType> dtype = dtype_named(wanted);
  if (dtype && !is_quantised(*dtype)) fail_usage("{} is no quantised type; ask for it with --dtype {}", name_of(*dtype), name_of(*dtype));
  fail_usage("{}: no type or mix of types is called '{}'{}", option, printable(name, 40), suggestion(name, quant_mix_names()));
}

DType type_in_mix(const QuantMix& mix, std::string_view tensor, const ModelConfig& config) {
  const auto found = layer_and_part(tensor);
  if (!found) return mix.base;
  const auto& [layer, part] = *found;
  const MixSlot place{layer, config.layers, config.moe_layer_count() > 0 ? config.routing.experts : 0, config.kv_heads < config.heads};
  for (const std::span<const MixRule> rules : {std::span<const MixRule>(kEvery), mix.rules})
    for (const MixRule& rule : rules)
      if (names(rule.part, part) && rule.where(place)) return rule.dtype;
  return mix.base;
}

}  // namespace moe
