// The fields of sparse attention (transformers:deepseek_v32/configuration_deepseek_v32.py,
// glm_moe_dsa/configuration_glm_moe_dsa.py). In GLM-5 a list says which layers have an indexer, or
// a pattern of letters, or how many share one; where nothing does, all have.
#include <algorithm>

#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char *kIndexerTypes = "indexer_types", *kIndexerPattern = "index_topk_pattern",
                     *kIndexerEvery = "index_topk_freq", *kIndexerOffset = "index_skip_topk_offset";

template <class Visitor, class Config>
void visit_indexers(Visitor& v, Config& c) {
  v.size("index_topk", c.sparse.top, 1);
  v.size("index_n_heads", c.sparse.heads, 1);
  v.size("index_head_dim", c.sparse.width, 1);
}

// Of each layer "full" or "shared".
std::vector<std::string> indexer_types(const JsonReader& reader, const ModelConfig& c) {
  const auto every = reader.get_in<int64_t>(kIndexerEvery, 0, kMaxLayers, 1),
             offset = reader.get_in<int64_t>(kIndexerOffset, 0, kMaxLayers, 2);
  const bool listed = reader.has(kIndexerTypes), letters = reader.has(kIndexerPattern);
  std::vector<std::string> types;
  if (letters && reader.value(kIndexerPattern).is_string() && !listed) {
    for (const char letter : reader.get<std::string>(kIndexerPattern))
      types.emplace_back(letter == 'F' ? "full" : letter == 'S' ? "shared" : "?");
    return types;
  }
  if (listed || letters)
    return reader.get<std::vector<std::string>>(listed ? kIndexerTypes : kIndexerPattern);
  for (int64_t i = 0; i < c.layers; ++i)
    types.emplace_back(std::max<int64_t>(i - offset + 1, 0) % std::max<int64_t>(every, 1) == 0
                           ? "full"
                           : "shared");
  return types;
}

}  // namespace

void read_indexers(const JsonReader& reader, ModelConfig& c, const Family& f) {
  FieldReader fields(reader);
  visit_indexers(fields, c);
  if (reader.has("layer_types"))
    for (const std::string& type : reader.get<std::vector<std::string>>("layer_types"))
      if (type != "indexed_attention" && type != "deepseek_sparse_attention")  // as it once was
        fail("{}: \"layer_types\" has \"{}\"; of this family all layers are \"indexed_attention\"",
             reader.where(), printable(type));
  if (!f.shared_indexers) return;
  const std::vector<std::string> types = indexer_types(reader, c);
  if (std::ssize(types) != c.layers)
    fail("{}: indexers of {} layers are listed, \"num_hidden_layers\" is {}", reader.where(),
         types.size(), c.layers);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string& type = types[static_cast<size_t>(i)];
    if (type == "shared") c.sparse.followers.push_back(i);
    else if (type != "full")
      fail("{}: \"{}\" has \"{}\" at layer {}; \"full\" and \"shared\" are known", reader.where(),
           reader.has(kIndexerTypes) ? kIndexerTypes : kIndexerPattern, printable(type), i);
  }
}

void write_indexers(Json& json, const ModelConfig& c, const Family& f) {
  FieldWriter fields(json);
  visit_indexers(fields, c);
  if (!f.shared_indexers) return;
  json[kIndexerTypes] = Json::array();
  for (int64_t i = 0; i < c.layers; ++i)
    json[kIndexerTypes].push_back(c.attention(i).index_heads > 0 ? "full" : "shared");
}

std::string why_not_indexers(const ModelConfig& c, const Family& f) {
  if (f.blocks)
    return c.sparse.present() && c.sparse.block == 0 ? "its attention sees tokens that it chooses"
                                                     : "";
  if (c.sparse.present() != f.indexed)
    return f.indexed ? "its attention is not sparse" : "its attention is sparse";
  if (!c.sparse.followers.empty() && !f.shared_indexers)
    return "some of its layers have no indexer";
  return "";
}

}  // namespace moe
