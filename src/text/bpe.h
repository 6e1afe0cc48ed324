// Byte-level BPE (Radford et al. 2019): the text is cut into pieces by a regular expression, each piece's bytes are merged into tokens.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/merge_table.h"
#include "text/tokenizer.h"

namespace moe {

constexpr int64_t kMaxVocab = int64_t{1} << 20;

struct BpeParts {
  std::vector<std::string> pieces;  // the bytes of each id; empty where a file leaves an id out
  std::vector<Merge> merges;        // in order of rank
  std::array<int32_t, 256> byte_ids{};
  // Looked for in the text, first these, then those in what is left: a tokenizer.json tells tokens apart by whether they see the normalised text.
  std::vector<AddedToken> added, added_late;
  std::vector<std::string> patterns;  // as tokenizer.json writes them
  bool ignore_merges = false;         // a piece that is a token as a whole is taken so, whatever the merges
  std::vector<bool> in_vocab;         // with ignore_merges: the ids that are bytes in the alphabet, so that a piece can be one
  std::optional<int32_t> bos, eos;
  std::string json;  // to_json() gives back what was read
};

// Fails with the part of `parts.patterns` that cannot be honoured.
std::unique_ptr<Tokenizer> make_bpe(BpeParts parts);

// tokenizer.json of Hugging Face `tokenizers`. Fails with the part that cannot be honoured; `text` is what `file` was parsed from.
BpeParts read_bpe(const nlohmann::json& file, std::string_view text, const std::string& where);

// tokenizer.json of a trained vocabulary: `pieces`, `merges` and `added`, split as GPT-2 does.
std::string write_bpe(const BpeParts& parts);

}  // namespace moe
