// A shard of tokens and its index: whatever they say, reading stays inside the bytes and a row is
// given or refused. Input: a kind, then the bytes.
#include "text/shards.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"
#include "text/corpus.h"
#include "text/loader.h"
#include "text/tokenizer.h"

namespace {

using namespace moe;

// Its file is short, as it is compared with every input.
class Bytes : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  std::string spec() const override { return "bytes"; }
  std::vector<int32_t> encode(std::string_view) const override { return {}; }
  std::string piece(int32_t) const override { return ""; }
  std::string to_json() const override { return "{}"; }
};

// One folder for the whole run; its index is taken to be right about what the footer says, so that
// the shard's own lies are met.
const std::string& folder() {
  static const std::string path = [] {
    std::string name = (std::filesystem::temp_directory_path() / "moe-shards-fuzz-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) __builtin_trap();
    std::ofstream(name + "/tokenizer.json") << Bytes().to_json();
    return name;
  }();
  return path;
}

void put(const std::string& name, std::string_view bytes) {
  std::ofstream(folder() + "/" + name, std::ios::binary) << bytes;
}

void read_rows(const Shard& shard, std::string_view bytes) {
  put("0.tokens", bytes);
  TokensIndex index;
  index.vocab = 256;
  index.documents = static_cast<int64_t>(shard.ends.size());
  index.untrained = std::min<int64_t>(shard.tokens, static_cast<int64_t>(shard.untrained.size()));
  index.files = {{"a", "a", shard.tokens, 1}};
  index.shards = {{"0.tokens", shard.tokens}};
  put(kTokensIndex, to_json(index));
  const Corpus corpus({folder()}, Bytes());
  TextBatch batch;
  const int64_t context = std::min<int64_t>(corpus.size() - 1, 64);
  for (const int64_t start :
       {int64_t{0}, (corpus.size() - context - 1) / 2, corpus.size() - context - 1}) {
    batch.clear();
    batch.add_row(corpus, start, context);
    fuzz::demand(batch.bounds.back() == context &&
                 static_cast<int64_t>(batch.ids.size()) == context);
    for (size_t s = 0; s + 1 < batch.bounds.size(); ++s)
      fuzz::demand(batch.bounds[s] < batch.bounds[s + 1] || context == 0);
  }
}

// A shard whose last bytes count right, so that its ends and spans are what is tried.
std::string sealed(std::string_view bytes) {
  const size_t tokens = bytes.size() / 2, rest = bytes.size() - tokens, spans = rest / 16,
               ends = (rest - 8 * spans) / 4;
  std::string out(bytes.substr(0, tokens));
  out.resize((out.size() + 7) / 8 * 8);
  out += bytes.substr(tokens, 4 * ends + 8 * spans);
  out.resize((out.size() + 7) / 8 * 8);
  uint64_t footer[8] = {0, 1, tokens, ends, spans, 0, 0, 0};
  std::memcpy(footer, "moetokn1", 8);
  uint64_t hash = 0xcbf29ce484222325u;
  for (int i = 0; i < 7; ++i) hash = (hash ^ footer[i]) * 0x100000001b3u;
  footer[7] = hash;
  out.append(reinterpret_cast<const char*>(footer), sizeof footer);
  return out;
}

void try_shard(std::string_view bytes) {
  std::vector<uint64_t> aligned((bytes.size() + 7) / 8);
  if (!bytes.empty()) std::memcpy(static_cast<void*>(aligned.data()), bytes.data(), bytes.size());
  const Shard shard = read_shard(std::as_bytes(std::span(aligned)).first(bytes.size()), "fuzz");
  if (shard.tokens > 1) read_rows(shard, bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  fuzz::accept_or_refuse([&] {
    if (data[0] % 3 == 0) {
      const TokensIndex index = parse_tokens_index(bytes, "fuzz");
      const TokensIndex again = parse_tokens_index(to_json(index), "again");
      fuzz::demand(again.tokens() == index.tokens() && again.shards.size() == index.shards.size() &&
                   to_json(again) == to_json(index));
    } else {
      try_shard(data[0] % 3 == 1 ? std::string(bytes) : sealed(bytes));
    }
  });
  return 0;
}
