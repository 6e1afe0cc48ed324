// Appending, and cutting off what a resumed run will write again. Truncation is atomic, so no copy
// is made.
#include "train/step_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/append.h"
#include "core/error.h"
#include "core/json.h"
#include "core/mmap.h"

namespace moe {
namespace {

// The step of a line; nothing when the line is no such object.
std::optional<int64_t> step_of(std::string_view line, const std::string& where) {
  try {
    const Json json = parse_json(line, where);
    return JsonReader(json, where).get<int64_t>("step");
  } catch (const Error&) {
    return std::nullopt;
  }
}

size_t end_of_whole_lines(std::string_view text) {
  const size_t newline = text.rfind('\n');
  return newline == std::string_view::npos ? 0 : newline + 1;
}

// Where the line begins that ends, newline included, at `end`.
size_t begin_of_line(std::string_view text, size_t end) {
  return end_of_whole_lines(text.substr(0, end - 1));
}

// How many bytes of the file to keep: whole lines of steps up to `last_step`. Steps only grow, so
// it is looked for from the end.
size_t kept_bytes(std::string_view text, int64_t last_step, const std::string& where) {
  size_t end = end_of_whole_lines(text);
  while (end > 0) {
    const size_t begin = begin_of_line(text, end);
    const std::optional<int64_t> step = step_of(text.substr(begin, end - 1 - begin), where);
    if (step && *step <= last_step) break;
    end = begin;
  }
  return end;
}

}  // namespace

void each_last_line(const std::string& path, int64_t most,
                    const std::function<void(std::string_view line)>& f) {
  if (!std::filesystem::exists(path)) return;
  const MappedFile file(path);
  const std::string_view text = file.text();
  const size_t end = end_of_whole_lines(text);
  size_t begin = end;
  for (int64_t n = 0; n < most && begin > 0; ++n) begin = begin_of_line(text, begin);
  while (begin < end) {
    const size_t newline = text.find('\n', begin);
    f(text.substr(begin, newline - begin));
    begin = newline + 1;
  }
}

StepLines::StepLines(std::string path, int64_t last_step) : path_(std::move(path)) {
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0)
    fail("cannot write {}: {}; choose a folder that may be written to", path_,
         std::strerror(errno));
  try {
    struct stat info {};
    if (fstat(fd_, &info) != 0)
      fail("cannot read {}: {}; check the disk", path_, std::strerror(errno));
    if (info.st_size == 0) return;
    const size_t kept = [&] {
      const MappedFile file(path_);
      return kept_bytes(file.text(), last_step, path_);
    }();
    if (kept < static_cast<size_t>(info.st_size) && ftruncate(fd_, static_cast<off_t>(kept)) != 0)
      fail("cannot shorten {}: {}; check whether it may be written to", path_,
           std::strerror(errno));
  } catch (...) {
    close(fd_);
    throw;
  }
}

StepLines::~StepLines() { close(fd_); }

// Half a line that is left nevertheless is cut off by resuming.
void StepLines::append(const std::string& line) {
  append_all(fd_, line + "\n", path_, marked("free some space, then go on with @resume"));
}

std::string StepLines::change_last(
    const std::function<std::string(std::string_view line)>& change) {
  std::string before, changed;
  const size_t kept = [&] {
    const MappedFile file(path_);
    const std::string_view text = file.text();
    const size_t begin = begin_of_line(text, text.size());
    before = text.substr(begin, text.size() - 1 - begin);
    changed = change(before);
    return begin;
  }();
  if (ftruncate(fd_, static_cast<off_t>(kept)) != 0)
    fail("cannot shorten {}: {}; check whether it may be written to", path_, std::strerror(errno));
  try {
    append(changed);
  } catch (const Error&) {
    append(before);  // there was room for it a moment ago
    throw;
  }
  return changed;
}

void StepLines::sync() {
  if (fdatasync(fd_) != 0)
    fail("cannot save {} to disk: {}; check the disk, then go on with @resume", path_,
         std::strerror(errno));
}

}  // namespace moe
