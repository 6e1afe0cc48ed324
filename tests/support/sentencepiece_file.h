// SentencePiece models by hand: the bytes of tokenizer.model, and of a charsmap.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moe::test {

inline std::string varint(uint64_t x) {
  std::string out;
  for (; x >= 0x80; x >>= 7) out += static_cast<char>((x & 0x7F) | 0x80);
  return out + static_cast<char>(x);
}
inline std::string number_field(uint64_t number, int64_t x) {
  return varint(number << 3) + varint(static_cast<uint64_t>(x));
}
inline std::string bytes_field(uint64_t number, std::string_view bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}
inline std::string float_field(uint64_t number, float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  std::string out = varint(number << 3 | 5);
  for (int i = 0; i < 4; ++i) out += static_cast<char>(bits >> (8 * i));
  return out;
}

struct SentencePieceWord {
  std::string word;
  float score = 0;
  int64_t type = 1;  // as GgmlVocab::types
};

struct SentencePieceFile {
  int64_t model = 1;  // 1 unigram, 2 BPE
  std::vector<SentencePieceWord> words;
  std::string charsmap;
  bool prepends = true, trims = true;
  std::string trainer_more;  // further fields

  std::string bytes() const {
    std::string out;
    for (const SentencePieceWord& w : words)
      out += bytes_field(
          1, bytes_field(1, w.word) + float_field(2, w.score) + number_field(3, w.type));
    out += bytes_field(2, number_field(3, model) + trainer_more);
    return out + bytes_field(3, bytes_field(2, charsmap) + number_field(3, prepends ? 1 : 0) +
                                    number_field(4, trims ? 1 : 0));
  }
};

// A charsmap of one ASCII character each to a text. Unit 0 is the root, whose children lie at 256 +
// their byte and their leaves at 512 + it.
inline std::string charsmap_of(const std::vector<std::pair<char, std::string>>& pairs) {
  std::vector<uint32_t> units(1024, 0x80000000u);  // no byte leads there
  const auto offset = [](uint32_t x) { return x << 10; };
  units[0] = offset(256);
  std::string texts;
  for (const auto& [from, to] : pairs) {
    const auto byte = static_cast<unsigned char>(from);
    const uint32_t node = 256 ^ byte;
    // The leaf lies where the node's offset leads, by the byte 0.
    units[node] = offset(node ^ (512 + byte)) | 0x100 | byte;
    units[512 + byte] = 0x80000000u | static_cast<uint32_t>(texts.size());
    texts += to + '\0';
  }
  std::string out;
  const auto put = [&](uint32_t x) {
    for (int i = 0; i < 4; ++i) out += static_cast<char>(x >> (8 * i));
  };
  put(static_cast<uint32_t>(units.size() * 4));
  for (const uint32_t unit : units) put(unit);
  return out + texts;
}

}  // namespace moe::test
