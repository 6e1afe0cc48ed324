#include "moe/plan.h"

#include <cstring>
#include <vector>

#include "core/threads.h"

namespace moe {
namespace {

// Things of `unit` bytes: sent[to[p]] to sent[to[p+1]] go to process p, received[from[p]] to
// received[from[p+1]] come of it.
void exchange(const comm::Group& group, void* received, std::span<const int64_t> from,
              const void* sent, std::span<const int64_t> to, int64_t unit,
              const Meanwhile& meanwhile = {}) {
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (size_t p = 0; p + 1 < to.size(); ++p) {
    send.emplace_back(static_cast<const std::byte*>(sent) + to[p] * unit,
                      static_cast<size_t>((to[p + 1] - to[p]) * unit));
    receive.emplace_back(static_cast<std::byte*>(received) + from[p] * unit,
                         static_cast<size_t>((from[p + 1] - from[p]) * unit));
  }
  comm::during([] { return "rows on the way between tokens and experts"; },
               [&] {
                 if (!meanwhile) return group.link->exchange(send, receive);
                 comm::Behind behind(*group.link, std::move(send), std::move(receive));
                 meanwhile();
                 behind.finish();
               });
}

// [P+1] the experts of process p are [out[p], out[p+1]).
std::vector<int64_t> expert_bounds(const RoutingPlan& plan, const comm::Group& group) {
  std::vector<int64_t> out = {0};
  for (int p = 0; p < group.size; ++p)
    out.push_back(partition(static_cast<int64_t>(plan.offsets.size()) - 1, p, group.size).end);
  return out;
}

// [P+1] the plan's rows for process p are [out[p], out[p+1]): they are sorted by expert.
std::vector<int64_t> row_bounds(const RoutingPlan& plan, const comm::Group& group) {
  std::vector<int64_t> out = expert_bounds(plan, group);
  for (int64_t& bound : out) bound = plan.offsets[static_cast<size_t>(bound)];
  return out;
}

template <class T>
std::span<T> alloc_span(Arena& arena, size_t count) {
  return {static_cast<T*>(arena.alloc_bytes(count * sizeof(T))), count};
}

// Fills rows.came, rows.offsets and the list of rows.x: an expert's rows in the order of processes,
// and of a process in that of its plan.
void tell_counts(Run& run, Rows& rows, const RoutingPlan& plan) {
  const comm::Group& group = rows.group;
  const std::vector<int64_t> to = expert_bounds(plan, group);
  const auto rank = static_cast<size_t>(group.rank), processes = static_cast<size_t>(group.size),
             here = static_cast<size_t>(to[rank + 1] - to[rank]);
  std::vector<int64_t> mine, from = {0}, counts(processes * here);  // [E]; [P+1]; [P,E here]
  for (size_t e = 0; e + 1 < plan.offsets.size(); ++e)
    mine.push_back(plan.offsets[e + 1] - plan.offsets[e]);
  for (size_t p = 0; p < processes; ++p) from.push_back(from.back() + static_cast<int64_t>(here));
  exchange(group, counts.data(), from, mine.data(), to, sizeof(int64_t));

  const std::span came = alloc_span<int64_t>(run.saved, processes + 1),
                  offsets = alloc_span<int64_t>(run.saved, here + 1);
  came[0] = offsets[0] = 0;
  for (size_t p = 0; p < processes; ++p) {
    came[p + 1] = came[p];
    for (size_t e = 0; e < here; ++e) came[p + 1] += counts[p * here + e];
  }
  const std::span place = alloc_span<int32_t>(run.saved, static_cast<size_t>(came[processes]));
  std::vector<int64_t> next(came.begin(), came.end());
  size_t row = 0;
  for (size_t e = 0; e < here; ++e) {
    for (size_t p = 0; p < processes; ++p)
      for (int64_t i = 0; i < counts[p * here + e]; ++i)
        place[row++] = static_cast<int32_t>(next[p]++);
    offsets[e + 1] = static_cast<int64_t>(row);
  }
  rows.came = came;
  rows.offsets = offsets;
  rows.x.row = place;
}

// What comes of all processes where each sends its tokens' x, as it comes, in `arena`.
Tensor send_tokens(Run& run, Arena& arena, Tensor x, const RoutingPlan& plan, const Rows& rows,
                   const Meanwhile& meanwhile) {
  Tensor received = arena.alloc(x.dtype, {rows.came.back(), x.cols()});
  ArenaScope scope(run.scratch);
  Tensor sent = run.scratch.alloc(x.dtype, {plan.rows(), x.cols()});
  ops::gather_rows(run, sent, x, plan.token);
  exchange(rows.group, received.data, rows.came, sent.data, row_bounds(plan, rows.group),
           sent.row_bytes, meanwhile);
  return received;
}

// The rows of a plan, which all processes have, that are of the experts here.
Rows own_rows(Run& run, Tensor x, const RoutingPlan& plan, const comm::Group& group) {
  const std::vector<int64_t> experts = expert_bounds(plan, group);
  const auto rank = static_cast<size_t>(group.rank);
  const auto first = static_cast<size_t>(experts[rank]),
             last = static_cast<size_t>(experts[rank + 1]);
  const int64_t begin = plan.offsets[first], count = plan.offsets[last] - begin;
  const std::span offsets = alloc_span<int64_t>(run.saved, last - first + 1);
  for (size_t e = first; e <= last; ++e) offsets[e - first] = plan.offsets[e] - begin;
  Rows rows;
  rows.x = {x, plan.token.subspan(static_cast<size_t>(begin), static_cast<size_t>(count))};
  rows.weight = Tensor(plan.weight.as<float>() + begin, DType::f32, {count});
  rows.offsets = offsets;
  rows.group = group;
  rows.same_everywhere = true;
  return rows;
}

// Everybody's rows of the plan, x [R here,D] being those of the experts here.
Tensor gather_rows(Run& run, Tensor x, const RoutingPlan& plan, const comm::Group& group) {
  Tensor all = run.scratch.alloc(x.dtype, {plan.rows(), x.cols()});
  const std::vector<int64_t> bounds = row_bounds(plan, group);
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (size_t p = 0; p + 1 < bounds.size(); ++p) {
    send.emplace_back(static_cast<const std::byte*>(x.data), static_cast<size_t>(x.bytes()));
    receive.emplace_back(static_cast<std::byte*>(all.data) + bounds[p] * all.row_bytes,
                         static_cast<size_t>((bounds[p + 1] - bounds[p]) * all.row_bytes));
  }
  comm::during([] { return "rows on the way between experts and tokens"; },
               [&] { group.link->exchange(send, receive); });
  return all;
}

}  // namespace

Rows whole(Arena& arena, Tensor x, Tensor weight) {
  const std::span offsets = alloc_span<int64_t>(arena, 2);
  offsets[0] = 0;
  offsets[1] = x.rows();
  return {x, weight, offsets};
}

Rows dispatch(Run& run, Tensor x, const RoutingPlan& plan, const comm::Group& group,
              bool same_everywhere, const Meanwhile& meanwhile) {
  if (group.size == 1 || same_everywhere) {
    if (meanwhile) meanwhile();
    if (same_everywhere && group.size > 1) return own_rows(run, x, plan, group);
    return {{x, plan.token}, plan.weight, plan.offsets};
  }
  Rows rows;
  rows.group = group;
  tell_counts(run, rows, plan);
  rows.x.x = send_tokens(run, run.saved, x, plan, rows, meanwhile);
  rows.weight = run.saved.alloc(DType::f32, {rows.x.rows()});
  ArenaScope scope(run.scratch);
  const std::span received = alloc_span<float>(run.scratch, rows.x.row.size());
  exchange(group, received.data(), rows.came, plan.weight.data, row_bounds(plan, group),
           sizeof(float));
  for (size_t r = 0; r < received.size(); ++r)
    rows.weight.as<float>()[r] = received[static_cast<size_t>(rows.x.row[r])];
  return rows;
}

ops::GatheredRows dispatch(Run& run, Tensor x, const RoutingPlan& plan, const Rows& rows,
                           const Meanwhile& meanwhile) {
  if (rows.group.size > 1)
    return {send_tokens(run, run.scratch, x, plan, rows, meanwhile), rows.x.row};
  if (meanwhile) meanwhile();
  return {x, plan.token};
}

Tensor return_rows(Run& run, Tensor x, const RoutingPlan& plan, const Rows& rows) {
  if (rows.group.size == 1 || x.empty()) return x;
  if (rows.same_everywhere) return gather_rows(run, x, plan, rows.group);
  if (x.rank == 1)
    return return_rows(run, x.reshape({x.numel(), 1}), plan, rows).reshape({plan.rows()});
  Tensor received = run.scratch.alloc(x.dtype, {plan.rows(), x.cols()});
  ArenaScope scope(run.scratch);
  Tensor sent = run.scratch.alloc(x.dtype, {x.rows(), x.cols()});
  for (int64_t r = 0; r < x.rows(); ++r)
    std::memcpy(static_cast<char*>(sent.data) + rows.x.row[static_cast<size_t>(r)] * sent.row_bytes,
                static_cast<const char*>(x.data) + r * x.row_bytes,
                static_cast<size_t>(sent.row_bytes));
  exchange(rows.group, received.data, row_bounds(plan, rows.group), sent.data, rows.came,
           sent.row_bytes);
  return received;
}

void combine(Run& run, Tensor y, Tensor x, const RoutingPlan& plan, const Rows& rows) {
  ArenaScope scope(run.scratch);
  ops::sum_rows(run, y, return_rows(run, x, plan, rows), plan.bounds, plan.row);
}

void combine_acc(Run& run, Tensor y, Tensor x, const RoutingPlan& plan, const Rows& rows) {
  ArenaScope scope(run.scratch);
  ops::sum_rows_acc(run, y, return_rows(run, x, plan, rows), plan.bounds, plan.row);
}

}  // namespace moe
