// Tokens on disk: a folder that holds shards, which are mapped and never read as a whole, the
// tokenizer that made them and tokens.json, which lists them.
//
// A shard is, little endian: ids of 1, 2 or 4 bytes; zeros up to a multiple of 8; the documents'
// ends as u32, counted from the shard's first token; spans of tokens that are not learned from, two
// u32 each; zeros up to a multiple of 8; and 64 bytes that say how many of each there are. A
// document may go on in the next shard. What a shard says is checked where it is used, so that
// opening one touches nothing but its last bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "text/encode.h"
#include "text/tokenizer.h"

namespace moe {

inline constexpr const char* kTokensIndex = "tokens.json";

// Views of a shard's bytes.
struct Shard {
  int width = 0;  // bytes of an id
  int64_t tokens = 0;
  const void* ids = nullptr;
  std::span<const uint32_t> ends;
  std::span<const TokenSpan> untrained;
};
// `bytes` start at a multiple of 8; `where` opens every message.
Shard read_shard(std::span<const std::byte> bytes, const std::string& where);

// tokens.json
struct TokensIndex {
  struct File {
    std::string path, domain;  // of the text
    int64_t tokens = 0, bytes = 0;
  };
  struct Part {
    std::string name;  // of the file in the folder
    int64_t tokens = 0;
  };
  int64_t vocab = 0;
  int64_t documents = 0;
  int64_t untrained = 0;  // tokens that are not learned from
  std::vector<File> files;
  std::vector<Part> shards;

  int64_t tokens() const;
  int64_t bytes() const;  // of text
};
std::string to_json(const TokensIndex& index);
TokensIndex parse_tokens_index(std::string_view json, const std::string& where);
// Whether a folder holds a tokens.json of this format.
bool holds_tokens(const std::string& folder);
TokensIndex read_tokens_index(const std::string& folder);
// Fails, saying what to do, unless the folder's tokens were made with this tokenizer.
void check_tokenizer(const std::string& folder, const Tokenizer& tokenizer);
// The first of `paths` that holds tokens.
std::optional<std::string> first_token_folder(const std::vector<std::string>& paths);

// Writes one folder: shards as they fill, the index last.
class TokensWriter {
 public:
  // `folder` is there and empty. A shard is closed when it holds `shard_tokens`.
  TokensWriter(std::string folder, const Tokenizer& tokenizer, int64_t shard_tokens);
  // What is added from now on is of this file.
  void begin_file(const std::string& path, const std::string& domain);
  void add(const EncodedRun& run);
  const TokensIndex& finish();

 private:
  void close_shard();

  std::string folder_;
  const Tokenizer& tokenizer_;
  int64_t shard_tokens_;
  int width_;
  TokensIndex index_;
  TokensIndex::File file_;
  std::unique_ptr<AtomicFile> out_;  // of the shard under way
  std::vector<uint32_t> ends_;
  std::vector<TokenSpan> untrained_;
  int64_t tokens_ = 0;
  std::vector<unsigned char> packed_;
};

// ids as `width` bytes each, appended.
void pack_ids(const std::vector<int32_t>& ids, int width, std::vector<unsigned char>& out);

}  // namespace moe
