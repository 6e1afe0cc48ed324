// metrics.jsonl: appending, and cutting off what a resumed run will write again. Truncation is atomic, so no copy is made.
// The lock on the file keeps two runs out of one folder.
#include "train/metrics.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/mmap.h"

namespace moe {
namespace {

// The step of a line; nothing when the line is no metrics.
std::optional<int64_t> step_of(std::string_view line, const std::string& where) {
  try {
    const Json json = parse_json(line, where);
    return JsonReader(json, where).get<int64_t>("step");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// How many bytes of the file to keep: whole lines of steps up to `last_step`. Steps only grow, so it is looked for from the end.
size_t kept_bytes(std::string_view text, int64_t last_step, const std::string& where) {
  size_t end = text.rfind('\n') == std::string_view::npos ? 0 : text.rfind('\n') + 1;
  while (end > 0) {
    const size_t before = end >= 2 ? text.rfind('\n', end - 2) : std::string_view::npos;
    const size_t begin = before == std::string_view::npos ? 0 : before + 1;
    const std::optional<int64_t> step = step_of(text.substr(begin, end - 1 - begin), where);
    if (step && *step <= last_step) break;
    end = begin;
  }
  return end;
}

}  // namespace

std::string metrics_line(const StepResult& r, std::optional<double> eval_ce) {
  Json line{{"step", r.step},
            {"tokens", r.tokens},
            {"seconds", r.seconds},
            {"ce", r.ce},
            {"balance", r.balance},
            {"z", r.z},
            {"grad_norm", r.grad_norm},
            {"lr", r.lr},
            {"tokens_per_second", r.tokens_per_second},
            {"flops_per_second", r.flops_per_second},
            {"max_vio", r.max_vio},
            {"dropped", r.dropped}};
  // Losses that few recipes have stand in the line where they are trained on.
  std::vector<float> coef;
  each_loss(r.coef, [&](std::string_view, float c) { coef.push_back(c); });
  size_t loss = 0;
  each_loss(r, [&](const char* name, double value) {
    if (coef[loss++] != 0) line[name] = value;
  });
  Json layers = Json::array();
  for (const LayerLoad& layer : r.layers)
    layers.push_back({{"layer", layer.layer}, {"load", layer.load}, {"max_vio", layer.max_vio}, {"dropped", layer.dropped}});
  line["layers"] = std::move(layers);
  if (eval_ce) line["eval_ce"] = *eval_ce;
  return line.dump();
}

MetricsFile::MetricsFile(std::string path, int64_t last_step) : path_(std::move(path)) {
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("cannot write {}: {}; choose a folder that may be written to", path_, std::strerror(errno));
  try {
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      fail("{} is being written by another training run; wait for it or choose another --out", path_);
    struct stat info {};
    if (fstat(fd_, &info) != 0) fail("cannot read {}: {}", path_, std::strerror(errno));
    if (info.st_size == 0) return;
    const size_t kept = [&] {
      const MappedFile file(path_);
      return kept_bytes(file.text(), last_step, path_);
    }();
    if (kept < static_cast<size_t>(info.st_size) && ftruncate(fd_, static_cast<off_t>(kept)) != 0) fail("cannot shorten {}: {}", path_, std::strerror(errno));
  } catch (...) {
    close(fd_);
    throw;
  }
}

MetricsFile::~MetricsFile() { close(fd_); }

void MetricsFile::append(const StepResult& result, std::optional<double> eval_ce) {
  const std::string line = metrics_line(result, eval_ce) + "\n";
  struct stat before {};
  if (fstat(fd_, &before) != 0) fail("cannot read {}: {}", path_, std::strerror(errno));
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t wrote = write(fd_, line.data() + done, line.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const int error = errno;
      // Half a line is worse than none; should this fail too, resuming cuts it off.
      [[maybe_unused]] const int whole_again = ftruncate(fd_, before.st_size);
      fail("cannot write {}: {}; free some space, then go on with --resume", path_, std::strerror(error));
    }
    done += static_cast<size_t>(wrote);
  }
}

void MetricsFile::sync() {
  if (fdatasync(fd_) != 0) fail("cannot save {} to disk: {}; check the disk, then go on with --resume", path_, std::strerror(errno));
}

}  // namespace moe
