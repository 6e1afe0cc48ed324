// Text files as one long row of token ids. Byte tokens are read straight from mapped files; others are encoded once and held compactly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/mmap.h"
#include "text/tokenizer.h"

namespace moe {

struct CorpusFile {
  std::string path;
  std::string domain;  // the file's stem: "german" of data/german.txt
  int64_t begin = 0;   // its tokens are [begin, end) of the corpus
  int64_t end = 0;
};

// Owns the mapped files and the ids. Immutable once built, so any number of threads may read.
class Corpus {
 public:
  // `paths`: files, and folders walked recursively in sorted order (hidden names are passed over). A path that is missing, empty or binary fails when it was
  // named directly; inside a folder, empty and binary files are skipped and counted.
  Corpus(const std::vector<std::string>& paths, const Tokenizer& tokenizer);
  // Ids already made (tests, `score`).
  explicit Corpus(std::vector<int32_t> ids);

  int64_t size() const { return size_; }    // tokens
  int64_t bytes() const { return bytes_; }  // of text; 0 when made from ids
  int32_t at(int64_t i) const;
  // ids[0..count) = tokens [start, start + count), which must lie within the corpus.
  void fill(int64_t start, int64_t count, int32_t* ids) const;

  // The text of every file, where ids are bytes; views of what the corpus holds.
  std::vector<std::string_view> texts() const;

  const std::vector<CorpusFile>& files() const { return files_; }
  int64_t skipped_binary() const { return skipped_binary_; }
  int64_t skipped_empty() const { return skipped_empty_; }

 private:
  // A run of tokens with one element width.
  struct Segment {
    int64_t begin;
    int64_t end;
    int width;         // bytes of an id: 1, 2 or 4
    const void* data;  // owned by one of the four below
  };
  void add_folder(const std::string& folder, const Tokenizer& tokenizer);
  void add_file(const std::string& path, const Tokenizer& tokenizer, bool named);
  void add_segment(int64_t count, int width, const void* data);
  size_t segment_of(int64_t i) const;

  std::vector<MappedFile> mapped_;
  std::vector<std::vector<uint8_t>> small_;  // byte tokens of small files: a process may hold only so many mappings
  std::vector<std::vector<uint16_t>> narrow_;
  std::vector<std::vector<int32_t>> wide_;
  std::vector<Segment> segments_;
  std::vector<CorpusFile> files_;
  int64_t size_ = 0;
  int64_t bytes_ = 0;
  int64_t skipped_binary_ = 0;
  int64_t skipped_empty_ = 0;
};

// Why these bytes are no text: a NUL byte, or more than a tenth of them outside valid UTF-8. Empty for text. Looks at the first MiB.
std::string binary_reason(std::string_view bytes);

}  // namespace moe
