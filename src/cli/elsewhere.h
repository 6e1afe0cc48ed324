// What people who come from other programs type (llama.cpp, transformers, nanoGPT, Ollama), and
// what does it here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moe::cli {

// "; moe calls it --tokens", for a flag that none of `known` is: what is called so elsewhere, else
// the nearest.
std::string suggested_flag(const std::string& given, const std::vector<std::string>& known);
// "; is it meant for --prompt?", for a word that stands where the verb takes none.
std::string suggested_for_word(std::string_view verb);
// What a verb of other programs is here, "moe get"; empty for one that is none.
std::string_view verb_here(std::string_view theirs);

}  // namespace moe::cli
