// The texts of a corpus as domains: what specialisation is measured between.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/threads.h"
#include "text/corpus.h"

namespace moe {

struct TextDomain {
  std::string name;
  std::vector<Span> spans;  // of the corpus, in order; read as one text
  int64_t tokens = 0;

  // ids[0..count) = tokens [start, start + count) of the domain.
  void fill(const Corpus&, int64_t start, int64_t count, int32_t* ids) const;
};

constexpr size_t kMaxDomains = 16;

// One for each name of a file, in the corpus's order. Where that would be more than kMaxDomains,
// one for each folder; where that is still more, the largest and "others".
std::vector<TextDomain> domains_of(const Corpus&);

}  // namespace moe
