// Counts of pairs kept up to date while merging (Sennrich et al. 2016): a merge visits only the
// places where its pair stands. All distinct pieces of the text lie in one list of symbols, each
// with how often its piece occurs.
#include "text/bpe_train.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/nearest.h"
#include "text/bpe.h"
#include "text/chat.h"
#include "text/pattern.h"
#include "text/source.h"
#include "text/splitter.h"

namespace moe {
namespace {

constexpr int kBytes = 256;
constexpr std::string_view kPrefix = "bpe:";
constexpr int64_t kMinCount = 2;  // a pair that occurs once shortens nothing but itself

using PairKey = uint64_t;  // left id << 32 | right id, so that lower pairs are lower numbers
PairKey key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

struct Pair {
  int64_t count = 0;
  int32_t step = -1;         // of the last growth
  std::vector<uint32_t> at;  // where its left symbol stands or stood
};

struct CountedPair {
  int64_t count;
  PairKey key;
  bool operator<(const CountedPair& other) const {
    return count != other.count ? count < other.count : key > other.key;
  }
};

class Trainer {
 public:
  // `pieces`: bytes and count of each.
  template <class Words>
  explicit Trainer(const Words& pieces);
  // The most frequent pair, or false when none is frequent enough.
  bool most_frequent(int32_t& left, int32_t& right);
  void merge(int32_t left, int32_t right, int32_t result);

 private:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  struct Symbol {
    int32_t id;  // -1: became part of the symbol before it
    uint32_t previous, next;
    uint32_t piece;
  };
  void grow(int32_t left, int32_t right, uint32_t at);
  void shrink(int32_t left, int32_t right, uint32_t at) {
    pairs_[key_of(left, right)].count -= counts_[symbols_[at].piece];
  }
  void push_grown();

