#include "moe/exchange.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace moe {
namespace {

template <class T>
std::span<T> alloc_span(Arena& arena, size_t count) {
  return {static_cast<T*>(arena.alloc_bytes(count * sizeof(T))), count};
}

// Which rows go where: in the plan, and among those of the experts here.
class Ways {
 public:
  Ways(const RoutingPlan& plan, const comm::Group& group, std::span<const int64_t> came = {})
      : plan_(plan),
        group_(group),
        came_(came),
        experts_(static_cast<int64_t>(plan.offsets.size()) - 1),
        pieces_(exchange_pieces(experts_, group.size)) {}

  int pieces() const { return pieces_; }
  Span experts_of(int process) const { return partition(experts_, process, group_.size); }
  int64_t experts_here() const {
    const Span all = experts_of(group_.rank);
    return all.end - all.begin;
  }
  // Of those of a process, counted from its first.
  Span experts_of(int process, int piece) const {
    const Span all = experts_of(process);
    return partition(all.end - all.begin, piece, pieces_);
  }
  // Rows of the plan for a process: they are sorted by expert.
  Span sent(int process) const { return between(experts_of(process)); }
  Span sent(int process, int piece) const {
    const Span all = experts_of(process), some = experts_of(process, piece);
    return between({all.begin + some.begin, all.begin + some.end});
  }
  // Rows that come of a process, as they lie here.
  Span came(int process, int piece) const {
    const auto i = static_cast<size_t>(piece * group_.size + process);
    return {came_[i], came_[i + 1]};
  }
  // Those of all processes.
  Span came(int piece) const { return {came(0, piece).begin, came(group_.size - 1, piece).end}; }

 private:
  Span between(Span experts) const {
    return {plan_.offsets[static_cast<size_t>(experts.begin)],
            plan_.offsets[static_cast<size_t>(experts.end)]};
  }
  const RoutingPlan& plan_;
  const comm::Group& group_;
  std::span<const int64_t> came_;
  int64_t experts_;
  int pieces_;
};

// Things of `unit` bytes: those of sent that `to` says go to process p, those of received that
// `from` says come of it.
class Parcels {
 public:
  Parcels(void* received, const void* sent, int64_t unit)
      : received_(static_cast<std::byte*>(received)),
        sent_(static_cast<const std::byte*>(sent)),
        unit_(static_cast<size_t>(unit)) {}
  void add(Span from, Span to) {
    send.emplace_back(sent_ + at(to.begin), at(to.end) - at(to.begin));
    receive.emplace_back(received_ + at(from.begin), at(from.end) - at(from.begin));
  }
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;

