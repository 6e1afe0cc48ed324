// What people who come from other programs type (llama.cpp, vLLM, transformers, nanoGPT, Ollama),
// and what does it here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moe::cli {

// "; moe calls it --tokens", for a flag that none of `known` is: what is called so elsewhere, why
// nothing has to be, else the nearest.
std::string suggested_flag(const std::string& given, const std::vector<std::string>& known);
// Whether it is one of llama.cpp's flags of several letters behind one '-', as "-ngl", which would
// else be read as a flag of one letter and its value.
bool is_word_elsewhere(std::string_view given);
// "; is it meant for --prompt?", for a word that stands where the verb takes none.
std::string suggested_for_word(std::string_view verb);
// What a verb of other programs is here, "moe get"; empty for one that is none.
std::string_view verb_here(std::string_view theirs);

}  // namespace moe::cli
