#include "text/tokenize.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "text/encode.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

// A hidden folder beside `target` that takes its name when all is written, and is removed
// otherwise. Its writer holds a lock on it, so that what a killed one left can be told from one
// that is being written.
class StagedFolder {
 public:
  explicit StagedFolder(const std::string& target) {
    if (target.empty())
      fail_usage("@out is missing: name the folder that the tokens shall be written to");
    std::error_code error;
    target_ = fs::absolute(target, error).lexically_normal();
    if (error) fail("cannot use {} as @out: {}", target, error.message());
    if (!target_.has_filename()) target_ = target_.parent_path();
    if (fs::exists(target_, error) &&
        !(fs::is_directory(target_, error) && fs::is_empty(target_, error)))
      fail("{} is there already; choose another @out, or remove it first", target);
    staged_ = target_.parent_path() /
              fmt::format(".{}.tokenize", target_.filename().string().substr(0, 200));
    fs::create_directories(staged_, error);
    if (error)
      fail("cannot create the folder {}: {}; choose another @out", staged_.string(),
           error.message());
    fd_ = open(staged_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd_ < 0) fail("cannot open the folder {}: {}", staged_.string(), std::strerror(errno));
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      close(fd_);
      fail("{} is being written by another `moe tokenize`; wait for it or choose another @out",
           target);
    }
    for (const auto& left : fs::directory_iterator(staged_, error))
      fs::remove_all(left.path(), error);
  }
  ~StagedFolder() {
    std::error_code ignored;
    if (!done_) fs::remove_all(staged_, ignored);
    close(fd_);
  }
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  std::string path() const { return staged_.string(); }
  std::string make(const std::string& name) const {
    std::error_code error;
    fs::create_directory(staged_ / name, error);
    if (error) fail("cannot create the folder {}: {}", (staged_ / name).string(), error.message());
    return (staged_ / name).string();
  }
  void commit() {
    sync_folder(path());
    if (std::rename(staged_.c_str(), target_.c_str()) != 0)
      fail("cannot name the folder {}: {}", target_.string(), std::strerror(errno));
    done_ = true;
    sync_folder(target_.parent_path().string());
  }

 private:
  fs::path target_, staged_;
  int fd_ = -1;
  bool done_ = false;
};

}  // namespace

TokenizeResult tokenize(const TokenizeJob& job, const Tokenizer& tokenizer,
                        const std::function<void(int64_t done, int64_t total)>& progress) {
  if (!(job.hold_out >= 0 && job.hold_out < 1))
    fail_usage("@hold_out is {}; it must be at least 0 and below 1", job.hold_out);
  const int64_t total = source_bytes(job.paths);
  StagedFolder staged(job.out);
  const bool split = job.hold_out > 0;
  TokensWriter train(split ? staged.make("train") : staged.path(), tokenizer, job.shard_tokens);
  std::optional<TokensWriter> held_out;
  if (split) held_out.emplace(staged.make("valid"), tokenizer, job.shard_tokens);

  int64_t before = 0;  // bytes of the files that are done
  SourceVisitor visit;
  visit.text = [&](SourceFile&& file) {
    train.begin_file(file.path, file.domain);
    if (held_out) held_out->begin_file(file.path, file.domain);
    int64_t done = 0;
    Encoder encoder(tokenizer, job.threads, [&](EncodedRun&& run) {
      done += run.bytes;
      (run.held_out ? *held_out : train).add(run);
      if (progress) progress(std::min(before + done, total), total);
    });
    each_run(file.path, file.bytes.text(), tokenizer, job.hold_out, Pairs::refused,
             [&](TextRun&& run) { encoder.add(std::move(run)); });
    encoder.flush();
    before += static_cast<int64_t>(file.bytes.size());
  };
  visit.tokens = [](const std::string& folder) {
    fail_usage("{} holds tokens already; name the text they were made from", folder);
  };

  TokenizeResult result;
  result.skipped = each_source(job.paths, visit);
  result.train = train.finish();
  if (held_out) result.held_out = held_out->finish();
  if (!split && result.train.shards.empty())
    fail("there is nothing to make tokens of in {}: every document is empty",
         fmt::join(job.paths, ", "));
  if (result.train.shards.empty() || (held_out && result.held_out->shards.empty()))
    fail(
        "a share of {} leaves nothing {}: the text has too few documents; give more text or "
        "another @hold_out",
        job.hold_out, result.train.shards.empty() ? "to train on" : "held out");
  staged.commit();
  return result;
}

}  // namespace moe
