// MiniMax-M3's words for the blocks of keys that attention chooses, and for which layers route
// (transformers:minimax_m3_vl/configuration_minimax_m3_vl.py). Its published configs say the former
// in an object, and both by lists of 0 and 1 (huggingface MiniMaxAI/MiniMax-M3).
#include "hub/folder/expert_rows.h"
#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char *kBlockTypes = "layer_types", *kBlockSparse = "minimax_m3_sparse",
                     *kBlockWhole = "full_attention", *kBlockObject = "sparse_attention_config",
                     *kBlockFreq = "sparse_attention_freq", *kBlockSwitch = "use_sparse_attention",
                     *kBlockNoValues = "sparse_disable_index_value",
                     *kBlockScore = "sparse_score_type", *kBlockFirst = "sparse_init_block";
constexpr const char *kRoutingTypes = "mlp_layer_types", *kRoutingFreq = "moe_layer_freq",
                     *kM3Routes = "sparse", *kM3Dense = "dense";

struct BlockKey {
  const char *flat, *published;
};
enum BlockSize { of_heads, of_width, of_block, of_blocks, of_local };
constexpr BlockKey kBlockKeys[] = {{"index_n_heads", "sparse_num_index_heads"},
                                   {"index_head_dim", "sparse_index_dim"},
                                   {"index_block_size", "sparse_block_size"},
                                   {"index_topk_blocks", "sparse_topk_blocks"},
                                   {"index_local_blocks", "sparse_local_block"}};

// Of each layer a word, as a list of words or one of 0 and 1 in `other` says, or both alike.
std::vector<std::string> words_of(const JsonReader& reader, const ModelConfig& c, const char* key,
                                  const JsonReader* other, const char* other_key, const char* off,
                                  const char* on) {
  if (other == nullptr || !other->has(other_key)) return reader.get<std::vector<std::string>>(key);
  std::vector<std::string> words;
  for (const int64_t one : zeros_and_ones(*other, c, other_key))
    words.emplace_back(one == 1 ? on : off);
  if (reader.has(key) && reader.get<std::vector<std::string>>(key) != words)
    refuse(reader, key,
           fmt::format("\"{}\" lists other layers; make them equal", other_key).c_str());
  return words;
}

// What transformers does not read of the object, as the makers' code has it.
void check_block_object(const JsonReader& own, const ModelConfig& c,
                        const std::vector<int64_t>& sparse) {
  if (!own.get<bool>(kBlockSwitch, true))
    refuse(own, kBlockSwitch, "the list of layers says where attention is sparse, only true");
  if (own.get<std::string>(kBlockScore, "max") != "max")
    refuse(own, kBlockScore, "a block is as good as its best key, only \"max\"");
  if (own.get<int64_t>(kBlockFirst, 0) != 0)
    refuse(own, kBlockFirst, "the first blocks are not always chosen, only 0");
  if (own.has(kBlockNoValues)) {
    const std::vector<int64_t> without = zeros_and_ones(own, c, kBlockNoValues);
    for (const int64_t layer : sparse)
      if (without[static_cast<size_t>(layer)] == 0)
        fail("{}: \"{}\" is 0 at layer {}; indexers with values of their own are not supported",
             own.where(), kBlockNoValues, layer);
  }
  own.refuse_unknown({kBlockFreq});
}

int64_t block_size_of(const JsonReader& reader, const JsonReader* own, const BlockKey& key) {
  if (own == nullptr || !own->has(key.published))
    return reader.get_in<int64_t>(key.flat, 1, kMaxSize);
  const auto size = own->get_in<int64_t>(key.published, 1, kMaxSize);
  if (reader.get<int64_t>(key.flat, size) != size)
    refuse(reader, key.flat,
           fmt::format("\"{}\" says another number; make them equal", key.published).c_str());
  return size;
}

}  // namespace

void read_blocks(const JsonReader& reader, ModelConfig& c) {
  std::optional<JsonReader> own;
  if (reader.has(kBlockObject)) own = reader.object(kBlockObject);
  const JsonReader* object = own ? &*own : nullptr;
  const char *sparse[] = {kBlockSparse}, *whole[] = {kBlockWhole};
  const std::vector<std::string> types =
      words_of(reader, c, kBlockTypes, object, kBlockFreq, kBlockWhole, kBlockSparse);
  const std::vector<int64_t> chosen = layers_of_type(reader, c, kBlockTypes, types, sparse, whole);
  int64_t sizes[std::size(kBlockKeys)] = {};
  for (size_t i = 0; i < std::size(kBlockKeys); ++i)
    if (!chosen.empty()) sizes[i] = block_size_of(reader, object, kBlockKeys[i]);
    else if (stands(reader, kBlockKeys[i].flat); object != nullptr)
      stands(*object, kBlockKeys[i].published);
  if (object != nullptr) check_block_object(*object, c, chosen);
  if (chosen.empty()) return;
  if (sizes[of_blocks] > kMaxSize / sizes[of_block])
    fail("{}: {} blocks of {} tokens are more than a model can see here", reader.where(),
         sizes[of_blocks], sizes[of_block]);
  c.sparse = {.top = sizes[of_blocks] * sizes[of_block],
              .heads = sizes[of_heads],
              .width = sizes[of_width],
              .block = sizes[of_block],
              .local = sizes[of_local]};
  for (int64_t i = 0; i < c.layers; ++i)
    if (std::ranges::find(chosen, i) == chosen.end()) c.sparse.whole_layers.push_back(i);
}

void write_blocks(Json& json, const ModelConfig& c) {
  const SparseAttention& s = c.sparse;
  for (int64_t i = 0; i < c.layers; ++i)
    json[kBlockTypes].push_back(c.attention(i).top > 0 ? kBlockSparse : kBlockWhole);
  if (!s.present()) return;
  json[kBlockKeys[of_heads].flat] = s.heads;
  json[kBlockKeys[of_width].flat] = s.width;
  json[kBlockKeys[of_block].flat] = s.block;
  json[kBlockKeys[of_blocks].flat] = s.blocks();
  json[kBlockKeys[of_local].flat] = s.local;
}

// Dense layers before all that route are counted, others listed.
void read_minimax_layers(const JsonReader& reader, ModelConfig& c) {
  const char *routing[] = {kM3Routes}, *dense[] = {kM3Dense};
  std::vector<int64_t> layers =
      layers_of_type(reader, c, kRoutingTypes,
                     words_of(reader, c, kRoutingTypes, &reader, kRoutingFreq, kM3Dense, kM3Routes),
                     routing, dense);
  if (layers.empty())
    fail("{}: no layer routes by \"{}\"; such a model is a dense one", reader.where(),
         reader.has(kRoutingTypes) ? kRoutingTypes : kRoutingFreq);
  c.dense_first = layers.front();
  if (std::ssize(layers) == c.layers - c.dense_first) return;
  c.dense_first = 0;
  c.moe_layers = std::move(layers);
}

void write_minimax_layers(Json& json, const ModelConfig& c) {
  for (int64_t i = 0; i < c.layers; ++i)
    json[kRoutingTypes].push_back(c.is_moe(i) ? kM3Routes : kM3Dense);
}

}  // namespace moe
