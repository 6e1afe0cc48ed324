// config.json as a whole: the model_type picks the list of fields (hub/folder/config_fields.h),
// what nobody asked for is refused, the result is validated.
#include "hub/folder/config_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/nearest.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_fields.h"

namespace moe {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

// Python writes a number without end as a word that json has not; in its place stands the object
// that transformers 5 writes. Strings stay as they are.
std::string with_numbers_without_end(std::string_view text) {
  constexpr std::string_view kWord = "Infinity", kObject = R"({"__float__": "Infinity"})";
  std::string json;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!in_string && text.substr(i).starts_with(kWord)) {
      json += kObject;
      i += kWord.size() - 1;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    json += text[i];
    if (in_string && text[i] == '\\' && i + 1 < text.size()) json += text[++i];
  }
  return json;
}

}  // namespace

namespace {

constexpr std::string_view kOfBoth = "initializer_range";
// What else the configs of such models say of pictures and sound.
constexpr std::string_view kOfOthers[] = {kOfBoth,
                                          "mm_tokens_per_image",
                                          "vision_soft_tokens_per_image",
                                          "enable_audio_output",
                                          "enable_talker",
                                          "position_id_per_seconds",
                                          "seconds_per_chunk",
                                          "projector_hidden_act",
                                          "vision_feature_layer",
                                          "multimodal_projector_bias",
                                          "spatial_merge_size",
                                          "projector_patch_to_query_dict",
                                          "max_value_projector_patch_to_query_dict",
                                          "ignore_index",
                                          "downsample_ratio",
                                          "image_seq_length",
                                          "vision_feature_select_strategy",
                                          "image_grid_pinpoints",
                                          "use_image_newline_parameter",
                                          "vision_aspect_ratio",
                                          "scale_factor",
                                          "max_frames",
                                          "use_export_friendly",
                                          "use_reentrant_checkpointing",
                                          "projector_hidden_size",
                                          "merged_hidden_size",
                                          "num_reward_heads",
                                          "projector_bias",
                                          "projector_use_layernorm",
                                          "downsample_factor",
                                          "min_image_tokens",
                                          "max_image_tokens",
                                          "encoder_patch_size",
                                          "use_image_special_tokens",
                                          "do_image_splitting",
                                          "min_tiles",
                                          "max_tiles",
                                          "tile_size",
                                          "max_pixels_tolerance",
                                          "use_thumbnail",
                                          "max_num_patches",
                                          "adapter_layer_norm_eps",
                                          "alignment_intermediate_size",
                                          "use_unified_vision_chunk",
                                          "video_placeholder",
                                          "candidate_resolutions",
                                          "global_view_pos",
                                          "tile_tag",
                                          "dynamic_image_size",
                                          "force_image_size",
                                          "image_fold",
                                          "max_dynamic_patch",
                                          "min_dynamic_patch",
                                          "pad2square",
                                          "ps_version",
                                          "select_layer",
                                          "system_message",
                                          "template",
                                          "use_backbone_lora",
                                          "use_llm_lora"};

bool is_of_others(std::string_view key) {
  for (const char* end : {"_config", "_token_id", "_token_index"})
    if (key.ends_with(end)) return true;
  return std::ranges::find(kOfOthers, key) != std::end(kOfOthers);
}

// The config that has the keys of the text: one within, or the whole.
const Json& holder_of_text(const JsonReader& reader, const Json& json, const TextWithin& within) {
  if (within.may_stand_around && !reader.has(within.key)) return json;
  reader.object(within.key);  // it is one
  return json[within.key];
}

// The row of what the text says it is.
const TextWithin& row_of_text(const JsonReader& reader, const Json& json,
                              const std::vector<const TextWithin*>& rows) {
  const TextWithin& first = *rows.front();
  if (first.own_type.empty()) return first;
  const Json own = holder_of_text(reader, json, first).value("model_type", Json(first.own_type));
  std::vector<std::string> known;
  for (const TextWithin* row : rows) {
    if (own == row->own_type) return *row;
    known.push_back(fmt::format("\"{}\"", row->own_type));
  }
  fail("{}: the text of \"{}\" is {}; only {} is read of it", reader.where(), first.model_type,
       printable(own.dump()), fmt::join(known, " or "));
}

// Of the config of a model of pictures and text that of the text, with what counts for both.
Json text_config(const JsonReader& reader, const Json& json, const TextWithin& within) {
  Json text = parse_json(std::string(within.defaults), "the defaults of a config");
  const Json& from = holder_of_text(reader, json, within);
  // transformers 5 has the base there, and no default of a class stands beside it
  if (from.contains("rope_parameters")) text.erase("rope_theta");
  const bool around = &from == &json;
  for (const auto& [key, value] : from.items())
    if (around ? key == kOfBoth || !is_of_others(key) : !key.ends_with("_token_id"))
      text[key] = value;
  text["model_type"] = within.text_type;
  // What counts for both stands around, and transformers 5 writes the text's own default within.
  for (const char* key : {"tie_word_embeddings", "quantization_config"})
    if (reader.has(key) && !(within.ties_by_either && text.value(key, Json()) == true))
      text[key] = json[key];
  // Of what stands in both the text's own counts, as in transformers.
  for (const std::string& key : reader.keys())
    if (is_of_others(key) || text.contains(key) || key == "tie_word_embeddings") reader.has(key);
  return text;
}

FolderConfig read_text_model(const JsonReader& reader, const std::string& model_type) {
  const std::string& where = reader.where();
  reader.has("model_type");  // of a config within another
  ModelConfig config = find_model_type(model_type, where).read(reader);
  config.model_type = model_type;
  const Packing packing = read_packing(reader);
  reader.refuse_unknown(ignored_config_keys());
  try {
    validate(config);
  } catch (const Error& e) {
    fail("{}: {}", where, e.what());
  }
  const Architecture& architecture = architecture_of(config, model_type, where);
  const bool mxfp4 = packing.kind == Packing::Kind::mxfp4;
  if (mxfp4 && architecture.mxfp4_names == nullptr)
    fail("{}: \"quantization_config\" says MXFP4, in which no \"{}\" is known", where, model_type);
  return {config, &architecture, mxfp4 ? architecture.mxfp4_names : architecture.names, packing};
}

FolderConfig read_json_config(const Json& json, const std::string& where) {
  const JsonReader reader(json, where);
  const std::string model_type = usual_model_type(reader);
  const std::vector<const TextWithin*> rows = find_texts_within(model_type);
  if (rows.empty()) return read_text_model(reader, model_type);
  const TextWithin& within = row_of_text(reader, json, rows);
  const Json inner = text_config(reader, json, within);
  reader.refuse_unknown(ignored_config_keys());
  const bool around = within.may_stand_around && !reader.has(within.key);
  FolderConfig found =
      read_json_config(inner, around ? where : fmt::format("{}: \"{}\"", where, within.key));
  found.beside_others = true;
  return found;
}

}  // namespace

FolderConfig read_config(std::string_view text, const std::string& where) {
  if (text.size() <= kMaxConfigBytes && text.find("Infinity") != std::string_view::npos)
    return read_json_config(parse_json(with_numbers_without_end(text), where, kMaxConfigBytes),
                            where);
  return read_json_config(parse_json(text, where, kMaxConfigBytes), where);
}

ModelConfig parse_config(std::string_view text, const std::string& where) {
  return read_config(text, where).config;
}

std::string config_to_json(const ModelConfig& config) {
  validate(config);
  const Architecture& architecture = architecture_of(config);
  Json json = {{"model_type", architecture.model_type},
               {"architectures", {architecture.class_name}}};
  architecture.write(json, config);
  return json.dump(2) + "\n";
}

}  // namespace moe