  std::vector<Symbol> symbols_;
  std::vector<int64_t> counts_;  // of each distinct piece
  std::unordered_map<PairKey, Pair> pairs_;
  std::priority_queue<CountedPair> heap_;  // counts may be too high: checked when taken
  std::vector<PairKey> grown_;             // in this step
  int32_t step_ = 0;
};

template <class Words>
Trainer::Trainer(const Words& pieces) {
  size_t total = 0;
  for (const auto& [piece, count] : pieces) total += piece.size();
  if (total >= kNone)
    fail(
        "{} bytes of distinct words are too many to learn a tokenizer from; train it on a part of "
        "the text",
        total);
  symbols_.reserve(total);
  counts_.reserve(pieces.size());
  for (const auto& [piece, count] : pieces) {
    const auto first = static_cast<uint32_t>(symbols_.size());
    const auto last = first + static_cast<uint32_t>(piece.size()) - 1;
    for (uint32_t i = first; i <= last; ++i)
      symbols_.push_back({static_cast<unsigned char>(piece[i - first]), i == first ? kNone : i - 1,
                          i == last ? kNone : i + 1, static_cast<uint32_t>(counts_.size())});
    counts_.push_back(count);
    for (uint32_t i = first; i < last; ++i) grow(symbols_[i].id, symbols_[i + 1].id, i);
  }
  push_grown();
}

void Trainer::grow(int32_t left, int32_t right, uint32_t at) {
  const PairKey key = key_of(left, right);
  Pair& pair = pairs_[key];
  pair.count += counts_[symbols_[at].piece];
  pair.at.push_back(at);
  if (pair.step == step_) return;
  pair.step = step_;
  grown_.push_back(key);
}

void Trainer::push_grown() {
  for (const PairKey key : grown_) heap_.push({pairs_[key].count, key});
  grown_.clear();
  ++step_;
}

bool Trainer::most_frequent(int32_t& left, int32_t& right) {
  while (!heap_.empty()) {
    const CountedPair top = heap_.top();
    heap_.pop();
    const auto place = pairs_.find(top.key);
    const int64_t count = place == pairs_.end() ? 0 : place->second.count;
    if (count < kMinCount) continue;
    if (count != top.count) {
      heap_.push({count, top.key});
      continue;
    }
    left = static_cast<int32_t>(top.key >> 32);
    right = static_cast<int32_t>(top.key & 0xFFFFFFFF);
    return true;
  }
  return false;
}

// At "p left right n" the pairs (p, left), (left, right), (right, n) lose one occurrence and (p,
// result), (result, n) gain one.
void Trainer::merge(int32_t left, int32_t right, int32_t result) {
  std::vector<uint32_t> places = std::move(pairs_[key_of(left, right)].at);
  // from left to right, as encoding merges: of "aaa" the first two
  std::sort(places.begin(), places.end());
  for (const uint32_t at : places) {
    Symbol& first = symbols_[at];
    if (first.id != left || first.next == kNone || symbols_[first.next].id != right) continue;
    Symbol& second = symbols_[first.next];
    shrink(left, right, at);
    if (first.previous != kNone) shrink(symbols_[first.previous].id, left, at);
    if (second.next != kNone) shrink(right, symbols_[second.next].id, at);
    first.id = result;
    first.next = second.next;
    second.id = -1;
    if (first.previous != kNone) grow(symbols_[first.previous].id, result, first.previous);
    if (first.next != kNone) {
      symbols_[first.next].previous = at;
      grow(result, symbols_[first.next].id, at);
    }
  }
  pairs_.erase(key_of(left, right));
  push_grown();
}

int64_t parse_size(std::string_view digits) {
  int64_t size = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  if (error != std::errc() || end != digits.data() + digits.size() || size <= kBytes ||
      size > kMaxVocab)
    fail_usage("@tokenizer bpe:{}: the number of entries must be from {} to {}", printable(digits),
               kBytes + 1, kMaxVocab);
  return size;
}

}  // namespace

void BpeLearner::add(std::string_view text) {
  static const Splitter splitter({std::string(kGpt2Pattern)});
  static const AddedTokens marks(
      std::vector<AddedToken>{{0, kEndOfText}, {1, kMessageBegin}, {2, kMessageEnd}});
  marks.split(text, [&](std::string_view part, int32_t id) {
    if (id >= 0) return;
    splitter.split(part, [&](std::string_view word) {
      const auto place = words_.find(word);
      if (place != words_.end()) ++place->second;
      else words_.emplace(word, 1);
    });
  });
}

std::unique_ptr<Tokenizer> BpeLearner::learn(int64_t size, bool dialogues) const {
  std::vector<std::string> added = {kEndOfText};
  if (dialogues) added.insert(added.end(), {kMessageBegin, kMessageEnd});
  const auto last = static_cast<int64_t>(added.size());
  if (size < kBytes + last || size > kMaxVocab)
    fail_usage("a BPE vocabulary{} has from {} to {} entries, not {}",
               dialogues ? " for dialogues" : "", kBytes + last, kMaxVocab, size);
  BpeParts parts;
  std::unordered_map<std::string, int32_t> known;  // "ab" + "c" and "a" + "bc" are one token
  for (int b = 0; b < kBytes; ++b) {
    parts.pieces.emplace_back(1, static_cast<char>(b));
    parts.byte_ids[b] = b;
  }
  Trainer trainer(words_);
  int32_t left = 0, right = 0;
  while (static_cast<int64_t>(parts.pieces.size()) < size - last &&
         trainer.most_frequent(left, right)) {
    const std::string piece =
        parts.pieces[static_cast<size_t>(left)] + parts.pieces[static_cast<size_t>(right)];
    const auto [place, is_new] =
        known.try_emplace(piece, static_cast<int32_t>(parts.pieces.size()));
    if (is_new) parts.pieces.push_back(piece);
    parts.merges.push_back({left, right, place->second});
    trainer.merge(left, right, place->second);
  }
  parts.special.eos = static_cast<int32_t>(parts.pieces.size());
  for (const std::string& token : added) {
    parts.added.push_back({static_cast<int32_t>(parts.pieces.size()), token});
    parts.pieces.push_back(token);
  }
  parts.patterns.emplace_back(kGpt2Pattern);
  parts.json = write_bpe(parts);
  return make_bpe(std::move(parts));
}

std::unique_ptr<Tokenizer> choose_tokenizer(const std::string& spec,
                                            const std::vector<std::string>& data) {
  std::error_code ignored;
  if (spec.starts_with(kPrefix)) {
    const int64_t size = parse_size(std::string_view(spec).substr(kPrefix.size()));
    BpeLearner learner;
    bool dialogues = false;
    const auto bytes = make_tokenizer("bytes");
    mark_dialogues(*bytes);  // who reads the text after this says what it may hold
    const auto learn = [&](SourceFile&& file) {
      each_run(file.path, file.bytes.text(), *bytes, 0, Pairs::taken, [&](TextRun&& run) {
        learner.add(run.text());
        dialogues |= !run.all_trained;
      });
    };
    each_source(
        data, {learn, [](const std::string& folder) {
                 fail_usage(
                     "{} holds tokens, and a vocabulary is learned from text; name the text itself",
                     folder);
               }});
    return learner.learn(size, dialogues);
  }
  if (std::filesystem::is_directory(spec, ignored)) {
    std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(spec);
    // that model knew them, one that takes its tokenizer does not yet
    mark_dialogues(*tokenizer, false);
    return tokenizer;
  }
  return make_tokenizer(spec);
}

int64_t vocabulary_of(const std::string& spec) {
  if (spec.starts_with(kPrefix)) return parse_size(std::string_view(spec).substr(kPrefix.size()));
  return choose_tokenizer(spec, {})->vocab_size();
}

}  // namespace moe
