// Sums are made of two exchanges: every process adds up a share of the numbers, then gives it to
// all. Each number crosses the wire twice whatever the number of processes is, and the order of
// additions hangs on ranks alone, not on who answers first.
#include "comm/group.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <new>

#include "core/clock.h"
#include "core/nearest.h"
#include "core/threads.h"

namespace moe::comm {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Brings what the members of a part have for each other by the link of the whole.
class PartLink final : public Link {
 public:
  PartLink(const Group& whole, std::vector<int> members)
      : whole_(whole),
        own_(static_cast<int>(std::find(members.begin(), members.end(), whole.rank) -
                              members.begin())),
        members_(std::move(members)) {}

 protected:
  // in the part: who it is there
  int own_rank() const override { return own_; }
  void bring(std::span<const std::span<const std::byte>> send,
             std::span<const std::span<std::byte>> receive) override {
    const auto size = static_cast<size_t>(whole_.size);
    std::vector<std::span<const std::byte>> all_send(size);
    std::vector<std::span<std::byte>> all_receive(size);
    for (size_t i = 0; i < members_.size(); ++i) {
      all_send[static_cast<size_t>(members_[i])] = send[i];
      all_receive[static_cast<size_t>(members_[i])] = receive[i];
    }
    whole_.link->exchange(all_send, all_receive);
  }
  void hide(double seconds) override {
    Link::hide(seconds);
    whole_.link->hide(seconds);
  }

 private:
  Group whole_;
  int own_;
  std::vector<int> members_;  // ranks in the whole
};

// Numbers that are summed at once: what bounds the memory beside x.
constexpr size_t kPiece = size_t{1} << 20;

template <class T>
std::span<T> share_of(std::span<T> x, int p, int size) {
  const Span s = partition(static_cast<int64_t>(x.size()), p, size);
  return x.subspan(static_cast<size_t>(s.begin), static_cast<size_t>(s.end - s.begin));
}

template <class T>
void sum_all_shares(const Group& group, std::span<T> x) {
  const auto size = static_cast<size_t>(group.size);
  const size_t most = kPiece / size + 1;  // of a share at once
  const std::span<T> own = share_of(x, group.rank, group.size);
  std::vector<T> parts;
  for (size_t at = 0; at * size < x.size() + size; at += most) {
    const auto piece = [&](std::span<T> share) {
      const size_t begin = std::min(at, share.size());
      return share.subspan(begin, std::min(most, share.size() - begin));
    };
    const std::span<T> total = piece(own);
    parts.resize(total.size() * size);  // [P, of the share]
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    for (size_t p = 0; p < size; ++p) {
      send.push_back(std::as_bytes(piece(share_of(x, static_cast<int>(p), group.size))));
      receive.push_back(
          std::as_writable_bytes(std::span(parts).subspan(p * total.size(), total.size())));
    }
    group.link->exchange(send, receive);
    std::copy_n(parts.begin(), total.size(), total.begin());
    for (size_t first = total.size(); first < parts.size(); first += total.size())
      for (size_t i = 0; i < total.size(); ++i) total[i] += parts[first + i];
  }
}

template <class T>
void gather_all_shares(const Group& group, std::span<T> x) {
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (int p = 0; p < group.size; ++p) {
    const bool is_own = p == group.rank;  // is there already
    send.push_back(is_own ? std::span<const std::byte>()
                          : std::as_bytes(share_of(x, group.rank, group.size)));
    receive.push_back(is_own ? std::span<std::byte>()
                             : std::as_writable_bytes(share_of(x, p, group.size)));
  }
  group.link->exchange(send, receive);
}

template <class T>
void sum_all(const Group& group, std::span<T> x) {
  if (group.size == 1) return;
  sum_all_shares(group, x);
  gather_all_shares(group, x);
}

}  // namespace

void Link::exchange(std::span<const std::span<const std::byte>> send,
                    std::span<const std::span<std::byte>> receive) {
  const auto start = Clock::now();
  bring(send, receive);
  traffic_.seconds += seconds_since(start);
  for (size_t p = 0; p < send.size(); ++p)
    if (p != static_cast<size_t>(own_rank())) traffic_.sent += static_cast<int64_t>(send[p].size());
}

Behind::Behind(Link& link, std::span<const std::function<void()>> exchanges, size_t allowed)
    : link_(link), exchanges_(exchanges), allowed_(allowed), thread_([this] { run(); }) {}

Behind::~Behind() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
  link_.hide(std::max(0.0, took_ - waited_));
}

void Behind::run() {
  for (size_t i = 0; i < exchanges_.size(); ++i) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopped_ || i < allowed_; });
      if (stopped_) return;
    }
    const double before = link_.traffic().seconds;
    std::exception_ptr failure;
    try {
      exchanges_[i]();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    took_ += link_.traffic().seconds - before;
    over_ = i + 1;
    failure_ = failure;
    changed_.notify_all();
    if (failure) return;
  }
}

