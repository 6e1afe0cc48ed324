// The regular expressions of tokenizer.json. Hugging Face `tokenizers` reads them with Oniguruma
// (Ruby's syntax), this engine with PCRE2: what both read alike is passed on, what they read
// differently is rewritten or refused.
#pragma once

#include <string>
#include <string_view>

namespace moe {

// GPT-2's (encoder.py): what ByteLevel splits by when use_regex is true.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The same expression for PCRE2; fails with the part that cannot be honoured.
std::string to_pcre2(std::string_view pattern);

}  // namespace moe
