// The mixes of quantised types by llama.cpp's names, q4_k_m and the others: which matrix of which
// layer gets more bits than the rest. A table of the rules of github ggml-org/llama.cpp,
// src/llama-quant.cpp; docs/quantisation.md says it for users.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/parameters.h"
#include "tensor/dtype.h"

namespace moe {

struct MixRule;

struct QuantMix {
  std::string_view name, alias;  // alias: another name of it; empty: none
  DType base;                    // of every matrix that no rule names
  int64_t file_type;             // llama.h, enum llama_ftype: GGUF's "general.file_type"
  std::string_view what;         // for people who choose
  std::span<const MixRule> rules;
};

std::span<const QuantMix> quant_mixes();
std::vector<std::string> quant_mix_names();
// In either case. Fails (usage), with `option` before the message, for a name that is none, with
// the nearest one, and for a mix of llama.cpp's whose types are not made here, with what to take
// instead.
const QuantMix& find_quant_mix(std::string_view name, std::string_view option);

// The type of a matrix, before it is known whether its blocks fit; `fused`: queries, keys and
// values are one tensor in the file; `weighed`: the importance of the columns is known. Not asked
// for the head and for what stays f32.
DType type_in_mix(const QuantMix&, const Param&, bool fused, const ModelConfig&, bool weighed);

}  // namespace moe
