#include "text/loader.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/error.h"
#include "core/nearest.h"
#include "core/words.h"

namespace moe {
namespace {

constexpr uint64_t kRounds = 8;
// Counter of the draw of an epoch's offset; the rounds of the permutation have keys of their own.
constexpr uint64_t kOffset = ~uint64_t{0};
// Key of the passes over the domains of a mix; epochs have the small ones.
constexpr uint64_t kPasses = ~uint64_t{0};
constexpr double kMostWeight = 1000;

}  // namespace

// (left, right) -> (right, left ^ f(right)) is a bijection whatever f is; so is walking it until it
// lands in [0, n), since the walk goes around the cycle that i lies on. Both halves have `half`
// bits, so the domain is below 4n and the walk is short.
int64_t permute(RngKey key, int64_t i, int64_t n) {
  const int half =
      std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(n - 1)) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t x = static_cast<uint64_t>(i);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const auto r = philox(key.fold(round), right);
      const uint64_t mixed = (left ^ (uint64_t{r[0]} << 32 | r[1])) & mask;
      left = right;
      right = mixed;
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

bool changes_anything(const Mix& mix) {
  return std::any_of(mix.begin(), mix.end(), [](const auto& entry) { return entry.second != 1; });
}

void check_weights(const Mix& mix) {
  for (const auto& [name, weight] : mix)
    if (!(weight >= 0 && weight <= kMostWeight))
      fail_usage("@mix {}={}: a weight is from 0 (not at all) to {}", printable(name), weight,
                 kMostWeight);
}

void TextBatch::clear() {
  ids.clear();
  targets.clear();
  positions.clear();
  pairs.clear();
  bounds.assign(1, 0);
  predicted = 0;
}

void TextBatch::add_row(const Corpus& corpus, int64_t start, int64_t context) {
  add_row(corpus, {{0, corpus.size()}}, start, context);
}

void TextBatch::add_row(const Corpus& corpus, const std::vector<TokenRange>& ranges, int64_t start,
                        int64_t context) {
  const int64_t count = context + 1;
  std::vector<int32_t> row(static_cast<size_t>(count));
  std::vector<uint8_t> trained(static_cast<size_t>(count)), ends(static_cast<size_t>(count), 0);
  int64_t done = 0;
  for (const TokenRange& range : ranges) {
    const int64_t length = range.end - range.begin;
    if (done < count && start < length) {
      const int64_t n = std::min(count - done, length - start), from = range.begin + start;
      corpus.fill(from, n, row.data() + done);
      corpus.fill_trained(from, n, trained.data() + done);
      for (int64_t end = corpus.document_end(from); end <= from + n;
           end = end < from + n ? corpus.document_end(end) : from + n + 1)
        ends[static_cast<size_t>(done + end - from - 1)] = 1;
      done += n;
    }
    start = std::max<int64_t>(start - length, 0);
  }
  if (done < count)
    fail("a row of {} tokens was asked for that goes over the end of its text", count);
  add_tokens(row, trained, ends);
}

void TextBatch::add_pair(const Corpus& corpus, const PairIndex& index, int64_t pair) {
  const PairPlace& place = index.place(pair);
  for (const TokenRange text :
       {TokenRange{place.begin, place.middle}, TokenRange{place.middle, place.end}}) {
    const auto count = static_cast<size_t>(text.end - text.begin);
    std::vector<int32_t> row(count);
    std::vector<uint8_t> trained(count);
    corpus.fill(text.begin, text.end - text.begin, row.data());
    corpus.fill_trained(text.begin, text.end - text.begin, trained.data());
    add_tokens(row, trained, std::vector<uint8_t>(count, 0));
  }
  pairs.push_back(pair);
}

void TextBatch::add_tokens(const std::vector<int32_t>& row, const std::vector<uint8_t>& trained,
                           const std::vector<uint8_t>& ends) {
  int32_t position = 0;
  for (size_t t = 0; t + 1 < row.size(); ++t) {
    const bool predicts = !ends[t] && trained[t + 1] != 0;
    ids.push_back(row[t]);
    targets.push_back(predicts ? row[t + 1] : kNoTarget);
    positions.push_back(position++);
    predicted += predicts;
    if (ends[t] == 0 && t + 2 < row.size()) continue;
    bounds.push_back(static_cast<int64_t>(ids.size()));
    position = 0;
  }
}

std::vector<DomainShare> domain_shares(const Corpus& corpus, int64_t context, const Mix& mix) {
  check_weights(mix);
  std::vector<DomainShare> shares;
  std::vector<std::string> names;
  for (const Domain& domain : corpus.domains()) {
    const auto weight = mix.find(domain.name);
    const int64_t windows = std::max<int64_t>(domain.tokens - 1, 0) / context;
    const double visits = (weight == mix.end() ? 1 : weight->second) * static_cast<double>(windows);
    names.push_back(domain.name);
    shares.push_back({domain.name, domain.tokens, windows, std::llround(visits)});
    if (changes_anything(mix) && windows == 0 && (weight == mix.end() || weight->second > 0))
      fail_usage(
          "domain \"{}\" has {} tokens, too few for a row of {} and its last target; give it @mix "
          "{}=0, more text, or a smaller @context",
          printable(domain.name), domain.tokens, context, printable(domain.name));
  }
  for (const auto& [name, weight] : mix)
    if (std::find(names.begin(), names.end(), name) == names.end())
      fail_usage("@mix {}={}: no domain of the text is called so{}", printable(name), weight,
                 suggestion(name, names));
  return shares;
}

int64_t mean_document(const Corpus& corpus, const Mix& mix) {
  // As often as they are visited. The last end of a text, or of a domain, cuts no window.
  double tokens = static_cast<double>(corpus.size()),
         ends = static_cast<double>(std::max<int64_t>(corpus.documents() - 1, 0));
  if (changes_anything(mix)) {
    tokens = ends = 0;
    for (const Domain& domain : corpus.domains()) {
      const auto named = mix.find(domain.name);
      const double weight = named == mix.end() ? 1 : named->second;
      int64_t documents = 0;
      for (const TokenRange& range : domain.ranges)
        for (int64_t at = range.begin; at < range.end; at = corpus.document_end(at)) ++documents;
      tokens += weight * static_cast<double>(domain.tokens);
      ends += weight * static_cast<double>(std::max<int64_t>(documents - 1, 0));
    }
  }
  return ends > 0 ? std::max<int64_t>(1, std::llround(tokens / ends)) : 0;
}

BatchPlan::BatchPlan(BatchShape shape, Shuffle shuffle, uint64_t seed)
    : shape_(shape),
      shuffle_(shuffle),
      key_(RngKey::from_seed(seed).fold(0x6C6F61646572)) {  // "loader": a stream of its own
  if (shape.context < 1 || shape.batch < 1 || shape.accumulate < 1)
    fail_usage("context, batch and accumulate must be at least 1; they are {}, {} and {}",
               shape.context, shape.batch, shape.accumulate);
}

BatchPlan::BatchPlan(int64_t tokens, BatchShape shape, Shuffle shuffle, uint64_t seed)
    : BatchPlan(shape, shuffle, seed) {
  if (tokens < shape.context + 1)
    fail(
        "the text has {}, at least {} are needed for a context of {}; give more text or a smaller "
        "@context",
        counted(tokens, "token"), shape.context + 1, shape.context);
  windows_ = (tokens - 1) / shape.context;
  sources_ = {{{}, tokens, windows_, 0, windows_}};
}

BatchPlan::BatchPlan(const Corpus& corpus, BatchShape shape, Shuffle shuffle, uint64_t seed,
                     const Mix& mix)
    : BatchPlan(corpus.pairs() > 0 ? BatchPlan(shape, shuffle, seed)
                                   : BatchPlan(corpus.size(), shape, shuffle, seed)) {
  if (corpus.pairs() > 0) {
    if (changes_anything(mix))
      fail_usage("@mix weights windows of text, and these are preference pairs; leave it out");
    windows_ = pairs_.emplace(corpus, shape.context).count();
    return;
  }
  const std::vector<DomainShare> shares =
      mix.empty() ? std::vector<DomainShare>() : domain_shares(corpus, shape.context, mix);
  if (!changes_anything(mix)) return;
  if (shuffle == Shuffle::none) fail_usage("a mix cannot be read in order; it needs shuffling");
  sources_.clear();
  windows_ = 0;
  const std::vector<Domain> domains = corpus.domains();
  for (size_t d = 0; d < domains.size(); ++d) {
    if (shares[d].visits == 0) continue;
    sources_.push_back(
        {domains[d].ranges, domains[d].tokens, shares[d].windows, windows_, shares[d].visits});
    windows_ += shares[d].visits;
  }
  if (windows_ == 0) fail_usage("@mix leaves no window of the text to train on");
}

BatchPlan::Window BatchPlan::window(int64_t step, int64_t a, int64_t b) const {
  const int64_t row = visit(step, a, b), epoch = row / windows_;
  if (shuffle_ == Shuffle::none) return {0, row * shape_.context % (last_start(sources_[0]) + 1)};
  const RngKey key = key_.fold(static_cast<uint64_t>(epoch));
  const int64_t at = permute(key, row % windows_, windows_);
  const auto start = [&](const Source& source, RngKey pass, int64_t window) {
    const auto offset =
        static_cast<int64_t>(uniform_index(pass, kOffset, static_cast<uint64_t>(shape_.context)));
    // The offset may push the last window over the end; it is moved back and overlaps its
    // neighbour.
    return std::min(offset + window * shape_.context, last_start(source));
  };
  if (sources_[0].ranges.empty()) return {0, start(sources_[0], key, at)};
  const auto after = std::upper_bound(sources_.begin(), sources_.end(), at,
                                      [](int64_t i, const Source& s) { return i < s.first; });
  const auto s = static_cast<size_t>(after - sources_.begin()) - 1;
  const Source& source = sources_[s];
  // Visits of a domain count through all epochs, so that none of its windows comes again before all
  // have come.
  const int64_t visit = epoch * source.visits + at - source.first;
  const RngKey pass =
      key_.fold(kPasses).fold(s).fold(static_cast<uint64_t>(visit / source.windows));
  return {s, start(source, pass, permute(pass, visit % source.windows, source.windows))};
}

int64_t BatchPlan::pair(int64_t step, int64_t a, int64_t b) const {
  const int64_t at = visit(step, a, b);
  if (shuffle_ == Shuffle::none) return at % windows_;
  return permute(key_.fold(static_cast<uint64_t>(at / windows_)), at % windows_, windows_);
}

int64_t BatchPlan::tokens(int64_t step) const {
  if (!pairs_) return rows_per_step() * shape_.context;
  int64_t sum = 0;
  for (int64_t a = 0; a < shape_.accumulate; ++a)
    for (int64_t b = 0; b < shape_.batch; ++b) sum += pairs_->place(pair(step, a, b)).tokens();
  return sum;
}

void BatchPlan::fill(const Corpus& corpus, int64_t step, int64_t a, TextBatch& batch) const {
  batch.clear();
  for (int64_t b = 0; b < shape_.batch; ++b) {
    if (pairs_) {
      batch.add_pair(corpus, *pairs_, pair(step, a, b));
      continue;
    }
    const Window w = window(step, a, b);
    const std::vector<TokenRange>& ranges = sources_[w.source].ranges;
    if (ranges.empty()) batch.add_row(corpus, w.start, shape_.context);
    else batch.add_row(corpus, ranges, w.start, shape_.context);
  }
}

int64_t BatchPlan::predicted(const Corpus& corpus, int64_t step) const {
  if (corpus.documents() <= 1 && corpus.untrained() == 0) return tokens(step);
  int64_t sum = 0;
  TextBatch batch;
  for (int64_t a = 0; a < shape_.accumulate; ++a) {
    fill(corpus, step, a, batch);
    sum += batch.predicted;
  }
  return sum;
}

}  // namespace moe
