// The keys of Llama 4's text beside those of all (transformers:llama4/configuration_llama4.py,
// modeling_llama4.py): layers whose attention is cut into chunks, queries that grow in the others,
// and which layers route.
#include "hub/folder/expert_rows.h"
#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char *kLlama4Chunk = "attention_chunk_size", *kLlama4Types = "layer_types",
                     *kLlama4Grows = "attn_temperature_tuning", *kLlama4Step = "floor_scale",
                     *kLlama4Growth = "attn_scale", *kLlama4Routing = "moe_layers",
                     *kLlama4Every = "interleave_moe_layer_step";
constexpr const char *kLlama4Chunked[] = {"chunked_attention"}, *kLlama4Full[] = {"full_attention"};

bool turns_in(const ModelConfig& c, int64_t layer) { return c.attention(layer).rotary_width > 0; }

// Layers that turn, unless they are listed.
void read_chunked_layers(const JsonReader& reader, ModelConfig& c) {
  const auto chunk = reader.get_in<int64_t>(kLlama4Chunk, 1, kMaxSize);
  std::vector<int64_t> chunked;
  if (reader.has(kLlama4Types))
    chunked =
        layers_of_type(reader, c, kLlama4Types, reader.get<std::vector<std::string>>(kLlama4Types),
                       kLlama4Chunked, kLlama4Full);
  else
    for (int64_t i = 0; i < c.layers; ++i)
      if (turns_in(c, i)) chunked.push_back(i);
  if (chunked.empty()) return;
  c.attention_window = chunk;
  c.window_chunks = true;
  c.window_layers = chunked;
}

// Its first configs had a number for the switch.
bool grows_where_still(const JsonReader& reader) {
  const Json& said = reader.value(kLlama4Grows);
  return said.is_number_integer() ? said != 0 : reader.get<bool>(kLlama4Grows);
}

}  // namespace

void read_llama4(const JsonReader& reader, ModelConfig& c) {
  read_chunked_layers(reader, c);
  if (grows_where_still(reader)) {
    c.query_growth = {
        .beta = static_cast<float>(reader.get_in<double>(kLlama4Growth, FLT_MIN, FLT_MAX)),
        .context = reader.get_in<int64_t>(kLlama4Step, 1, kMaxSize),
        .where_still = true};
    return;
  }
  for (const char* key : {kLlama4Step, kLlama4Growth}) stands(reader, key);
}

// What nothing reads is as the class has it; its code wants a chunk where no layer has one, too.
void write_llama4(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  fields.size(kLlama4Chunk, c.window_chunks ? c.attention_window : c.context, 1);
  json[kLlama4Types] = Json::array();
  for (int64_t i = 0; i < c.layers; ++i)
    json[kLlama4Types].push_back(c.has_window(i) ? kLlama4Chunked[0] : kLlama4Full[0]);
  const bool grows = c.query_growth.present();
  json[kLlama4Grows] = grows;
  fields.size(kLlama4Step, grows ? c.query_growth.context : 8192, 1);
  fields.number(kLlama4Growth, grows ? c.query_growth.beta : 0.1f, 0);
}

// A list goes before every so many-th.
void read_llama4_experts(const JsonReader& reader, ModelConfig& c) {
  if (reader.has(kLlama4Routing)) {
    stands(reader, kLlama4Every);
    FieldReader(reader).layer_list(kLlama4Routing, c.moe_layers);
  } else {
    const auto every = reader.get_in<int64_t>(kLlama4Every, 1, kMaxLayers);
    for (int64_t i = every - 1; i < c.layers; i += every) c.moe_layers.push_back(i);
  }
  if (c.moe_layers.empty())
    fail("{}: no layer routes by \"{}\" and \"{}\"; such a model is a dense one", reader.where(),
         kLlama4Routing, kLlama4Every);
  if (std::ssize(c.moe_layers) == c.layers) c.moe_layers.clear();
  c.weigh_inputs = true;
}

void write_llama4_experts(Json& json, const ModelConfig& c) {
  json[kLlama4Every] = 1;
  json[kLlama4Routing] = Json::array();
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.is_moe(i)) json[kLlama4Routing].push_back(i);
}

}  // namespace moe
