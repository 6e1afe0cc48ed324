// A vocabulary as a GGUF file has it: its words, scores, types and merges are the input's lines.
// What is read encodes within its vocabulary, and what it writes as tokenizer.json and as a
// vocabulary again encodes the same.
#include "text/ggml_vocab.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "fuzz/fuzz.h"
#include "fuzz/fuzz_vocab.h"
#include "text/byte_alphabet.h"

namespace {

using namespace moe;

// First byte: which model and flags. Each line: what it is, then a type or a score, then the word
// or merge.
GgmlVocab vocab_of(std::string_view data) {
  static const std::vector<std::string> kPres = {"gpt-2",        "qwen2", "smollm",  "llama-bpe",
                                                 "deepseek-llm", "",      "nonsense"};
  GgmlVocab vocab;
  const auto kind = static_cast<unsigned char>(data[0]);
  data.remove_prefix(1);
  const bool characters = (kind & 1) != 0;
  vocab.model = characters ? "llama" : "gpt2";
  vocab.pre = kPres[(kind >> 1) % kPres.size()];
  const auto add = [&](std::string word, int32_t type, float score) {
    vocab.tokens.push_back(std::move(word));
    vocab.types.push_back(type);
    if (characters) vocab.scores.push_back(score);
  };
  for (int b = 0; b < 256; ++b)
    add(characters ? fmt::format("<0x{:02X}>", b) : byte_alphabet()[static_cast<size_t>(b)],
        characters ? 6 : 1, 0);
  while (!data.empty()) {
    const std::string_view line = data.substr(0, data.find('\n'));
    data.remove_prefix(std::min(line.size() + 1, data.size()));
    if (line.size() < 2) continue;
    if (line[0] == 'm') vocab.merges.emplace_back(line.substr(1));
    else
      add(std::string(line.substr(1)),
          line[0] == 'c'   ? 3
          : line[0] == 'u' ? 4
          : line[0] == 'x' ? 5
                           : 1,
          static_cast<float>(static_cast<signed char>(line[0])));
  }
  if (kind & 16) vocab.bos = static_cast<int32_t>(vocab.tokens.size()) - 1;
  if (kind & 32) vocab.eos = 256 + (kind >> 6);
  if (kind & 64) vocab.add_space_prefix = false;
  if (kind & 128) vocab.unk = 256;
  return vocab;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 4096) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  fuzz::accept_or_refuse([&] {
    const auto tokenizer = make_ggml_tokenizer(vocab_of(input), "fuzz");
    // Writing and reading tokenizer.json takes ten times as long as everything else, so every
    // sixteenth length does it.
    fuzz::encodes_within(*tokenizer, input, input.size() % 16 == 0);
  });
  return 0;
}
