#include "analyze/data/domains.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "text/utf8.h"

namespace moe {
namespace {

void add(std::vector<TextDomain>& domains, const std::string& name, Span span) {
  auto found = std::find_if(domains.begin(), domains.end(),
                            [&](const TextDomain& d) { return d.name == name; });
  if (found == domains.end()) found = domains.insert(domains.end(), {name, {}, 0});
  found->spans.push_back(span);
  found->tokens += span.end - span.begin;
}

template <class F>
std::vector<TextDomain> grouped(const Corpus& corpus, F&& name_of) {
  std::vector<TextDomain> domains;
  for (const CorpusFile& file : corpus.files()) add(domains, name_of(file), {file.begin, file.end});
  return domains;
}

// All but the kMaxDomains - 1 largest become one.
std::vector<TextDomain> with_others(const std::vector<TextDomain>& all) {
  std::vector<size_t> by_size(all.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return all[a].tokens > all[b].tokens; });
  std::vector<bool> named(all.size());
  for (size_t i = 0; i + 1 < kMaxDomains; ++i) named[by_size[i]] = true;
  std::vector<TextDomain> domains;
  TextDomain others{"others", {}, 0};
  for (size_t i = 0; i < all.size(); ++i) {
    if (named[i]) {
      domains.push_back(all[i]);
      continue;
    }
    others.spans.insert(others.spans.end(), all[i].spans.begin(), all[i].spans.end());
    others.tokens += all[i].tokens;
  }
  domains.push_back(std::move(others));
  return domains;
}

}  // namespace

void TextDomain::fill(const Corpus& corpus, int64_t start, int64_t count, int32_t* ids) const {
  for (const Span& span : spans) {
    const int64_t length = span.end - span.begin;
    if (start < length && count > 0) {
      const int64_t part = std::min(count, length - start);
      corpus.fill(span.begin + start, part, ids);
      ids += part;
      count -= part;
      start += part;
    }
    start -= length;
  }
}

std::vector<TextDomain> domains_of(const Corpus& corpus) {
  if (corpus.files().empty()) return {{"text", {{0, corpus.size()}}, corpus.size()}};
  std::vector<TextDomain> domains = grouped(corpus, [](const CorpusFile& f) { return f.domain; });
  if (domains.size() <= kMaxDomains) return domains;
  domains = grouped(corpus, [](const CorpusFile& f) {
    return readable_name(std::filesystem::path(f.path).parent_path().string());
  });
  return domains.size() <= kMaxDomains ? domains : with_others(domains);
}

}  // namespace moe
