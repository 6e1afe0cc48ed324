// Low-rank adapters as PEFT keeps them: a folder of adapter_config.json and
// adapter_model.safetensors, whose names are those of the model's tensors in its Hugging Face
// folder. Format: huggingface/peft, docs/source/developer_guides/checkpoint.md;
// src/peft/tuners/lora/{config,layer}.py.
//
//   base_model.model.<module>.lora_A.weight [r,I], base_model.model.<module>.lora_B.weight [O,r]:
//     W += alpha / r * B A
//   base_model.model.<name>: a tensor that stands in the place of the model's own
//     ("modules_to_save")
//   base_model.model.<module>.token_adapter.trainable_tokens_delta [T,D]: rows that stand in the
//     place of those of the embedding or of the head whose numbers the configuration has
//     ("trainable_token_indices": a list, of the embedding, or {"<module>": a list}); a head that
//     is the embedding follows it (src/peft/tuners/trainable_tokens/layer.py)
//
// Where a tensor of the model holds several of its matrices (q, k and v in one), theirs are
// stacked: A end to end, B along a diagonal, with a rank_pattern. Where it holds a whole bank of
// experts, each has its own pair, <module>.<expert>, which PEFT itself has no name for. An expert
// that has no adapter has no pair; in a tensor of several experts its rows of B are zero.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/json.h"
#include "formats/safetensors.h"
#include "hub/hub.h"
#include "model/adapters.h"
#include "options/fields.h"

namespace moe {

// What is added to a matrix of the model, or to experts' of a bank.
struct LowRank {
  Param* base = nullptr;              // [O,I] or [E,O,I]
  Tensor a;                           // [r,I] or [P,r,I] f32
  Tensor b;                           // [O,r] or [P,O,r] f32
  std::vector<int64_t> experts = {};  // [P] of the pairs, as LowRankTerm has them
};

// Rows of the embedding or of the head that stand in the place of its own.
struct OfTokens {
  Param* base = nullptr;     // [V,D]
  Tensor rows;               // [T,D] f32
  std::vector<int64_t> ids;  // [T] ascending
};

struct AdapterFile {
  int64_t rank = 0;
  double alpha = 0;
  std::string base_model;  // where the weights lie that it belongs to; empty: not said
  std::vector<LowRank> matrices;
  std::vector<Param*> whole;  // stored as they are
  std::vector<OfTokens> tokens = {};
};

// Both files, each whole or not at all. Fails, naming it, where a tensor of the model has no name
// of its own for what is stored. `metadata`: of adapter_model.safetensors, which is written last.
void save_adapter(const std::string& folder, Model&, const AdapterFile&,
                  const std::map<std::string, std::string>& metadata = {});

// Whether the folder holds an adapter and no model of its own.
bool is_adapter(const std::string& folder);
// The model that the adapter in `folder` says it belongs to; fails where it says none, or that is
// not there.
std::string adapter_base(const std::string& folder);
// Metadata of its adapter_model.safetensors.
std::map<std::string, std::string> adapter_metadata(const std::string& folder);

// What of an adapter a model is given.
enum class AdapterPart { all, whole_tensors };
struct AttachedAdapter {
  int64_t matrices = 0;                  // of the model that something is added to
  int64_t whole = 0;                     // parameters that were replaced
  int64_t token_rows = 0;                // of embedding and head that stand apart
  std::shared_ptr<Adapters> terms = {};  // that hang there now; the Model keeps them too
};
// Hangs the adapter in `folder`, or in a GGUF file (hub/adapter_gguf.h), on a model
// (model/adapters.h), whose weights stay as they are; what the adapter brings whole is f32 in the
// Model's memory. Refuses, naming file and key: another kind of adapter, names or shapes that are
// not the model's, half a pair, numbers that are not finite.
AttachedAdapter attach_adapter(Model&, const std::string& folder, int threads,
                               AdapterPart = AdapterPart::all);
// The same from both files as they are read; `where` names the configuration in errors.
AttachedAdapter attach_adapter(Model&, const Json& config, const std::string& where,
                               const Safetensors&, int threads, AdapterPart = AdapterPart::all);

// The model that the adapter in `folder` belongs to, with it: tokenizer and metadata are the
// folder's own, where it has some.
LoadedModel with_adapter(LoadedModel base, const std::string& folder,
                         AdapterPart = AdapterPart::all);

// What hangs on a model's matrices by attach_adapter; views of its memory. What was brought whole
// is not in it.
AdapterFile adapter_on(Model&);
// max over matrices of |s B A| / |W| of the terms that hang on them, Frobenius norms; reads every
// such matrix.
double largest_term(const Model&);

// A model that is run with an adapter, its own or another: the folder, or empty for none.
LoadedModel open_adapted(const std::string& model, const std::string& adapter, const MemoryLimits&,
                         const comm::Group& experts = {});
void add_adapter(FieldList&, std::string& adapter);

}  // namespace moe
