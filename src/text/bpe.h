// BPE over bytes (Radford et al. 2019: a regular expression cuts the text, each piece's bytes are
// merged into tokens) and over characters (SentencePiece's form: spaces become U+2581, a character
// that is no token becomes its bytes' tokens), where a unigram model may stand in place of merges.
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
#include "text/normalizer.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

namespace moe {

constexpr int64_t kMaxVocab = int64_t{1} << 20;

// Spaces become kSpaceMark, one is put in front.
struct Metaspace {
  enum class Prepend {
    always,
    first,
    never
  };  // before each part of the text that has none, before that which begins the text, nowhere
  Prepend prepend = Prepend::always;
  bool split = true;  // pieces begin at each mark
  bool operator==(const Metaspace&) const = default;
};

// A vocabulary over characters: BPE, or unigram where it has scores.
struct Characters {
  std::vector<std::string> words;  // what the vocabulary calls each id; empty where it has none
  std::optional<std::vector<double>> scores;  // [V], as UnigramTable takes them
  bool splits_at_space = false;  // white space parts pieces and is gone, before the metaspace
  std::optional<Metaspace> metaspace;
  bool byte_fallback = false;
  int strip = 0;             // spaces that decode() takes from the front
  bool strip_first = false;  // decode() takes all spaces from the front of the first token
};

struct BpeParts {
  std::vector<std::string> pieces;      // the bytes of each id; empty where a file leaves an id out
  std::vector<Merge> merges;            // in order of rank
  std::array<int32_t, 256> byte_ids{};  // -1: no token
  std::optional<int32_t> unk;           // stands for what is no token; without it that is left out
  bool fuse_unk = false;                // one for all that follow each other
  std::vector<NormalizerStep> normalizer;
  // Looked for in the text, first these, then those in what is left, normalised: a tokenizer.json
  // tells tokens apart by whether they see the normalised text.
  std::vector<AddedToken> added, added_late;
  std::vector<std::string> patterns;  // as tokenizer.json writes them
  // a piece that is a token as a whole is taken so, whatever the merges
  bool ignore_merges = false;
  // over bytes: the ids that are bytes in the alphabet, so that a piece can be one
  std::vector<bool> in_vocab;
  std::optional<Characters> characters;
  SpecialIds special;
  std::string json;  // to_json() gives back what was read; empty: it is written when asked for
};

// Fails with the part of `parts.patterns` that cannot be honoured.
std::unique_ptr<Tokenizer> make_bpe(BpeParts parts);

// tokenizer.json of Hugging Face `tokenizers`. Fails with the part that cannot be honoured; `text`
// is what `file` was parsed from.
BpeParts read_bpe(const nlohmann::json& file, std::string_view text, const std::string& where);

// The format has no word for the token that ends a text: it is the first of these that is an added
// token.
inline constexpr std::string_view kEndNames[] = {"<|endoftext|>", "<|end_of_text|>", "<|return|>",
                                                 "<｜end▁of▁sentence｜>", "</s>"};

// A key of tokenizer.json's model that only this engine writes and reads: `tokenizers` passes over
// it, and comes close.
inline constexpr const char* kOwnForm = "moe_cpp_sentencepiece";

// The step by which the text is treated as SentencePiece's own file says; null: it is not.
const NormalizerStep* own_form(const BpeParts& parts);

// tokenizer.json that says all of the parts.
std::string write_bpe(const BpeParts& parts);

// <0x0A>: what vocabularies over characters call a byte.
std::string byte_token(int byte);
bool is_byte_token(std::string_view word);
// What such a vocabulary's word stands for in a text.
std::string word_bytes(std::string_view word);

}  // namespace moe
