#include "comm/world.h"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "comm/identity.h"
#include "comm/mpi_module/mpi_module.h"
#include "core/error.h"
#include "core/threads.h"

namespace moe::comm {
namespace {

constexpr const char* kModule = "moe_mpi.so";

// How many processes were started together, as launchers tell each of them; 1 where none did.
int started_together() {
  // Open MPI; MPICH and its kin; srun with PMIx, which says so beside its own count
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    // A shell in a Slurm job has its count too, but is none of its tasks.
    if (std::strcmp(name, "SLURM_NTASKS") == 0 && std::getenv("PMIX_RANK") == nullptr) continue;
    int size = 1;
    std::from_chars(text, text + std::strlen(text), size);
    return size;
  }
  return 1;
}

// Beside the command, above a test of the build, or where it is installed.
const MoeMpi& load_module(int processes) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error),
                              folder = self.parent_path();
  std::string why = "it is not there";
  for (const std::filesystem::path& path : {folder / kModule, folder.parent_path() / kModule,
                                            folder.parent_path() / "lib" / "moe" / kModule}) {
    if (!std::filesystem::exists(path, error)) continue;
    // Open MPI loads parts of itself that look for its names.
    void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    using Table = const MoeMpi* (*)();
    const auto table =
        module ? reinterpret_cast<Table>(dlsym(module, "moe_mpi_2")) : static_cast<Table>(nullptr);
    if (table) return *table();
    why = dlerror();
  }
  fail_usage(
      "this was started as one of {} processes, but cannot join them: {} could not be loaded: {}; "
      "it is built where MPI is installed (scripts/deps.sh mpi, then build again)",
      processes, kModule, why);
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// The cores that this process may run on.
std::string affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  return {reinterpret_cast<const char*>(&set), sizeof set};
}

}  // namespace

class World::MpiLink final : public Link {
 public:
  explicit MpiLink(int processes) : mpi_(load_module(processes)) {
    std::array<char, kRoom> why{};
    if (mpi_.join(&rank_, &size_, why.data(), kRoom) != 0)
      fail("cannot join the {} processes that were started together: {}", processes, why.data());
    if (size_ != processes)
      fail_usage(
          "this was started as one of {} processes, but {} joins {}: another MPI started it than "
          "the module was built with; start it with that one's mpirun",
          processes, kModule, size_);
  }
  int rank() const { return rank_; }
  int size() const { return size_; }
  void learn_hosts(const Group& group) {
    std::vector<std::string> hosts = group.gather(host_name()),
                             identities = group.gather(identity_of(getpid()));
    hosts_ = std::move(hosts);  // both or none: another process may be lost in between
    identities_ = std::move(identities);
  }
  bool knows_hosts() const { return !hosts_.empty(); }
  const std::string& host(int p) const { return hosts_[static_cast<size_t>(p)]; }
  bool can_heal() const { return mpi_.can_heal() != 0; }
  void heal() {
    fence();
    hosts_.clear();
    identities_.clear();
    std::array<char, kRoom> why{};
    if (mpi_.heal(&rank_, &size_, why.data(), kRoom) != 0)
      throw LostError(message("the processes that are left cannot go on: {}", why.data()));
  }
  bool leave() { return mpi_.leave() == 0; }
  void abandon(int code) { mpi_.abandon(code); }

 protected:
  int own_rank() const override { return rank_; }
  void bring(std::span<const std::span<const std::byte>> send,
             std::span<const std::span<std::byte>> receive) override {
    const auto processes = static_cast<size_t>(size_);  // those that stand by have nothing to do
    std::vector<const void*> from(processes);
    std::vector<void*> to(processes);
    std::vector<int64_t> from_bytes(processes), to_bytes(processes);
    for (size_t p = 0; p < send.size(); ++p) {
      from[p] = send[p].data();
      from_bytes[p] = static_cast<int64_t>(send[p].size());
      to[p] = receive[p].data();
      to_bytes[p] = static_cast<int64_t>(receive[p].size());
    }
    std::array<char, kRoom> why{};
    int lost = -1;
    if (mpi_.exchange(from.data(), from_bytes.data(), to.data(), to_bytes.data(), &lost, why.data(),
                      kRoom) == 0)
      return;
    if (lost < 0)
      throw LostError(message("the processes do not reach each other any more: {}", why.data()));
    lost_ = lost;
    throw LostError(message("process {} ({}) is lost: {}", lost,
                            hosts_.empty() ? "its machine is not known yet" : host(lost),
                            why.data()));
  }

 private:
  // One that was stopped on this machine would go on one day, with files that are others' by then;
  // and MPI would wait for it.
  void fence() {
    const int lost = std::exchange(lost_, -1);
    if (lost < 0 || hosts_.empty() || host(lost) != host_name()) return;
    end_process(identities_[static_cast<size_t>(lost)]);
  }

  static constexpr int kRoom = 512;
  const MoeMpi& mpi_;
  int rank_ = 0, size_ = 1;
  int lost_ = -1;                                // the last one that was
  std::vector<std::string> hosts_, identities_;  // [P] empty until all have met
};

World::World() : threads_(available_threads()) {
  const int processes = started_together();
  if (processes > 1) link_ = std::make_unique<MpiLink>(processes);
  if (link_) meet(link_->size());
}

void World::meet(int usable) {
  group_ = {link_->rank(), link_->size(), link_.get()};
  link_->learn_hosts(group_);
  const std::vector<std::string> cores = group_.gather(affinity());
  met_ = link_->size();
  was_first_ = link_->rank() == 0;
  spare_ = group_.rank >= usable;
  if (spare_) return;
  group_.size = usable;
  int beside = 0;  // on the same cores, this one included
  on_this_machine_ = 0;
  for (int p = 0; p < group_.size; ++p) {
    if (link_->host(p) != link_->host(group_.rank)) continue;
    ++on_this_machine_;
    beside += cores[static_cast<size_t>(p)] == cores[static_cast<size_t>(group_.rank)];
  }
  threads_ = std::max(1, available_threads() / beside);
  if (group_.size == 1) group_.link = nullptr;
}

bool World::can_heal() const { return link_ && link_->can_heal(); }

void World::heal(const std::function<int(int left)>& usable) {
  link_->heal();
  // Where a network falls apart both sides see the other one lost, and one alone may go on. They
  // are counted against those that last met, all or some of them: this is called again where
  // another one is lost in it.
  const int left = link_->size();
  const Group all{link_->rank(), left, link_.get()};
  const auto before = static_cast<int>(all.largest(met_));
  const bool has_first = all.any(was_first_);
  if (2 * left < before || (2 * left == before && !has_first))
    fail("{} of {} processes are left, and the others may be going on without them", left, before);
  meet(usable(left));
}

void World::wait_as_spare() {
  left_ = link_->leave();
  if (!left_) throw LostError("another process was lost");
}

bool World::is_first_of_launch() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(name)) return std::strcmp(rank, "0") == 0;
  return true;
}

World::~World() {
  if (link_ && !left_) link_->leave();
}

std::string World::name() const {
  if (!link_) return "";
  const std::string process = fmt::format("process {} of {}", group_.rank, group_.size);
  if (!link_->knows_hosts()) return process;  // processes were lost, and have not met again
  return fmt::format("{} ({})", process, link_->host(group_.rank));
}

void World::abandon(int code) {
  if (link_) link_->abandon(code);
  std::_Exit(code);
}

}  // namespace moe::comm
