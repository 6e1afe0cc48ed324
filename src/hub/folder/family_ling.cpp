// The keys of Ling 3.0's linear attention (transformers:bailing_hybrid/
// configuration_bailing_hybrid.py). Published configs have its sizes under keys of other things:
// the width of a head, their number, the layers as groups of which the last one has attention.
// transformers saves them under keys of their own too, and then "head_dim" is what turns of a head
// of attention.
#include "hub/folder/family_parts.h"
#include "hub/folder/mixer_rows.h"

namespace moe {
namespace {

constexpr const char *kLingTypes = "layer_types", *kLingGroup = "layer_group_size",
                     *kLingLinear = "linear_attention", *kLingFull = "full_attention";
constexpr const char *kLingWidth = "linear_head_dim", *kLingHeads = "linear_num_heads",
                     *kLingTaps = "linear_conv_kernel_dim";
constexpr const char *kLingHeadDim = "head_dim", *kLingKernel = "short_conv_kernel_size";
constexpr const char *kLingBounded = "kda_safe_gate", *kLingBound = "kda_lower_bound";

int64_t read_ling_width(const JsonReader& reader, const ModelConfig& c) {
  if (!reader.has(kLingWidth)) return reader.get_in<int64_t>(kLingHeadDim, 1, kMaxSize);
  const auto width = reader.get_in<int64_t>(kLingWidth, 1, kMaxSize);
  const auto said = reader.get<int64_t>(kLingHeadDim, width);
  if (said != width && said != c.rotary_width)
    refuse(reader, kLingHeadDim, "\"linear_head_dim\" says another width; make them equal");
  return width;
}

int64_t read_ling_taps(const JsonReader& reader) {
  const auto taps =
      reader.get_in<int64_t>(reader.has(kLingTaps) ? kLingTaps : kLingKernel, 2, kMaxSize);
  if (reader.get<int64_t>(kLingKernel, taps) != taps)
    refuse(reader, kLingKernel, "\"linear_conv_kernel_dim\" says another number; make them equal");
  return taps;
}

// Where no types are listed. What a group that is not whole ends with is attention in some programs
// and in transformers linear (github ggml-org/llama.cpp, conversion of BailingMoeV3ForCausalLM).
std::vector<std::string> ling_types_by_groups(const JsonReader& reader, const ModelConfig& c) {
  const auto group = reader.get_in<int64_t>(kLingGroup, 1, kMaxLayers);
  if (c.layers % group != 0)
    refuse(reader, kLingGroup,
           "\"num_hidden_layers\" is no multiple of it; add \"layer_types\", which says what each "
           "layer is");
  std::vector<std::string> types;
  for (int64_t i = 0; i < c.layers; ++i)
    types.emplace_back((i + 1) % group == 0 ? kLingFull : kLingLinear);
  return types;
}

// How many layers a group has, the last of which has attention; 0: there are no such groups.
int64_t ling_group_of(const ModelConfig& c) {
  int64_t group = 1;
  while (group <= c.layers && c.is_linear(group - 1)) ++group;
  if (c.layers % group != 0) return 0;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.is_linear(i) == ((i + 1) % group == 0)) return 0;
  return group;
}

}  // namespace

void read_ling3(const JsonReader& reader, ModelConfig& c) {
  const int64_t width = read_ling_width(reader, c),
                heads = reader.get_in<int64_t>(kLingHeads, 1, kMaxSize, c.heads);
  c.linear = {.key_heads = heads,
              .value_heads = heads,
              .key_width = width,
              .value_width = width,
              .conv_width = read_ling_taps(reader),
              .channel_decays = true};
  if (reader.get<bool>(kLingBounded))
    c.linear.decay_floor =
        static_cast<float>(reader.get_in<double>(kLingBound, -FLT_MAX, -FLT_MIN));
  else stands(reader, kLingBound);
  const bool listed = reader.has(kLingTypes);
  const char *linear[] = {kLingLinear}, *full[] = {kLingFull};
  c.linear_layers = layers_of_type(
      reader, c, kLingTypes,
      listed ? reader.get<std::vector<std::string>>(kLingTypes) : ling_types_by_groups(reader, c),
      linear, full);
  if (listed) stands(reader, kLingGroup);  // which is the class's own beside a list
}

void write_ling3(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  for (const char* key : {kLingHeadDim, kLingWidth}) fields.size(key, c.linear.key_width, 1);
  for (const char* key : {kLingKernel, kLingTaps}) fields.size(key, c.linear.conv_width, 2);
  fields.size(kLingHeads, c.linear.key_heads, 1);
  const bool bounded = c.linear.decay_floor < 0;
  json[kLingBounded] = bounded;
  if (bounded) fields.number(kLingBound, c.linear.decay_floor, -FLT_MAX);
  for (int64_t i = 0; i < c.layers; ++i)
    json[kLingTypes].push_back(c.is_linear(i) ? kLingLinear : kLingFull);
  if (const int64_t group = ling_group_of(c); group > 0) json[kLingGroup] = group;
  // What other programs ask for; the layers that guess tokens ahead are not read.
  json["no_kda_lora"] = true;
  json["gated_attention_proj_granularity_type"] = "head_wise";
  json["num_nextn_predict_layers"] = 0;
}

std::string why_not_ling3(const ModelConfig& c) {
  const LinearAttention& l = c.linear;
  if (l.gate_width > 0) return "gates of its linear attention are made of few numbers";
  if (l.key_heads != l.value_heads || l.key_width != l.value_width)
    return "keys and values of its linear attention are of different sizes";
  return "";
}

}  // namespace moe
