// What the tensors of files are called: a table for each family of model folders
// (hub/tensor_names.cpp and hub/*_names.cpp) and for each kind of GGUF files
// (hub/gguf/gguf_names.cpp), from what a parameter is to its name.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "model/parameters.h"

namespace moe {

// How a parameter lies in the file. E experts, D model, F expert width. A bias of what is
// transposed is not.
enum class Layout {
  same,            // the same shape
  per_expert,      // [E,...] as E tensors [...], {e} in the name
  bank_of_one,     // [1,...] as one tensor [...]
  transposed,      // [E,F,D] as one tensor [E,D,F], [O,I] as [I,O]
  transposed_one,  // [1,F,D] as one tensor [D,F]
  bias_rows,       // [E,F] as one tensor [E,1,F]
  as_row,          // [E] as one tensor [1,E]
  as_column,       // [E] as one tensor [E,1]
  as_groups,       // of a state space, [H*P] as one tensor [G,H*P/G]
  fused,  // rows of one tensor, in the order in which the Model lists the parameters (q, k, v)
  fused_columns,  // the same of transposed matrices: columns of one tensor [I,O]
  paired,   // rows of each head that turn, C of them, in pairs (0, C/2), (1, C/2 + 1), ..., as a
            // rotary embedding of neighbours wants them
  swapped,  // rows of each head that turn, their second half before their first, as a rotary
            // embedding that turns the other way wants them
  rotary_last,       // of each head the rows that turn behind the others, in pairs
  halves_last,       // the same in halves
  index_last,        // the same of each head of an indexer
  index_pairs_last,  // as rotary_last of each head of an indexer
  rotary_first,      // of each head of an indexer the rows that turn, which are the first, in pairs
  fused_rotary,      // as fused, all rows in pairs
  fused_paired,      // as fused, rows of each head in pairs
  fused_heads,       // as fused, but head by head: a head's keys, then its values
  by_head,           // [H*C,I] as [H,C,I]
  by_head_transposed,   // [H*C,I] as [H,I,C]
  fused_experts,        // as fused, but expert by expert: [E,F,D] and [E,F,D] as [E,2F,D]
  interleaved_experts,  // expert by expert, rows in turns and transposed: [E,F,D] twice as
                        // [E,D,2F]; of biases [E,F] twice as [E,2F]
  stacked_experts,      // the same, all rows of one behind all of the other
  interleaved_apart,    // [E,F,D] twice as E tensors [2F,D], rows in turns, {e} in the name; of
                        // biases [E,F] twice as E tensors [2F]
  fused_of_one,         // as fused, of banks of one: [1,F,D] and [1,F,D] as [2F,D]
  qkv_heads,            // as fused, but head by head: a head's queries, then its keys, its values
  gated_heads,          // as fused, but head by head: a head's queries, then its gate
  gated_latent_heads,   // the same of latent attention, queries as by rotary_last
  linear_heads,         // of linear attention, as fused, but key head by key head
  as_channels,          // [C,J] as [C,1,J]
  channels_apart,       // [C,J] of queries, keys and values as three [C',1,J], {p} in the name
  channels_cut,         // the same, cut into thirds whosever the channels are
  as_states,            // [H] as one tensor [1,1,H,1]
  bank_rows,            // [E,F,D] as one tensor [E*F,D]
  bank_columns,         // [E,D,F] as one tensor [E*F,D]
  as_number,            // [1] as one tensor of no dimensions
  plus_one,             // 1 is added to each number
  minus_exp,            // of each number x, -e^x
  minus_exp_rows,       // the same, [H] as [H,1]
  exp_rows,             // e^x, [H] as [H,1]
  columns_last,         // [M,P*C] of entries, numbers of a part as rows of a head by rotary_last
  index_rotary_last,    // as rotary_last, of each head of an indexer of entries
  index_columns_last,   // as columns_last likewise
  bank_turned_rows,     // as bank_rows, columns of each head as rows by rotary_last
  tiled,                // of linear attention, value heads key head by key head the other way round
};

// A name with {w} is that of a weight and of its bias, which stand in its place; one without is of
// one of them, a weight unless `bias` says otherwise.
struct NameRow {
  Part part;
  ParamKind kind;
  // {i} layer, {h} and {s} half of it and what is left, {e} expert, {z} zero expert, {w} "weight"
  // or "bias", {p} "q", "k" and "v", {g} ".norm" of layers that route, behind whose norm a gate
  // stands, and nothing of others
  std::string_view file;
  Layout layout = Layout::same;
  bool bias = false;
};

// The names of a kind of file.
struct TensorNames {
  std::string_view title;  // for messages
  std::span<const NameRow> rows;
  // under which a tied head may stand a second time; empty: it has no second name
  std::string_view tied_head;
  // what some writers store and nobody needs, as it follows from the config or changes nothing that
  // is computed here: read over, never written
  std::span<const std::string_view> buffers = {};
  std::string_view prefix = {};             // that some writers leave off every name
  std::span<const NameRow> otherwise = {};  // what `rows` do not name
  std::string_view other_prefix = {};       // that some writers have in place of `prefix`
  bool folds = false;  // weights hold what the config multiplies them by (folded.cpp)
};

// One table behind another.
template <size_t N, size_t M>
constexpr std::array<NameRow, N + M> joined(const NameRow (&a)[N],
                                            const std::array<NameRow, M>& b) {
  std::array<NameRow, N + M> all{};
  for (size_t i = 0; i < N + M; ++i) all[i] = i < N ? a[i] : b[i - N];
  return all;
}
template <size_t N, size_t M>
constexpr std::array<NameRow, N + M> joined(const NameRow (&a)[N], const NameRow (&b)[M]) {
  std::array<NameRow, N + M> all{};
  for (size_t i = 0; i < N + M; ++i) all[i] = i < N ? a[i] : b[i - N];
  return all;
}

// Model folders.
extern const TensorNames kOlmoeTensors, kMoeCppTensors, kLlamaTensors, kMixtralTensors,
    kDeepSeekTensors, kErnieTensors, kLatentTensors, kOlmo2Tensors, kGraniteTensors, kGptOssTensors,
    kGptOssMxfp4Tensors, kGptOssApartTensors, kGpt2Tensors, kNanoMoeTensors, kQwen3NextTensors,
    kQwen35MoeTensors, kQwen35MoeApartTensors, kQwen3VlMoeTensors, kQwen3MoeFusedTensors,
    kGemma3Tensors, kGemma4Tensors, kLfm2Tensors, kHunYuanTensors, kLingTensors, kAfmoeTensors,
    kExaoneMoeTensors, kHy3Tensors, kKimiTensors, kKimiUniformTensors, kGraniteSwaTensors,
    kIndexedTensors, kPairedIndexedTensors, kPhi3Tensors, kGlm4Tensors, kStarcoder2Tensors,
    kAriaTensors, kCohereTensors, kHeliumTensors, kHyperClovaXTensors, kNanoChatTensors,
    kFusedLatentTensors, kAxK1Tensors, kAxK1ApartTensors, kCohere2MoeTensors,
    kCohere2MoeApartTensors, kKolibriTensors, kApertusTensors, kNemotronHTensors,
    kNemotronHSavedTensors, kLing3Tensors, kLing3SavedTensors, kHy4Tensors, kHy4FusedTensors,
    kHy4ApartTensors, kLfm3Tensors, kLlama4Tensors, kDbrxTensors, kBambaTensors, kJambaTensors,
    kOlmoHybridTensors, kFalconH1Tensors, kOlmoHybridOlderTensors, kOlmoHybridSavedTensors,
    kOlmoHybridWholeTensors, kMimoTensors, kLagunaTensors, kFlintTensors, kAxK2Tensors,
    kLongcatTensors, kGptNeoxTensors, kGptNeoxNewerTensors, kPhiTensors, kMiniCpm3Tensors,
    kMiniMaxTensors, kMiniMaxM3Tensors, kMiniMaxM3PublishedTensors, kMiniMaxM3SavedTensors,
    kDeepSeekV4Tensors, kDeepSeekV4PublishedTensors, kDeepSeekV4ModuleTensors;
// GGUF: with rotary embeddings of halves, as here, and of neighbours; the latter with Llama 3's
// table of factors; with queries, keys and values in one; with keys and values of latents apart,
// the same beside indexers, and, as older files have them, together; where the norm before an FFN
// is called after the attention, and where norms stand behind attention and FFN.
extern const TensorNames kGgufTensors, kGgufPairedTensors, kGgufLlamaTensors, kGgufFusedTensors,
    kGgufLatentTensors, kGgufIndexedTensors, kGgufOlderIndexedTensors, kGgufOlderLatentTensors,
    kGgufAfterAttentionTensors, kGgufOutputNormTensors, kGgufQwen3NextTensors, kGgufQwen35Tensors,
    kGgufGemma3Tensors, kGgufGemma4Tensors, kGgufGemma4FusedTensors, kGgufLfm2Tensors,
    kGgufAfmoeTensors, kGgufGlm4Tensors, kGgufKimiTensors, kGgufLing3Tensors, kGgufHybridTensors,
    kGgufHalvesTensors, kGgufExaone4Tensors, kGgufPhi3Tensors, kGgufHy3Tensors, kGgufHy4Tensors,
    kGgufChatGlmTensors, kGgufFalconH1Tensors, kGgufBlockTensors;

constexpr std::string_view kTiedHeadName = "lm_head.weight", kGgufHead = "output.weight";

}  // namespace moe
