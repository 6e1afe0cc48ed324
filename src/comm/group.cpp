// Sums are made of two exchanges: every process adds up a share of the numbers, then gives it to
// all. Each number crosses the wire twice whatever the number of processes is, and the order of
// additions hangs on ranks alone, not on who answers first.
#include "comm/group.h"

#include <algorithm>
#include <vector>

#include "core/threads.h"

namespace moe::comm {
namespace {

// Numbers that are summed at once: what bounds the memory beside x.
constexpr size_t kPiece = size_t{1} << 20;

// `parts` is scratch.
template <class T>
void sum_piece(const Group& group, std::span<T> x, std::vector<T>& parts) {
  const auto share = [&](int p) {
    const Span s = partition(static_cast<int64_t>(x.size()), p, group.size);
    return x.subspan(static_cast<size_t>(s.begin), static_cast<size_t>(s.end - s.begin));
  };
  const size_t own = share(group.rank).size();
  parts.resize(own * static_cast<size_t>(group.size));  // [P,own]
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (int p = 0; p < group.size; ++p) {
    send.push_back(std::as_bytes(share(p)));
    receive.push_back(
        std::as_writable_bytes(std::span(parts).subspan(static_cast<size_t>(p) * own, own)));
  }
  group.link->exchange(send, receive);

  const std::span<T> total = std::span(parts).first(own);
  for (size_t first = own; first < parts.size(); first += own)
    for (size_t i = 0; i < own; ++i) total[i] += parts[first + i];
  for (int p = 0; p < group.size; ++p) {
    send[static_cast<size_t>(p)] = std::as_bytes(total);
    receive[static_cast<size_t>(p)] = std::as_writable_bytes(share(p));
  }
  group.link->exchange(send, receive);
}

template <class T>
void sum_all(const Group& group, std::span<T> x) {
  if (group.size == 1) return;
  std::vector<T> parts;
  for (; !x.empty(); x = x.subspan(std::min(x.size(), kPiece)))
    sum_piece(group, x.first(std::min(x.size(), kPiece)), parts);
}

}  // namespace

void Group::sum(std::span<double> x) const { sum_all(*this, x); }
void Group::sum(std::span<float> x) const { sum_all(*this, x); }
void Group::sum(std::span<int64_t> x) const { sum_all(*this, x); }

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

}  // namespace moe::comm
