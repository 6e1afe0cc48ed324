// Encoding and decoding.
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/error.h"
#include "text/splitter.h"

namespace moe {
namespace {

constexpr size_t kMostRemembered = 1 << 16;
constexpr size_t kLongestRemembered = 64;

// Where the ids of a piece met before stand in the output. Words repeat, so most pieces are copied. One place a hash: what collides is forgotten, so
// no text can make a lookup slow.
class Seen {
 public:
  explicit Seen(size_t text_size) : slots_(std::bit_ceil(std::clamp<size_t>(text_size / 4, 16, kMostRemembered))) {}

  // Copies the piece's ids to the end; false when it is not remembered.
  bool copy(std::string_view piece, std::vector<int32_t>& ids) {
    const Slot& slot = slot_of(piece);
    if (slot.piece != piece) return false;
    const size_t to = ids.size();
    ids.resize(to + slot.count);
    std::copy_n(ids.begin() + static_cast<int64_t>(slot.at), slot.count, ids.begin() + static_cast<int64_t>(to));
    return true;
  }
  void remember(std::string_view piece, size_t at, size_t count) { slot_of(piece) = {piece, at, count}; }

 private:
  struct Slot {
    std::string_view piece;  // of the text being encoded
    size_t at, count;
  };
  Slot& slot_of(std::string_view piece) { return slots_[std::hash<std::string_view>{}(piece) & (slots_.size() - 1)]; }
  std::vector<Slot> slots_;
};

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts)
      : parts_(std::move(parts)),
        splitter_(parts_.patterns),
        table_(parts_.merges, parts_.byte_ids, vocab_size()),
        added_(parts_.added),
        added_late_(parts_.added_late) {
    if (!parts_.ignore_merges) return;
    for (size_t id = 0; id < parts_.in_vocab.size(); ++id)
      if (parts_.in_vocab[id]) whole_.emplace_back(parts_.pieces[id], static_cast<int32_t>(id));
    std::sort(whole_.begin(), whole_.end());
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(parts_.pieces.size()); }
  std::string spec() const override { return "bpe"; }
  std::string to_json() const override { return parts_.json; }
  std::optional<int32_t> bos_id() const override { return parts_.bos; }
  std::optional<int32_t> eos_id() const override { return parts_.eos; }

  std::string piece(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) fail("token id {} is outside the tokenizer's 0..{}", id, vocab_size() - 1);
    return parts_.pieces[static_cast<size_t>(id)];
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    Seen seen(text.size());
    const auto merge = [&](std::string_view piece) { encode_piece(piece, seen, ids); };
    added_.split(text, [&](std::string_view part, int32_t id) {
      if (id >= 0) return ids.push_back(id);
      added_late_.split(part, [&](std::string_view rest, int32_t late) {
        if (late >= 0) return ids.push_back(late);
        splitter_.split(rest, merge);
      });
    });
    return ids;
  }

 private:
  void encode_piece(std::string_view piece, Seen& seen, std::vector<int32_t>& ids) const {
    const bool short_one = piece.size() <= kLongestRemembered;
    if (short_one && seen.copy(piece, ids)) return;
    const size_t at = ids.size();
    if (const std::optional<int32_t> id = whole_token(piece)) ids.push_back(*id);
    else table_.encode(piece, ids);
    if (short_one) seen.remember(piece, at, ids.size() - at);
  }

  std::optional<int32_t> whole_token(std::string_view piece) const {
    const auto place = std::lower_bound(whole_.begin(), whole_.end(), piece, [](const auto& entry, std::string_view p) { return entry.first < p; });
    if (place == whole_.end() || place->first != piece) return std::nullopt;
    return place->second;
  }

  BpeParts parts_;
  Splitter splitter_;
  MergeTable table_;
  AddedTokens added_, added_late_;
  std::vector<std::pair<std::string_view, int32_t>> whole_;  // sorted; empty unless merges are to be ignored
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe(BpeParts parts) { return std::make_unique<BpeTokenizer>(std::move(parts)); }

}  // namespace moe
