#include "text/sentencepiece_model.h"

#include <bit>

#include "core/error.h"
#include "text/bpe.h"

namespace moe {
namespace {

// The fields of a message, one after another.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  // Goes to the next field; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    number_ = tag >> 3;
    wire_ = tag & 7;
    bytes_ = {};
    switch (wire_) {
      case kVarint: value_ = varint(); break;
      case kFixed64: bytes_ = take(8); break;
      case kBytes: bytes_ = take(varint()); break;
      case kFixed32: bytes_ = take(4); break;
      default: fail("a field has the wire type {}, which none has", wire_);
    }
    return true;
  }

  uint64_t number() const { return number_; }
  std::string_view bytes() const { return of(kBytes), bytes_; }
  int32_t integer() const { return of(kVarint), static_cast<int32_t>(value_); }
  bool flag() const { return of(kVarint), value_ != 0; }
  float number32() const {
    of(kFixed32);
    uint32_t bits = 0;
    for (size_t i = 4; i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(bytes_[i]);
    return std::bit_cast<float>(bits);
  }

 private:
  static constexpr uint64_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

  void of(uint64_t wire) const {
    if (wire_ != wire) fail("field {} has the wire type {}, not {}", number_, wire_, wire);
  }
  std::string_view take(uint64_t size) {
    if (size > rest_.size()) fail("a field of {} bytes has only {} left", size, rest_.size());
    const std::string_view taken = rest_.substr(0, static_cast<size_t>(size));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail("a number has more than 64 bits");
  }

  std::string_view rest_, bytes_;
  uint64_t number_ = 0, wire_ = 0, value_ = 0;
};

void read_piece(std::string_view message, GgmlVocab& vocab) {
  if (vocab.tokens.size() == static_cast<size_t>(kMaxVocab))
    fail("it has more than {} tokens", kMaxVocab);
  vocab.tokens.emplace_back();
  vocab.scores.push_back(0);
  vocab.types.push_back(1);
  for (Fields f(message); f.next();) {
    if (f.number() == 1) vocab.tokens.back() = f.bytes();
    if (f.number() == 2) vocab.scores.back() = f.number32();
    if (f.number() == 3) vocab.types.back() = f.integer();
  }
}

void read_trainer(std::string_view message, GgmlVocab& vocab) {
  enum Model : int32_t { unigram = 1, bpe = 2 };
  int32_t model = unigram;
  const auto set = [](std::optional<int32_t>& id, int32_t value) {
    if (value < 0) id.reset();
    else id = value;
  };
  for (Fields f(message); f.next();) {
    if (f.number() == 3) model = f.integer();
    if (f.number() == 24 && f.flag()) fail("it puts a space behind words, not in front of them");
    if (f.number() == 40) set(vocab.unk, f.integer());
    if (f.number() == 41) set(vocab.bos, f.integer());
    if (f.number() == 42) set(vocab.eos, f.integer());
    if (f.number() == 43) set(vocab.pad, f.integer());
  }
  if (model != unigram && model != bpe)
    fail("its model type is {}; supported are 1 (unigram) and 2 (BPE)", model);
  vocab.model = model == unigram ? "t5" : "llama";
}

void read_normalizer(std::string_view message, GgmlVocab& vocab) {
  for (Fields f(message); f.next();) {
    if (f.number() == 2) vocab.charsmap = f.bytes();
    if (f.number() == 3) vocab.add_space_prefix = f.flag();
    if (f.number() == 4) vocab.remove_extra_whitespaces = f.flag();
    if (f.number() == 5 && !f.flag()) fail("it leaves spaces as they are");
  }
}

}  // namespace

GgmlVocab parse_sentencepiece(std::string_view bytes, const std::string& where) {
  try {
    GgmlVocab vocab;
    vocab.model = "t5";
    vocab.unk = 0;
    vocab.bos = 1;
    vocab.eos = 2;
    vocab.add_bos = false;
    vocab.add_space_prefix = vocab.remove_extra_whitespaces = true;
    for (Fields f(bytes); f.next();) {
      if (f.number() == 1) read_piece(f.bytes(), vocab);
      if (f.number() == 2) read_trainer(f.bytes(), vocab);
      if (f.number() == 3) read_normalizer(f.bytes(), vocab);
    }
    if (vocab.tokens.empty()) fail("it has no tokens");
    return vocab;
  } catch (const Error& e) {
    fail("{}: this is no SentencePiece model that can be read: {}", where, e.what());
  }
}

}  // namespace moe
