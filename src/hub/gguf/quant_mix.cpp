#include "hub/gguf/quant_mix.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/nearest.h"

namespace moe {

// The matrices that rules name. Those of experts and of shared experts count like those of a dense
// FFN.
enum class MixMatrix { values, fused, keys, output, down, experts, embedding };

// A tensor as the rules ask about it. Layers are counted as slot_of says.
struct MixSlot {
  int64_t layer = 0, layers = 0;
  int64_t experts = 0;   // 0: dense
  int64_t sharing = 1;   // heads that share keys and values
  bool weighed = false;  // the importance of its columns is known
};

namespace {

bool everywhere(const MixSlot&) { return true; }
bool first_two(const MixSlot& p) { return p.layer < 2; }
bool first_four(const MixSlot& p) { return p.layer < 4; }
bool first_sixteenth(const MixSlot& p) { return p.layer < p.layers / 16; }
bool first_eighth(const MixSlot& p) { return p.layer < p.layers / 8; }
bool first_eighth_weighed(const MixSlot& p) { return p.weighed && first_eighth(p); }
bool first_eighth_not_weighed(const MixSlot& p) { return !p.weighed && first_eighth(p); }
// The first and the last eighth, and every third layer between them.
bool more_bits(const MixSlot& p) {
  const int64_t eighth = p.layers / 8;
  return p.layer < eighth || p.layer >= 7 * p.layers / 8 || (p.layer - eighth) % 3 == 2;
}
// With 8 experts attention is so small a part of the model that its bits cost little.
bool of_eight_experts(const MixSlot& p) { return p.experts == 8; }
bool of_other_experts(const MixSlot& p) { return p.experts != 8; }
// Llama 2 70B and its like: 80 layers, whose value matrices are an eighth of the query's.
bool of_eighty_layers(const MixSlot& p) { return p.layers == 80 && p.sharing > 1; }
bool shared_by_four(const MixSlot& p) { return p.sharing >= 4; }

}  // namespace

struct MixRule {
  MixMatrix matrix;
  bool (*where)(const MixSlot&);
  DType dtype;
};

namespace {

// The first rule that holds decides.
constexpr MixRule kEvery[] = {
    {MixMatrix::values, of_eight_experts, DType::q8_0},
    {MixMatrix::fused, of_eight_experts, DType::q8_0},
    {MixMatrix::keys, of_eight_experts, DType::q8_0},
};
constexpr MixRule kTwo[] = {
    {MixMatrix::values, of_eighty_layers, DType::q5_k},
    {MixMatrix::values, shared_by_four, DType::q4_k},
    {MixMatrix::values, everywhere, DType::q3_k},
    {MixMatrix::fused, shared_by_four, DType::q4_k},
    {MixMatrix::fused, everywhere, DType::q3_k},
    {MixMatrix::down, everywhere, DType::q3_k},
    {MixMatrix::output, of_eight_experts, DType::q5_k},
    {MixMatrix::output, everywhere, DType::q3_k},
};
constexpr MixRule kThreeSmall[] = {
    {MixMatrix::values, of_eighty_layers, DType::q5_k},
    {MixMatrix::output, of_eight_experts, DType::q5_k},
};
constexpr MixRule kThreeMedium[] = {
    {MixMatrix::values, first_two, DType::q5_k},
    {MixMatrix::values, of_eighty_layers, DType::q5_k},
    {MixMatrix::values, everywhere, DType::q4_k},
    {MixMatrix::fused, first_two, DType::q5_k},
    {MixMatrix::fused, everywhere, DType::q4_k},
    {MixMatrix::down, first_sixteenth, DType::q5_k},
    {MixMatrix::down, everywhere, DType::q4_k},
    {MixMatrix::output, of_eight_experts, DType::q5_k},
    {MixMatrix::output, everywhere, DType::q4_k},
};
constexpr MixRule kThreeLarge[] = {
    {MixMatrix::values, everywhere, DType::q5_k},
    {MixMatrix::fused, everywhere, DType::q5_k},
    {MixMatrix::down, everywhere, DType::q5_k},
    {MixMatrix::output, of_other_experts, DType::q5_k},
};
constexpr MixRule kFourSmall[] = {
    {MixMatrix::values, first_four, DType::q5_k},
    {MixMatrix::values, of_eighty_layers, DType::q5_k},
    {MixMatrix::fused, first_four, DType::q5_k},
    {MixMatrix::down, first_eighth, DType::q5_k},
    {MixMatrix::output, of_eight_experts, DType::q5_k},
};
constexpr MixRule kFourMedium[] = {
    {MixMatrix::values, more_bits, DType::q6_k},
    {MixMatrix::values, of_eighty_layers, DType::q5_k},
    {MixMatrix::fused, more_bits, DType::q6_k},
    {MixMatrix::down, more_bits, DType::q6_k},
    {MixMatrix::output, of_eight_experts, DType::q5_k},
};
constexpr MixRule kFiveMedium[] = {
    {MixMatrix::values, more_bits, DType::q6_k},
    {MixMatrix::fused, more_bits, DType::q6_k},
    {MixMatrix::down, more_bits, DType::q6_k},
};

constexpr MixRule kFourTable[] = {
    {MixMatrix::values, shared_by_four, DType::q5_k},
    {MixMatrix::down, first_eighth_not_weighed, DType::q5_k},
    {MixMatrix::output, of_eight_experts, DType::q5_k},
};
// One scale for 32 numbers may cost the first layers more where it is chosen for the columns that
// count.
constexpr MixRule kFourPlain[] = {{MixMatrix::down, first_eighth_weighed, DType::q4_1}};
constexpr MixRule kFivePlain[] = {{MixMatrix::down, first_eighth_weighed, DType::q5_1}};
// A row of the embedding is all that the layers are told of a token.
constexpr MixRule kEmbeddingInFour[] = {{MixMatrix::embedding, everywhere, DType::q4_k}};
constexpr MixRule kExpertsInFour[] = {{MixMatrix::experts, everywhere, DType::mxfp4}};

constexpr QuantMix kMixes[] = {
    {"q8_0", "", DType::q8_0, 7, "8.5 bits a number, hardly any loss", {}},
    {"q6_k", "", DType::q6_k, 18, "6.6 bits", {}},
    {"q5_k_m", "q5_k", DType::q5_k, 17, "5.5 bits, 6.6 where it matters most", kFiveMedium},
    {"q5_k_s", "", DType::q5_k, 16, "5.5 bits", {}},
    {"q5_1", "", DType::q5_1, 9, "6 bits", {}},
    {"q5_0", "", DType::q5_0, 8, "5.5 bits", kFivePlain},
    {"q4_k_m", "q4_k", DType::q4_k, 15, "4.5 bits, 6.6 where it matters most: the usual choice",
     kFourMedium},
    {"q4_k_s", "", DType::q4_k, 14, "4.5 bits, 5.5 in the first layers", kFourSmall},
    {"iq4_nl", "", DType::iq4_nl, 25, "4.5 bits, steps finer around zero", kFourTable},
    {"iq4_xs", "", DType::iq4_xs, 30, "4.3 bits, steps finer around zero", kFourTable},
    {"q4_1", "", DType::q4_1, 3, "5 bits", {}},
    {"q4_0", "", DType::q4_0, 2, "4.5 bits", kFourPlain},
    {"q3_k_l", "", DType::q3_k, 13, "3.4 bits, 5.5 in half of the matrices", kThreeLarge},
    {"q3_k_m", "q3_k", DType::q3_k, 12, "3.4 bits, 4.5 in half of the matrices", kThreeMedium},
    {"q3_k_s", "", DType::q3_k, 11, "3.4 bits", kThreeSmall},
    {"q2_k", "", DType::q2_k, 10, "2.6 bits, 3.4 in half of the matrices", kTwo},
    {"q2_0", "", DType::q2_0, 41, "2.3 bits, one scale for 64 numbers: coarse", kEmbeddingInFour},
    {"mxfp4_moe", "mxfp4", DType::q8_0, 38, "experts in 4.25 bits, the rest in 8.5: as gpt-oss",
     kExpertsInFour},
};

// What llama.cpp has and we do not make, by how the names begin.
struct NotMade {
  std::string_view begin, type, instead;
};
constexpr NotMade kNotMade[] = {
    {"q2_k_s", "a mix of Q2_K", "q2_k"},
    {"iq", "IQ types", "iq4_xs, or q3_k_m or q2_k where it must be small"},
    {"tq", "the ternary types", "q2_0, the smallest that is made here"},
    {"nvfp4", "NVFP4", "mxfp4_moe"},
};

std::string lower(std::string_view name) {
  std::string out(name);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// llama.cpp's rules know matrices by their names. Those of linear attention have the names of
// attention's where queries, keys and values are apart in the file, which its way back tells only
// by the decays.
std::optional<MixMatrix> matrix_of(const Param& param, bool fused, const ModelConfig& c) {
  if (fused) return MixMatrix::fused;
  if (param.part == Part::embedding) return MixMatrix::embedding;
  if (param.kind == ParamKind::down) return MixMatrix::down;
  if (param.part != Part::attention) return std::nullopt;
  switch (param.kind) {
    case ParamKind::v:
    case ParamKind::linear_v: return MixMatrix::values;
    case ParamKind::k:
    case ParamKind::linear_k: return MixMatrix::keys;
    case ParamKind::o: return MixMatrix::output;
    case ParamKind::linear_o:
      return c.linear.by_channel() ? std::optional(MixMatrix::output) : std::nullopt;
    default: return std::nullopt;
  }
}

// How many heads share keys and values in the first layer, where llama.cpp asks: by a file's count
// of them, which is 1 of latents and 0 where a layer without attention has one.
int64_t sharing_of(const ModelConfig& c) {
  if (c.mixer(0) == Mixer::linear) return c.linear.by_channel() ? 0 : c.heads / c.kv_heads;
  if (!c.attends(0)) return 0;
  const AttentionShape first = c.attention(0);
  return c.latent.present() ? first.heads : first.heads / first.kv_heads;
}

// Whether a layer has a tensor that is called values, or queries, keys and values in one. Latent
// attention has its values in a matrix of another name.
bool has_values(const ModelConfig& c, int64_t layer) {
  return c.is_linear(layer) || c.mixer(layer) == Mixer::lightning ||
         (c.attends(layer) && !c.latent.present());
}

// Layer numbers are the model's, dense and MoE layers alike, but values are counted among the
// layers that have some, and in a model without experts an FFN among the FFNs, of as many as there
// are layers (llama_tensor_get_type_impl; its counters go up with each such tensor).
MixSlot slot_of(std::optional<MixMatrix> matrix, const Param& param, const ModelConfig& c,
                bool weighed) {
  MixSlot slot{param.layer, c.layers, c.moe_layer_count() > 0 ? c.routing.experts : 0,
               sharing_of(c), weighed};
  if (matrix == MixMatrix::values || matrix == MixMatrix::fused) {
    slot.layer = slot.layers = 0;
    for (int64_t layer = 0; layer < c.layers; ++layer) {
      if (!has_values(c, layer)) continue;
      ++slot.layers;
      slot.layer += layer < param.layer;
    }
  }
  if (matrix == MixMatrix::down && slot.experts == 0)
    slot.layer -= std::ranges::count_if(c.mixer_only_layers,
                                        [&](int64_t layer) { return layer < param.layer; });
  return slot;
}

bool holds_for(MixMatrix named, std::optional<MixMatrix> matrix, const Param& param) {
  return named == MixMatrix::experts ? param.part == Part::experts : named == matrix;
}

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
      fail_usage("{} {}: llama.cpp makes it of {}, which moe does not make; take {}", option,
                 printable(name, 40), other.type, other.instead);
  const std::optional<DType> dtype = dtype_named(wanted);
  if (dtype && !is_quantised(*dtype))
    fail_usage("{} is no quantised type; ask for it with @dtype {}", name_of(*dtype),
               name_of(*dtype));
  fail_usage("{}: no type or mix of types is called '{}'{}", option, printable(name, 40),
             suggestion(name, quant_mix_names(), std::size(kMixes)));
}

DType type_in_mix(const QuantMix& mix, const Param& param, bool fused, const ModelConfig& config,
                  bool weighed) {
  const std::optional<MixMatrix> matrix = matrix_of(param, fused, config);
  const MixSlot place = slot_of(matrix, param, config, weighed);
  for (const std::span<const MixRule> rules : {std::span<const MixRule>(kEvery), mix.rules})
    for (const MixRule& rule : rules)
      if (holds_for(rule.matrix, matrix, param) && rule.where(place)) return rule.dtype;
  return mix.base;
}

}  // namespace moe
