#include "text/corpus.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "text/utf8.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSample = size_t{1} << 20;
constexpr size_t kSmallFile = size_t{64} << 10;

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  try {
    for (auto it = fs::recursive_directory_iterator(folder); it != fs::recursive_directory_iterator(); ++it) {
      if (hidden(it->path())) it.disable_recursion_pending();
      else if (it->is_regular_file()) files.push_back(it->path().string());
    }
  } catch (const fs::filesystem_error& e) {
    fail("cannot read the folder {}: {}", folder, e.code().message());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string binary_reason(std::string_view bytes) {
  const std::string_view sample = bytes.substr(0, kSample);
  if (const size_t nul = sample.find('\0'); nul != std::string_view::npos) return fmt::format("a NUL byte at offset {}", nul);
  size_t broken = 0;
  for (std::string_view rest = sample; !rest.empty();) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Step::Kind::cut) break;
    if (step.kind == Utf8Step::Kind::broken) broken += static_cast<size_t>(step.length);
    rest.remove_prefix(static_cast<size_t>(step.length));
  }
  if (broken * 10 <= sample.size()) return "";
  return fmt::format("{} of its first {} bytes are not valid UTF-8", broken, sample.size());
}

Corpus::Corpus(const std::vector<std::string>& paths, const Tokenizer& tokenizer) {
  if (paths.empty()) fail_usage("no text was named; give files or folders with --data");
  for (const std::string& path : paths) {
    std::error_code unreadable;  // add_file says what is wrong with the path
    if (fs::is_directory(path, unreadable)) add_folder(path, tokenizer);
    else add_file(path, tokenizer, true);
  }
}

Corpus::Corpus(std::vector<int32_t> ids) {
  wide_.push_back(std::move(ids));
  add_segment(static_cast<int64_t>(wide_.back().size()), 4, wide_.back().data());
}

void Corpus::add_folder(const std::string& folder, const Tokenizer& tokenizer) {
  const int64_t before = size_, binary_before = skipped_binary_, empty_before = skipped_empty_;
  for (const std::string& path : files_below(folder)) add_file(path, tokenizer, false);
  if (size_ == before)
    fail("there is no text in the folder {}: {} binary and {} empty files were passed over, and hidden ones", folder, skipped_binary_ - binary_before,
         skipped_empty_ - empty_before);
}

void Corpus::add_file(const std::string& path, const Tokenizer& tokenizer, bool named) {
  MappedFile file(path);
  if (file.size() == 0) {
    if (named) fail("{} is empty; a text file is needed", path);
    ++skipped_empty_;
    return;
  }
  if (const std::string reason = binary_reason(file.text()); !reason.empty()) {
    if (named) fail("{} looks binary ({}); a text file in UTF-8 is needed", path, reason);
    ++skipped_binary_;
    return;
  }
  bytes_ += static_cast<int64_t>(file.size());
  const int64_t begin = size_;
  if (!tokenizer.ids_are_bytes()) {
    std::vector<int32_t> ids = tokenizer.encode(file.text());
    if (tokenizer.vocab_size() <= 1 << 16) {
      narrow_.emplace_back(ids.begin(), ids.end());
      add_segment(static_cast<int64_t>(ids.size()), 2, narrow_.back().data());
    } else {
      wide_.push_back(std::move(ids));
      add_segment(static_cast<int64_t>(wide_.back().size()), 4, wide_.back().data());
    }
  } else if (file.size() <= kSmallFile) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(file.bytes().data());
    small_.emplace_back(bytes, bytes + file.size());
    add_segment(static_cast<int64_t>(file.size()), 1, small_.back().data());
  } else {
    mapped_.push_back(std::move(file));
    add_segment(static_cast<int64_t>(mapped_.back().size()), 1, mapped_.back().bytes().data());
  }
  files_.push_back({path, fs::path(path).stem().string(), begin, size_});
}

void Corpus::add_segment(int64_t count, int width, const void* data) {
  if (count == 0) return;
  segments_.push_back({size_, size_ + count, width, data});
  size_ += count;
}

size_t Corpus::segment_of(int64_t i) const {
  assert(0 <= i && i < size_);
  const auto after = std::upper_bound(segments_.begin(), segments_.end(), i, [](int64_t at, const Segment& segment) { return at < segment.begin; });
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
    texts.emplace_back(static_cast<const char*>(segment.data), static_cast<size_t>(segment.end - segment.begin));
  }
  return texts;
}

void Corpus::fill(int64_t start, int64_t count, int32_t* ids) const {
  if (start < 0 || count < 0 || start > size_ - count) fail("tokens [{}, {}) were asked for, the text has {}", start, start + count, size_);
  if (count == 0) return;
  for (size_t s = segment_of(start); count > 0; ++s) {
    const Segment& segment = segments_[s];
    const int64_t n = std::min(count, segment.end - start), from = start - segment.begin;
    if (segment.width == 1) std::copy_n(static_cast<const uint8_t*>(segment.data) + from, n, ids);
    else if (segment.width == 2) std::copy_n(static_cast<const uint16_t*>(segment.data) + from, n, ids);
    else std::copy_n(static_cast<const int32_t*>(segment.data) + from, n, ids);
    start += n;
    ids += n;
    count -= n;
  }
}

}  // namespace moe
