// Learning a byte-level BPE vocabulary from text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace moe {

// Ends a text; looked for in every text, so that files may hold several documents.
inline constexpr const char* kEndOfText = "<|endoftext|>";

// Of all pairs of neighbouring tokens the most frequent becomes a token, the lower ids first among equals, until there are `size` entries: 256 bytes,
// the merges and kEndOfText as the last. Fewer where no pair occurs twice any more. The same texts give the same vocabulary on every machine.
std::unique_ptr<Tokenizer> train_bpe(std::span<const std::string_view> texts, int64_t size);

// What --tokenizer names: "bytes"; "bpe:SIZE", trained on the texts at `data` (files and folders); or a model folder, whose tokenizer it takes.
std::unique_ptr<Tokenizer> choose_tokenizer(const std::string& spec, const std::vector<std::string>& data);

}  // namespace moe