 private:
  size_t at(int64_t i) const { return static_cast<size_t>(i) * unit_; }
  std::byte* received_;
  const std::byte* sent_;
  size_t unit_;
};

constexpr std::string_view kWhat = "rows on the way between tokens and experts";

void bring(const comm::Group& group, const Parcels& parcels) {
  comm::during([] { return std::string(kWhat); },
               [&] { group.link->exchange(parcels.send, parcels.receive); });
}

// How many rows come of each process for each expert here.  [P,E here]
std::vector<int64_t> tell_counts(const RoutingPlan& plan, const comm::Group& group,
                                 const Ways& ways) {
  const int64_t here = ways.experts_here();
  std::vector<int64_t> mine,
      counts(static_cast<size_t>(group.size * here));  // [E]; [P,E here]
  for (size_t e = 0; e + 1 < plan.offsets.size(); ++e)
    mine.push_back(plan.offsets[e + 1] - plan.offsets[e]);
  Parcels parcels(counts.data(), mine.data(), sizeof(int64_t));
  for (int p = 0; p < group.size; ++p) parcels.add({p * here, (p + 1) * here}, ways.experts_of(p));
  bring(group, parcels);
  return counts;
}

// Fills rows.came, rows.offsets and the list of rows.x: an expert's rows in the order of processes,
// and of a process in that of its plan.
void lay_out(Run& run, Rows& rows, const std::vector<int64_t>& counts, const Ways& ways) {
  const int processes = rows.group.size;
  const auto here = static_cast<size_t>(ways.experts_here());
  const auto count = [&](int p, int64_t e) {
    return counts[static_cast<size_t>(p) * here + static_cast<size_t>(e)];
  };
  const std::span came = alloc_span<int64_t>(run.saved,
                                             static_cast<size_t>(ways.pieces() * processes) + 1),
                  offsets = alloc_span<int64_t>(run.saved, here + 1);
  size_t i = 0;
  came[0] = offsets[0] = 0;
  for (int q = 0; q < ways.pieces(); ++q)
    for (int p = 0; p < processes; ++p, ++i) {
      const Span experts = ways.experts_of(rows.group.rank, q);
      came[i + 1] = came[i];
      for (int64_t e = experts.begin; e < experts.end; ++e) came[i + 1] += count(p, e);
    }
  const std::span place = alloc_span<int32_t>(run.saved, static_cast<size_t>(came.back()));
  std::vector<int64_t> next(came.begin(), came.end());
  size_t row = 0;
  for (int q = 0; q < ways.pieces(); ++q) {
    const Span experts = ways.experts_of(rows.group.rank, q);
    for (int64_t e = experts.begin; e < experts.end; ++e) {
      for (int p = 0; p < processes; ++p) {
        int64_t& from = next[static_cast<size_t>(q * processes + p)];
        for (int64_t n = count(p, e); n > 0; --n) place[row++] = static_cast<int32_t>(from++);
      }
      offsets[static_cast<size_t>(e) + 1] = static_cast<int64_t>(row);
    }
  }
  rows.came = came;
  rows.offsets = offsets;
  rows.x.row = place;
}

// The rows of a plan, which all processes have, that are of the experts here.
Rows own_rows(Run& run, Tensor x, const RoutingPlan& plan, const comm::Group& group) {
  const Ways ways(plan, group);
  const Span experts = ways.experts_of(group.rank), own = ways.sent(group.rank);
  const auto begin = static_cast<size_t>(own.begin), count = static_cast<size_t>(own.end) - begin;
  const std::span offsets =
      alloc_span<int64_t>(run.saved, static_cast<size_t>(ways.experts_here()) + 1);
  for (size_t e = 0; e < offsets.size(); ++e)
    offsets[e] = plan.offsets[static_cast<size_t>(experts.begin) + e] - own.begin;
  Rows rows;
  rows.x = {x, plan.token.subspan(begin, count)};
  rows.weight = Tensor(plan.weight.as<float>() + begin, DType::f32, {own.end - own.begin});
  rows.offsets = offsets;
  rows.group = group;
  rows.same_everywhere = true;
  return rows;
}

// Everybody's rows of the plan, x [R here,D] being those of the experts here.
Tensor gather_rows(Run& run, Tensor x, const RoutingPlan& plan, const comm::Group& group) {
  Tensor all = run.scratch.alloc(x.dtype, {plan.rows(), x.cols()});
  const Ways ways(plan, group);
  Parcels parcels(all.data, x.data, all.row_bytes);
  for (int p = 0; p < group.size; ++p) parcels.add(ways.sent(p), {0, x.rows()});
  bring(group, parcels);
  return all;
}

// Rows of x, which are in the order of `rows`, to where they came to lie.
void put_back(Tensor out, Tensor x, std::span<const int32_t> row, Span part) {
  for (int64_t r = part.begin; r < part.end; ++r)
    std::memcpy(static_cast<char*>(out.data) + row[static_cast<size_t>(r)] * out.row_bytes,
                static_cast<const char*>(x.data) + r * x.row_bytes,
                static_cast<size_t>(out.row_bytes));
}

// The q-th piece of what came to `there`.
Piece piece_of(Arena& arena, const Rows& rows, Tensor there, const Ways& ways, int q) {
  const Span part = ways.came(q);
  const auto begin = static_cast<size_t>(part.begin),
             count = static_cast<size_t>(part.end - part.begin);
  const std::span offsets = alloc_span<int64_t>(arena, rows.offsets.size());
  for (size_t e = 0; e < offsets.size(); ++e)
    offsets[e] = std::clamp(rows.offsets[e], part.begin, part.end) - part.begin;
  Piece piece{rows, {there, rows.x.row.subspan(begin, count)}, part};
  piece.rows.x.row = piece.x.row;
  piece.rows.weight = Tensor(rows.weight.as<float>() + begin, DType::f32, {part.end - part.begin});
  piece.rows.offsets = offsets;
  return piece;
}

// Numbers of rows travel at once: by process, whose pieces lie one behind the other.
class Numbers {
 public:
  Numbers(const Ways& ways, int processes, size_t rows) : all_(rows) {
    int64_t at = 0;
    for (int p = 0; p < processes; ++p) {
      const int64_t first = at;
      for (int q = 0; q < ways.pieces(); ++q) {
        const Span came = ways.came(p, q);
        moves_.push_back({came, at});
        at += came.end - came.begin;
      }
      of_.push_back({first, at});
    }
  }
  float* data() { return all_.data(); }
  Span of(int process) const { return of_[static_cast<size_t>(process)]; }
  // `x`: as rows lie that came.
  void take(std::span<const float> x) {
    for (const auto& [came, at] : moves_)
      std::copy(x.begin() + came.begin, x.begin() + came.end, all_.begin() + at);
  }
  void give(std::span<float> x) const {
    for (const auto& [came, at] : moves_)
      std::copy_n(all_.begin() + at, came.end - came.begin, x.begin() + came.begin);
  }

