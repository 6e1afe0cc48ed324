// Context-free grammars over bytes: what a model's text may be, for constrained sampling. A grammar
// is built rule by rule, checked once, and never changes after that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace moe::grammar {

// A set of byte values.
class ByteSet {
 public:
  constexpr ByteSet() = default;
  // Every byte from `low` to `high`, both included.
  constexpr ByteSet(int low, int high) {
    for (int b = low; b <= high; ++b) add(b);
  }
  // The bytes of `text`.
  constexpr explicit ByteSet(std::string_view text) {
    for (const char c : text) add(static_cast<unsigned char>(c));
  }
  constexpr void add(int byte) { words_[at(byte)] |= bit(byte); }
  constexpr bool has(int byte) const { return (words_[at(byte)] & bit(byte)) != 0; }
  constexpr bool empty() const { return *this == ByteSet(); }
  constexpr ByteSet without(int byte) const {
    ByteSet out = *this;
    out.words_[at(byte)] &= ~bit(byte);
    return out;
  }
  constexpr ByteSet& operator|=(const ByteSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  constexpr auto operator<=>(const ByteSet&) const = default;

 private:
  static constexpr size_t at(int byte) { return static_cast<size_t>(byte) / 64; }
  static constexpr uint64_t bit(int byte) { return uint64_t{1} << (byte % 64); }
  std::array<uint64_t, 4> words_{};
};

using RuleId = uint32_t;
constexpr uint32_t kUnbounded = UINT32_MAX;  // of a repetition

// One step of an alternative: a byte of a set, a rule, or a rule several times in a row.
struct Symbol {
  enum class Kind : uint8_t { bytes, rule, repeat, end };
  Kind kind = Kind::end;
  uint32_t index = 0;         // of the byte set, or of the rule
  uint32_t min = 0, max = 0;  // of a repetition
};

// What a Builder was told, flat. A position is an index into symbols(); the symbols of an
// alternative lie one behind the other and Kind::end follows them.
class Grammar {
 public:
  struct Alternative {
    uint32_t begin;   // its first position
    uint32_t height;  // return places that its shortest-nested text needs at once
  };

  const Symbol& symbol(uint32_t position) const { return symbols_[position]; }
  const ByteSet& bytes(const Symbol& symbol) const { return sets_[symbol.index]; }
  // Only those that a text can be of.
  const std::vector<Alternative>& alternatives(RuleId rule) const { return rules_[rule]; }
  RuleId start() const { return start_; }
  // The text that the grammar came from, for messages.
  const std::string& where() const { return where_; }

 private:
  friend class Builder;
  std::vector<Symbol> symbols_;
  std::vector<ByteSet> sets_;
  std::vector<std::vector<Alternative>> rules_;
  RuleId start_ = 0;
  std::string where_;
};

constexpr size_t kMostSymbols = size_t{1} << 18;  // of one grammar
// Return places that a text may need at once. Nested values need two or three each, so texts are
// nested some 60 levels deep at most.
constexpr uint32_t kMostHeight = 192;

// Collects rules. Everything that can make a grammar too large fails, naming `where`.
class Builder {
 public:
  using Sequence = std::vector<Symbol>;

  explicit Builder(std::string where) : where_(std::move(where)) {}
  const std::string& where() const { return where_; }

  // A rule without alternatives: no text is one of it until some are added.
  RuleId rule();
  void add(RuleId, const Sequence& alternative);
  RuleId rule(const std::vector<Sequence>& alternatives);

  Symbol bytes(const ByteSet&);
  static Symbol ref(RuleId rule) { return {Symbol::Kind::rule, rule, 1, 1}; }
  // The rule must not be able to be empty; build() checks that.
  static Symbol repeat(RuleId rule, uint32_t min, uint32_t max) {
    return {Symbol::Kind::repeat, rule, min, max};
  }
  // Appends the bytes of `text`.
  void text(Sequence&, std::string_view text);
  Sequence text(std::string_view text);

  // Fails (usage) where a rule leads back to itself before any byte, where no finite text exists,
  // and where each needs more than kMostHeight return places.
  std::shared_ptr<const Grammar> build(RuleId start);

 private:
  void measure(Grammar&) const;
  void refuse_circles() const;
  std::vector<bool> nullable() const;

  std::string where_;
  std::vector<std::vector<Sequence>> rules_;
  std::map<ByteSet, uint32_t> sets_;
  size_t symbols_ = 0;
};

}  // namespace moe::grammar
