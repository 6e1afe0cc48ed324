// The ways to split a text before BPE that GGUF files know by a name (tokenizer.ggml.pre;
// llama.cpp, llama-vocab.cpp), as tokenizer.json says them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moe {

struct GgmlPre {
  std::vector<std::string> names;  // the first is written
  std::vector<std::string> patterns;
  bool ignore_merges = false;
  bool nfc = false;  // the models' own tokenizers compose the text first; llama.cpp leaves that out
};

const std::vector<GgmlPre>& ggml_pres();
// Fails, offering the nearest, where no row has the name.
const GgmlPre& ggml_pre(std::string_view name);

}  // namespace moe