 private:
  struct Move {
    Span came;
    int64_t at;
  };
  std::vector<float> all_;
  std::vector<Move> moves_;
  std::vector<Span> of_;
};

// The way there and the way back, piece by piece. A process waits for what it works on and, in the
// end, for what comes back; not for the others to be done with the piece that it is done with,
// whose experts may have other numbers of rows.
void travel(Run& run, Tensor returned, Tensor made, Tensor there, Tensor x, const RoutingPlan& plan,
            const Rows& rows, const Meanwhile& meanwhile, const AtExperts& work) {
  ArenaScope scope(run.scratch);
  const comm::Group& group = rows.group;
  const Ways ways(plan, group, rows.came);
  const auto pieces = static_cast<size_t>(ways.pieces());
  Tensor outgoing = run.scratch.alloc(x.dtype, {plan.rows(), x.cols()}),
         leaving = run.scratch.alloc(made.dtype, {made.rows(), made.cols()});
  ops::gather_rows(run, outgoing, x, plan.token);
  std::vector<Parcels> forth, back;
  for (int q = 0; q < ways.pieces(); ++q) {
    forth.emplace_back(there.data, outgoing.data, outgoing.row_bytes);
    back.emplace_back(returned.data, leaving.data, leaving.row_bytes);
    for (int p = 0; p < group.size; ++p) {
      forth.back().add(ways.came(p, q), ways.sent(p, q));
      back.back().add(ways.sent(p, q), ways.came(p, q));
    }
  }
  std::vector<std::function<void()>> exchanges;
  for (const std::vector<Parcels>* all : {&forth, &back})
    for (const Parcels& parcels : *all)
      exchanges.emplace_back([&] { group.link->exchange(parcels.send, parcels.receive); });
  comm::Behind behind(*group.link, exchanges, pieces);
  const auto wait_for = [&](size_t count) {
    comm::during([] { return std::string(kWhat); }, [&] { behind.wait_for(count); });
  };
  if (meanwhile) meanwhile();
  for (size_t q = 0; q < pieces; ++q) {
    wait_for(q + 1);
    ArenaScope within(run.scratch);
    const Piece piece = piece_of(run.scratch, rows, there, ways, static_cast<int>(q));
    if (piece.part.begin < piece.part.end) work(piece);
    put_back(leaving, made, rows.x.row, piece.part);
    behind.allow(pieces + q + 1);
  }
  wait_for(2 * pieces);
}

}  // namespace

int exchange_pieces(int64_t experts, int processes) {
  // More of them hide more of the way and make smaller products.
  constexpr int64_t kMost = 4;
  return static_cast<int>(std::clamp<int64_t>(experts / processes, 1, kMost));
}

Rows dispatch(Run& run, Tensor x, const RoutingPlan& plan, const comm::Group& group,
              bool same_everywhere) {
  if (group.size == 1) return dispatch(x, plan);
  if (same_everywhere) return own_rows(run, x, plan, group);
  Rows rows;
  rows.group = group;
  const Ways unseen(plan, group);
  lay_out(run, rows, tell_counts(plan, group, unseen), unseen);
  const Ways ways(plan, group, rows.came);
  const int64_t count = rows.came.back();
  rows.x.x = run.saved.alloc(x.dtype, {count, x.cols()});
  rows.weight = run.saved.alloc(DType::f32, {count});
  Numbers numbers(ways, group.size, rows.x.row.size());
  Parcels parcels(numbers.data(), plan.weight.data, sizeof(float));
  for (int p = 0; p < group.size; ++p) parcels.add(numbers.of(p), ways.sent(p));
  bring(group, parcels);
  std::vector<float> came(rows.x.row.size());
  numbers.give(came);
  for (size_t r = 0; r < came.size(); ++r)
    rows.weight.as<float>()[r] = came[static_cast<size_t>(rows.x.row[r])];
  return rows;
}

Tensor visit_experts(Run& run, Tensor made, Tensor there, Tensor x, const RoutingPlan& plan,
                     const Rows& rows, const Meanwhile& meanwhile, const AtExperts& work) {
  if (rows.came.empty()) {
    if (meanwhile) meanwhile();
    work({rows, {x, rows.x.row}, {0, made.rows()}});
    return rows.same_everywhere ? gather_rows(run, made, plan, rows.group) : made;
  }
  Tensor returned = run.scratch.alloc(made.dtype, {plan.rows(), made.cols()});
  if (there.empty()) there = run.scratch.alloc(x.dtype, {made.rows(), x.cols()});
  travel(run, returned, made, there, x, plan, rows, meanwhile, work);
  return returned;
}

Tensor return_rows(Run& run, Tensor x, const RoutingPlan& plan, const Rows& rows) {
  if (rows.came.empty() || x.empty()) return x;
  const Ways ways(plan, rows.group, rows.came);
  Tensor returned = run.scratch.alloc(DType::f32, {plan.rows()});
  std::vector<float> leaving(rows.x.row.size());
  for (size_t r = 0; r < leaving.size(); ++r)
    leaving[static_cast<size_t>(rows.x.row[r])] = x.as<float>()[r];
  Numbers numbers(ways, rows.group.size, leaving.size());
  numbers.take(leaving);
  Parcels parcels(returned.data, numbers.data(), sizeof(float));
  for (int p = 0; p < rows.group.size; ++p) parcels.add(ways.sent(p), numbers.of(p));
  bring(rows.group, parcels);
  return returned;
}

}  // namespace moe
