// A model in one GGUF file: loading it, and what llama.cpp needs to be told of one; what it cannot
// be told takes a form of our own. What a name or a key means stands in the tables beside.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "hub/gguf/quant_mix.h"
#include "hub/hub.h"
#include "hub/tensor_map.h"

namespace moe {

// Told by content; false for what is no file.
bool is_gguf(const std::string& path);
LoadedModel load_gguf(const std::string& path, LoadFor purpose, const comm::Group& experts = {},
                      BesideText = BesideText::refuse);
// Only what its metadata and the shape of its embedding say.
ModelConfig gguf_config(const std::string& path);

// A GGUF to be, apart from the types of its numbers.
struct GgufTarget {
  std::vector<GgufEntry> metadata;
  std::vector<FileTensor> tensors;  // pieces are rows, one after another
  std::vector<GgufItem> tables;     // that belong to no parameter and are written as they are
  std::string why_own;              // why llama.cpp does not run it; empty where it does
  std::vector<std::string> notes;   // what it cannot be told of one that it runs
};
// Fails where llama.cpp has no name for the tokenizer.
GgufTarget gguf_target(Model&, const Tokenizer&);
// "general.file_type", of the mix or else of what most of the numbers are in, and the version of
// the quantised formats.
std::vector<GgufEntry> gguf_type_entries(const std::vector<GgufItem>&,
                                         const QuantMix* mix = nullptr);

}  // namespace moe
