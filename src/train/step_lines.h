// A file of JSON lines that each carry their "step": appended to as a run goes on, cut back to
// where a resumed run takes over.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace moe {

class StepLines {
 public:
  // Opens `path` for appending. Lines of steps after `last_step`, and a last line that a kill cut
  // short, are cut off first, in one atomic step.
  StepLines(std::string path, int64_t last_step);
  ~StepLines();
  StepLines(const StepLines&) = delete;
  StepLines& operator=(const StepLines&) = delete;

  // `line` without its newline. All of it is written, or nothing.
  void append(const std::string& line);
  // The last line becomes what `change` makes of it, which is returned; there must be one. It stays
  // where there is no room for the other. A kill in between loses it.
  std::string change_last(const std::function<std::string(std::string_view line)>& change);
  // To disk: called before a checkpoint, so that no line of a saved step can be missing.
  void sync();

 private:
  std::string path_;
  int fd_ = -1;
};

// f(line) for each of the last `most` whole lines, in order; none where there is no file.
void each_last_line(const std::string& path, int64_t most,
                    const std::function<void(std::string_view line)>& f);

}  // namespace moe
