#include "text/corpus.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <utility>

#include "core/error.h"
#include "text/jsonl.h"
#include "text/shards.h"

namespace moe {
namespace {

constexpr size_t kSmallFile = size_t{64} << 10;
constexpr int64_t kHeldTokens = int64_t{1}
                                << 22;  // of a segment, so that growing one copies little

bool is_small(const MappedFile& file) { return file.size() <= kSmallFile; }

template <class From>
void copy_ids(const void* data, int64_t from, int64_t count, int32_t* ids) {
  std::copy_n(static_cast<const From*>(data) + from, count, ids);
}

}  // namespace

Corpus::Corpus(const std::vector<std::string>& paths, const Tokenizer& tokenizer, Pairs pairs) {
  read(paths, tokenizer, pairs, 0, nullptr);
}

SplitCorpus Corpus::split(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                          double hold_out, Pairs pairs) {
  SplitCorpus parts{Corpus(), Corpus()};
  parts.train.read(paths, tokenizer, pairs, hold_out, &parts.held_out);
  for (const Corpus* part : {&parts.train, &parts.held_out})
    if (part->size() == 0)
      fail(
          "a share of {} leaves nothing {}: the text has too few documents; give more text or "
          "another @hold_out",
          hold_out, part == &parts.train ? "to train on" : "held out");
  return parts;
}

Corpus::Corpus(std::vector<int32_t> ids) : Corpus(ids, {static_cast<uint32_t>(ids.size())}) {}

Corpus::Corpus(std::vector<int32_t> ids, std::vector<uint32_t> ends,
               std::vector<TokenSpan> untrained) {
  if (ids.empty()) return;
  EncodedRun run;
  run.ids = std::move(ids);
  run.ends = std::move(ends);
  run.untrained = std::move(untrained);
  add_run(std::move(run), 4);
  seal();
}

Corpus Corpus::of_pairs(std::vector<int32_t> ids, std::vector<uint32_t> ends,
                        std::vector<TokenSpan> untrained) {
  Corpus corpus(std::move(ids), std::move(ends), std::move(untrained));
  corpus.pairs_ = corpus.documents_ / 2;
  return corpus;
}

void Corpus::read(const std::vector<std::string>& paths, const Tokenizer& tokenizer, Pairs pairs,
                  double hold_out, Corpus* held_out) {
  std::string texts_in, pairs_in;  // the first file of each kind
  const int width = id_width(tokenizer.vocab_size());
  const auto side = [&](bool held) -> Corpus& { return held ? *held_out : *this; };
  SourceVisitor visit;
  visit.text = [&](SourceFile&& source) {
    const auto file = std::make_shared<const MappedFile>(std::move(source.bytes));
    Encoder encoder(tokenizer, 0, [&](EncodedRun&& run) {
      const bool held = run.held_out;
      side(held).add_run(std::move(run), width);
    });
    each_run(source.path, file->text(), tokenizer, hold_out, pairs, [&](TextRun&& run) {
      if (std::string& first = run.in_pair ? pairs_in : texts_in; first.empty())
        first = source.path;
      if (tokenizer.ids_are_bytes() && !run.owns) side(run.held_out).add_view(file, run);
      else encoder.add(std::move(run));
    });
    encoder.flush();
    end_file(source.path, source.domain);
    if (held_out) held_out->end_file(source.path, source.domain);
  };
  visit.tokens = [&](const std::string& folder) {
    if (held_out)
      fail_usage(
          "{} holds tokens, which cannot be split any more; give @hold_out to `moe tokenize`",
          folder);
    add_shards(folder, tokenizer);
    if (texts_in.empty()) texts_in = folder;
  };
  skipped_ = each_source(paths, visit);
  if (!texts_in.empty() && !pairs_in.empty())
    fail(
        "{} holds preference pairs and {} other text; a run reads pairs only or none: leave one "
        "out, or train on them one after the other",
        pairs_in, texts_in);
  for (Corpus* part : {this, held_out})
    if (part != nullptr && !pairs_in.empty()) part->pairs_ = part->documents_ / 2;
}

// Bytes of a file as they lie there.
void Corpus::add_view(const std::shared_ptr<const MappedFile>& file, const TextRun& run) {
  const std::string_view text = run.text();
  const char* data = text.data();
  if (is_small(*file)) {
    copied_.push_back(std::make_unique<const std::vector<char>>(text.begin(), text.end()));
    data = copied_.back()->data();
  } else if (mapped_.empty() || mapped_.back() != file) {
    mapped_.push_back(file);
  }
  Segment segment;
  segment.data = data;
  segment.ends_document = run.ends_document;
  documents_ += run.ends_document;
  bytes_ += static_cast<int64_t>(text.size());
  add_segment(segment, static_cast<int64_t>(text.size()));
}

void Corpus::add_run(EncodedRun&& run, int width) {
  if (open_ && open_->tokens >= kHeldTokens) seal();
  if (!open_) open_ = std::make_unique<Held>();
  const auto base = static_cast<uint32_t>(open_->tokens);
  open_->tokens += static_cast<int64_t>(run.ids.size());
  pack_ids(run.ids, width, open_->ids);
  for (const uint32_t end : run.ends) open_->ends.push_back(base + end);
  for (const TokenSpan& span : run.untrained) {
    open_->untrained.push_back({base + span.begin, base + span.end});
    untrained_ += span.end - span.begin;
  }
  documents_ += static_cast<int64_t>(run.ends.size());
  bytes_ += run.bytes;
}

void Corpus::seal() {
  if (!open_) return;
  open_->ids.shrink_to_fit();
  open_->ends.shrink_to_fit();
  open_->untrained.shrink_to_fit();
  held_.push_back(std::move(open_));
  const Held& held = *held_.back();
  Segment segment;
  segment.width =
      held.tokens > 0 ? static_cast<int>(static_cast<int64_t>(held.ids.size()) / held.tokens) : 1;
  segment.data = held.ids.data();
  segment.ends = held.ends;
  segment.untrained = held.untrained;
  add_segment(segment, held.tokens);
}

void Corpus::end_file(const std::string& path, const std::string& domain) {
  seal();
  const int64_t begin = files_.empty() ? 0 : files_.back().end;
  if (size_ > begin) files_.push_back({path, domain, begin, size_});
}

void Corpus::add_shards(const std::string& folder, const Tokenizer& tokenizer) {
  check_tokenizer(folder, tokenizer);
  const TokensIndex index = read_tokens_index(folder);
  int64_t documents = 0;
  bool masked = false;
  for (const TokensIndex::Part& part : index.shards) {
    Segment segment;
    segment.where = folder + "/" + part.name;
    auto file = std::make_shared<const MappedFile>(segment.where);
    std::span<const std::byte> bytes = file->bytes();
    if (is_small(*file)) {
      copied_.push_back(
          std::make_unique<const std::vector<char>>(file->text().begin(), file->text().end()));
      bytes = std::as_bytes(std::span(*copied_.back()));
    } else {
      mapped_.push_back(std::move(file));
    }
    const Shard shard = read_shard(bytes, segment.where);
    if (shard.tokens != part.tokens)
      fail("{} holds {} tokens, {}/{} says {}; the folder is damaged", segment.where, shard.tokens,
           folder, kTokensIndex, part.tokens);
    segment.width = shard.width;
    segment.data = shard.ids;
    segment.ends = shard.ends;
    segment.untrained = shard.untrained;
    documents += static_cast<int64_t>(shard.ends.size());
    masked |= !shard.untrained.empty();
    add_segment(segment, shard.tokens);
  }
  if (documents != index.documents || masked != (index.untrained > 0))
    fail(
        "{}: its shards hold {} documents, {} says {}, or they differ in what is learned from; the "
        "folder is damaged",
        folder, documents, kTokensIndex, index.documents);
  for (const TokensIndex::File& f : index.files) {
    const int64_t begin = files_.empty() ? 0 : files_.back().end;
    if (f.tokens > 0) files_.push_back({f.path, f.domain, begin, begin + f.tokens});
  }
  bytes_ += index.bytes();
  documents_ += index.documents;
  untrained_ += index.untrained;
}

void Corpus::add_segment(Segment segment, int64_t count) {
  if (count == 0) return;
  segment.begin = size_;
  segment.end = size_ + count;
  segments_.push_back(std::move(segment));
  size_ += count;
}

size_t Corpus::segment_of(int64_t i) const {
  assert(0 <= i && i < size_);
  const auto after =
      std::upper_bound(segments_.begin(), segments_.end(), i,
                       [](int64_t at, const Segment& segment) { return at < segment.begin; });
  return static_cast<size_t>(after - segments_.begin()) - 1;
}

int32_t Corpus::at(int64_t i) const {
  int32_t id = 0;
  fill(i, 1, &id);
  return id;
}

std::vector<std::string_view> Corpus::texts() const {
  std::vector<std::string_view> texts;
  for (const Segment& segment : segments_) {
    assert(segment.width == 1);
    const std::string_view text(static_cast<const char*>(segment.data),
                                static_cast<size_t>(segment.end - segment.begin));
    size_t begin = 0;
    for (const uint32_t end : segment.ends) {
      texts.push_back(text.substr(begin, end - begin));
      begin = end;
    }
    if (begin < text.size()) texts.push_back(text.substr(begin));
  }
  return texts;
}

std::vector<Domain> Corpus::domains() const {
  std::vector<Domain> all;
  std::map<std::string, size_t> place;
  const auto add = [&](const std::string& name, TokenRange range) {
    const auto [at, is_new] = place.try_emplace(name, all.size());
    if (is_new) all.push_back({name, 0, {}});
    Domain& domain = all[at->second];
    domain.tokens += range.end - range.begin;
    if (!domain.ranges.empty() && domain.ranges.back().end == range.begin)
      domain.ranges.back().end = range.end;
    else domain.ranges.push_back(range);
  };
  for (const CorpusFile& file : files_) add(file.domain, {file.begin, file.end});
  if (files_.empty() && size_ > 0) add("", {0, size_});
  return all;
}

void Corpus::fill(int64_t start, int64_t count, int32_t* ids) const {
  if (start < 0 || count < 0 || start > size_ - count)
    fail("tokens [{}, {}) were asked for, the text has {}", start, start + count, size_);
  if (count == 0) return;
  for (size_t s = segment_of(start); count > 0; ++s) {
    const Segment& segment = segments_[s];
    const int64_t n = std::min(count, segment.end - start), from = start - segment.begin;
    if (segment.width == 1) copy_ids<uint8_t>(segment.data, from, n, ids);
    else if (segment.width == 2) copy_ids<uint16_t>(segment.data, from, n, ids);
    else copy_ids<int32_t>(segment.data, from, n, ids);
    start += n;
    ids += n;
    count -= n;
  }
}

void Corpus::fill_trained(int64_t start, int64_t count, uint8_t* trained) const {
  assert(0 <= start && start + count <= size_);
  std::fill_n(trained, count, uint8_t{1});
  if (untrained_ == 0 || count == 0) return;
  for (size_t s = segment_of(start); count > 0; ++s) {
    const Segment& segment = segments_[s];
    const int64_t n = std::min(count, segment.end - start), from = start - segment.begin;
    auto span = std::upper_bound(segment.untrained.begin(), segment.untrained.end(), from,
                                 [](int64_t at, const TokenSpan& x) { return at < x.end; });
    for (; span != segment.untrained.end(); ++span) {
      if (span->begin >= span->end || span->end > segment.end - segment.begin)
        fail("{}: its spans are damaged; make it again with `moe tokenize`", segment.where);
      if (span->begin >= from + n) break;
      const int64_t begin = std::max<int64_t>(span->begin, from),
                    end = std::min<int64_t>(span->end, from + n);
      if (begin < end) std::fill(trained + (begin - from), trained + (end - from), uint8_t{0});
    }
    start += n;
    trained += n;
    count -= n;
  }
}

int64_t Corpus::document_end(int64_t i) const {
  for (size_t s = segment_of(i); s < segments_.size(); ++s) {
    const Segment& segment = segments_[s];
    const int64_t from = std::max<int64_t>(i - segment.begin, 0);
    const auto end = std::upper_bound(segment.ends.begin(), segment.ends.end(), from);
    if (end != segment.ends.end()) {
      if (*end <= from || *end > segment.end - segment.begin)
        fail("{}: its documents' ends are damaged; make it again with `moe tokenize`",
             segment.where);
      return segment.begin + *end;
    }
    if (segment.ends_document) return segment.end;
  }
  return size_;
}

}  // namespace moe
