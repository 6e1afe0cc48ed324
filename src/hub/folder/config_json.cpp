// config.json as a whole: the model_type picks the list of fields (hub/folder/config_fields.h),
// what nobody asked for is refused, the result is validated.
#include "hub/folder/config_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/nearest.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_fields.h"

namespace moe {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

}  // namespace

namespace {

// What else the configs of such models say of pictures and sound.
constexpr std::string_view kOfOthers[] = {"initializer_range",
                                          "mm_tokens_per_image",
                                          "vision_soft_tokens_per_image",
                                          "enable_audio_output",
                                          "position_id_per_seconds",
                                          "seconds_per_chunk",
                                          "projector_hidden_act",
                                          "vision_feature_layer",
                                          "multimodal_projector_bias",
                                          "spatial_merge_size",
                                          "projector_patch_to_query_dict",
                                          "max_value_projector_patch_to_query_dict",
                                          "ignore_index"};

// Of the config of a model of pictures and text that of the text, with what counts for both.
Json text_config(const JsonReader& reader, const Json& json, const TextWithin& within) {
  Json text = parse_json(std::string(within.defaults), "the defaults of a config");
  reader.object(within.key);  // it is one
  for (const auto& [key, value] : json[within.key].items())
    if (!key.ends_with("_token_id")) text[key] = value;
  if (const Json own = text.value("model_type", Json(within.own_type));
      !within.own_type.empty() && own != within.own_type)
    fail("{}: the text of \"{}\" is {}, which is not read of it", reader.where(), within.model_type,
         printable(own.dump()));
  text["model_type"] = within.text_type;
  // What counts for both stands around, and transformers 5 writes the text's own default within.
  for (const char* key : {"tie_word_embeddings", "quantization_config"})
    if (reader.has(key)) text[key] = json[key];
  for (const std::string& key : reader.keys())
    if (key.ends_with("_config") || key.ends_with("_token_id") || key.ends_with("_token_index") ||
        key == "tie_word_embeddings" || std::ranges::find(kOfOthers, key) != std::end(kOfOthers))
      reader.has(key.c_str());
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

// That the config of the text says, if there is one and it says one.
std::string type_of_text(const Json& json) {
  const auto text = json.find("text_config");
  if (text == json.end() || !text->is_object()) return {};
  const auto type = text->find("model_type");
  return type != text->end() && type->is_string() ? type->get<std::string>() : std::string();
}

FolderConfig read_json_config(const Json& json, const std::string& where) {
  const JsonReader reader(json, where);
  const std::string model_type = usual_model_type(reader);
  const TextWithin* within = find_text_within(model_type, type_of_text(json));
  if (within == nullptr) return read_text_model(reader, model_type);
  const Json inner = text_config(reader, json, *within);
  reader.refuse_unknown(ignored_config_keys());
  FolderConfig found = read_json_config(inner, fmt::format("{}: \"{}\"", where, within->key));
  found.beside_others = true;
  return found;
}

}  // namespace

FolderConfig read_config(std::string_view text, const std::string& where) {
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