void Behind::allow(size_t count) {
  const std::lock_guard lock(mutex_);
  allowed_ = count;
  changed_.notify_all();
}

void Behind::wait_for(size_t count) {
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return over_ >= count || failure_; });
  waited_ += seconds_since(start);
  if (failure_) std::rethrow_exception(failure_);
}

void Group::sum(std::span<double> x) const { sum_all(*this, x); }
void Group::sum(std::span<float> x) const { sum_all(*this, x); }
void Group::sum(std::span<int64_t> x) const { sum_all(*this, x); }

void Group::sum_shares(std::span<float> x) const {
  if (size > 1) sum_all_shares(*this, x);
}
void Group::gather_shares(std::span<float> x) const {
  if (size > 1) gather_all_shares(*this, x);
}

bool Group::any(bool x) const {
  int64_t yes = x ? 1 : 0;
  sum(std::span(&yes, 1));
  return yes > 0;
}

double Group::largest(double x) const {
  std::vector<double> all(static_cast<size_t>(size));
  all[static_cast<size_t>(rank)] = x;
  sum(all);
  return *std::max_element(all.begin(), all.end());
}

double Group::of_first(double x) const {
  double value = is_first() ? x : 0;
  sum(std::span(&value, 1));
  return value;
}

std::vector<std::string> Group::gather(const std::string& mine) const {
  if (size == 1) return {mine};
  std::vector<std::string> all(static_cast<size_t>(size));
  std::vector<int64_t> lengths(all.size());
  lengths[static_cast<size_t>(rank)] = static_cast<int64_t>(mine.size());
  sum(lengths);
  std::vector<std::span<const std::byte>> send(all.size(), bytes_of(mine));
  std::vector<std::span<std::byte>> receive;
  for (size_t p = 0; p < all.size(); ++p) {
    all[p].resize(static_cast<size_t>(lengths[p]));
    receive.push_back(std::as_writable_bytes(std::span<char>(all[p])));
  }
  link->exchange(send, receive);
  return all;
}

Part::Part(const Group& whole, std::vector<int> members) {
  const auto own = std::find(members.begin(), members.end(), whole.rank);
  if (members.size() <= 1) return;
  group_.rank = static_cast<int>(own - members.begin());
  group_.size = static_cast<int>(members.size());
  link_ = std::make_unique<PartLink>(whole, std::move(members));
  group_.link = link_.get();
}

void during(const std::function<std::string()>& what, const std::function<void()>& exchange) {
  try {
    exchange();
  } catch (const LostError& e) {
    throw LostError(message("{}: {}", what(), e.marked()));
  }
}

void together(const Group& group, const std::function<void()>& work) {
  if (group.size == 1) return work();
  // The kind and the words; empty: none.
  std::string failure;
  const auto note = [&](Error::Kind kind, const std::string& text) {
    failure = (kind == Error::Kind::usage ? "u" : "f") + text;
  };
  try {
    work();
  } catch (const SharedError&) {
    throw;
  } catch (const Error& e) {
    note(e.kind(), e.marked());
  } catch (const std::bad_alloc&) {
    note(Error::Kind::failed, "out of memory");
  } catch (const std::exception& e) {
    note(Error::Kind::failed, e.what());
  }
  const std::vector<std::string> failures = group.gather(failure);
  const bool alike =
      std::adjacent_find(failures.begin(), failures.end(), std::not_equal_to<>()) == failures.end();
  for (size_t p = 0; p < failures.size(); ++p) {
    if (failures[p].empty()) continue;
    const Error::Kind kind = failures[p][0] == 'u' ? Error::Kind::usage : Error::Kind::failed;
    const std::string text = failures[p].substr(1);
    throw SharedError(alike ? text : fmt::format("process {} of {}: {}", p, group.size, text),
                      kind);
  }
}

void alike(const Group& group, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    if (group.size == 1) throw;
    throw SharedError(e.marked(), e.kind());
  }
}

void check_same(const Group& group, const Facts& facts) {
  if (group.size == 1) return;
  std::vector<std::vector<std::string>> values;  // by fact, then process
  for (const auto& [name, value] : facts) values.push_back(group.gather(value));
  alike(group, [&] {
    for (size_t i = 0; i < facts.size(); ++i)
      for (size_t p = 1; p < values[i].size(); ++p)
        if (values[i][p] != values[i][0])
          fail_usage(
              "process {} has another {} than process 0: {} there, {} here; give all of them the "
              "same command, the same program and the same files",
              p, facts[i].first, printable(values[i][p], 200), printable(values[i][0], 200));
  });
}

void need_one_process(const Group& group, DeviceKind device) {
  if (group.size > 1 && device != DeviceKind::cpu)
    fail_usage("@device cuda works in one process; start it without mpirun, or leave @device out");
}

}  // namespace moe::comm
