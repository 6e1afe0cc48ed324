// Laguna's words for heads, gates and dense layers (transformers:laguna/configuration_laguna.py and
// modeling_laguna.py).
#include <numeric>

#include "hub/folder/expert_rows.h"
#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char *kLagunaHeads = "num_attention_heads_per_layer",
                     *kLagunaOfAll = "num_attention_heads", *kLagunaGates = "gating",
                     *kLagunaGateTypes = "gating_types", *kLagunaDense = "mlp_only_layers",
                     *kOfHead = "per-head", *kOfElement = "per-element";

void read_laguna_gates(const JsonReader& reader, ModelConfig& c) {
  need_to_stand(reader, kLagunaGates, "true or \"per-head\", or \"per-element\"");
  const Json& said = reader.value(kLagunaGates);
  if (said != true && said != kOfHead && said != kOfElement)
    refuse(reader, kLagunaGates, "only true, \"per-head\" and \"per-element\" are known");
  c.gate_softplus = true;
  c.head_gates = said != kOfElement;
  if (!reader.has(kLagunaGateTypes)) return;
  const char* wanted = c.head_gates ? "per_head" : "per_element";
  for (const auto& type : reader.get<std::vector<std::string>>(kLagunaGateTypes))
    if (type != wanted)
      refuse(reader, kLagunaGateTypes, "gates of all layers are alike, as \"gating\" says");
}

// Layers of a kind are alike here.
void read_laguna_heads(const JsonReader& reader, ModelConfig& c) {
  if (!reader.has(kLagunaHeads)) return;
  const auto heads = reader.get<std::vector<int64_t>>(kLagunaHeads);
  if (std::ssize(heads) != c.layers)
    fail("{}: \"{}\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(), kLagunaHeads,
         heads.size(), c.layers);
  int64_t of[2] = {0, 0};  // of layers without a window, and with one
  for (int64_t i = 0; i < c.layers; ++i) {
    const int64_t n = heads[static_cast<size_t>(i)];
    int64_t& wanted = of[c.has_window(i) ? 1 : 0];
    if (n < 1 || n > kMaxSize || (wanted != 0 && n != wanted))
      fail("{}: \"{}\" has {} at layer {}; layers of a kind have as many heads as each other here",
           reader.where(), kLagunaHeads, n, i);
    wanted = n;
  }
  c.heads = of[1] > 0 ? of[1] : of[0];
  if (of[0] > 0 && of[0] != c.heads) c.full.heads = of[0];
}

}  // namespace

void read_laguna(const JsonReader& reader, ModelConfig& c) {
  read_laguna_gates(reader, c);
  read_laguna_heads(reader, c);
}

// Some configs say a second time which layers are dense.
void check_laguna_dense(const JsonReader& reader, ModelConfig& c) {
  if (!reader.has(kLagunaDense)) return;
  std::vector<int64_t> dense(static_cast<size_t>(c.dense_first));
  std::iota(dense.begin(), dense.end(), 0);
  if (reader.get<std::vector<int64_t>>(kLagunaDense) != dense)
    refuse(reader, kLagunaDense, "\"mlp_layer_types\" says other layers; make them equal");
}

void write_laguna(Json& json, const ModelConfig& c) {
  const int64_t full = c.full.heads > 0 ? c.full.heads : c.heads;
  json[kLagunaOfAll] = full;
  json[kLagunaHeads] = Json::array();
  for (int64_t i = 0; i < c.layers; ++i) json[kLagunaHeads].push_back(c.attention(i).heads);
  json[kLagunaGates] = c.head_gates ? kOfHead : kOfElement;
}

}  // namespace moe
