// Text as one long row of token ids, cut into documents. Byte tokens and shards (text/shards.h) are
// read straight from mapped files; other text is encoded once and held compactly.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/mmap.h"
#include "text/encode.h"
#include "text/source.h"
#include "text/tokenizer.h"

namespace moe {

struct CorpusFile {
  std::string path;
  std::string domain;  // the file's stem: "german" of data/german.txt
  int64_t begin = 0;   // its tokens are [begin, end) of the corpus
  int64_t end = 0;
};

struct TokenRange {
  int64_t begin = 0, end = 0;
};

// The files of one name.
struct Domain {
  std::string name;
  int64_t tokens = 0;
  std::vector<TokenRange> ranges;  // of the corpus, in order
};

struct SplitCorpus;

// Owns the mapped files and the ids. Immutable once built, so any number of threads may read.
class Corpus {
 public:
  // `paths` as in each_source (text/source.h), and folders of shards, which must be this
  // tokenizer's. A text file is one document, unless it holds the tokenizer's end-of-text token,
  // which ends one; each line of a .jsonl file is one, but a preference pair is two: the chosen
  // and, behind it, the rejected text. A text holds pairs only or none.
  Corpus(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
         Pairs pairs = Pairs::refused);
  // The same text in two parts: the blocks of documents that is_held_out names, and the others
  // (text/source.h says how they are cut). Fails when one part is empty; shards cannot be split any
  // more.
  static SplitCorpus split(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                           double hold_out, Pairs pairs = Pairs::refused);
  // Ids already made (tests, `score`): one document.
  explicit Corpus(std::vector<int32_t> ids);
  // `ends`: one past the last token of each document, ascending, the last being the end;
  // `untrained`: tokens that are not learned from.
  Corpus(std::vector<int32_t> ids, std::vector<uint32_t> ends,
         std::vector<TokenSpan> untrained = {});
  // Of pairs already made, in the order of their documents.
  static Corpus of_pairs(std::vector<int32_t> ids, std::vector<uint32_t> ends,
                         std::vector<TokenSpan> untrained);

  int64_t size() const { return size_; }            // tokens
  int64_t bytes() const { return bytes_; }          // of text; 0 when made from ids
  int64_t documents() const { return documents_; }  // that end here
  int64_t untrained() const { return untrained_; }  // tokens that are not learned from
  // Preference pairs: documents 2p and 2p + 1 are the chosen and the rejected text of pair p. None
  // of them, or all documents are.
  int64_t pairs() const { return pairs_; }
  int32_t at(int64_t i) const;
  // ids[0..count) = tokens [start, start + count), which must lie within the corpus.
  void fill(int64_t start, int64_t count, int32_t* ids) const;
  // trained[0..count) = 1 where a token of [start, start + count) is learned from, else 0.
  void fill_trained(int64_t start, int64_t count, uint8_t* trained) const;
  // One past the last token of the document that token i belongs to.
  int64_t document_end(int64_t i) const;

  // The text of every file, where ids are bytes; views of what the corpus holds.
  std::vector<std::string_view> texts() const;

  const std::vector<CorpusFile>& files() const { return files_; }
  std::vector<Domain> domains() const;  // in the order of their first files
  const Skipped& skipped() const { return skipped_; }

 private:
  // A run of tokens with one element width. Its views are owned by `held_`, `mapped_` or `copied_`.
  struct Segment {
    int64_t begin = 0, end = 0;
    int width = 1;  // bytes of an id: 1, 2 or 4
    const void* data = nullptr;
    std::span<const uint32_t> ends;  // counted from `begin`
    std::span<const TokenSpan> untrained;
    bool ends_document = false;  // at its end, whatever `ends` says
    std::string where;           // of a shard, for messages
  };
  // Tokens that were encoded here.
  struct Held {
    std::vector<unsigned char> ids;
    std::vector<uint32_t> ends;
    std::vector<TokenSpan> untrained;
    int64_t tokens = 0;
  };
  Corpus() = default;
  void read(const std::vector<std::string>& paths, const Tokenizer& tokenizer, Pairs pairs,
            double hold_out, Corpus* held_out);
  void add_run(EncodedRun&& run, int width);
  void add_view(const std::shared_ptr<const MappedFile>& file, const TextRun& run);
  void add_shards(const std::string& folder, const Tokenizer& tokenizer);
  void seal();
  void end_file(const std::string& path, const std::string& domain);
  void add_segment(Segment segment, int64_t count);
  size_t segment_of(int64_t i) const;

  std::vector<std::shared_ptr<const MappedFile>> mapped_;  // shared by the parts of a split
  // bytes of small files: a process may hold only so many mappings
  std::vector<std::unique_ptr<const std::vector<char>>> copied_;
  std::vector<std::unique_ptr<Held>> held_;
  std::unique_ptr<Held> open_;  // not yet a segment
  std::vector<Segment> segments_;
  std::vector<CorpusFile> files_;
  int64_t size_ = 0, bytes_ = 0, documents_ = 0, untrained_ = 0, pairs_ = 0;
  Skipped skipped_;
};

struct SplitCorpus {
  Corpus train, held_out;
};

}  // namespace moe
