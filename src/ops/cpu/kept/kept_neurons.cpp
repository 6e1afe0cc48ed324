// A feed-forward network of which each token has some neurons: each is three rows of weights, which
// come from memory once, gate, up and down of a group of neurons right after each other. The list
// says what comes, so that rows are fetched long before they are needed. Tokens that are computed
// together are led through the neurons side by side and share what they have read.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kept/kept_neurons.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/threads.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/kept/kept_copy.h"
#include "ops/cpu/kept/kept_rows-inl.h"
#include "ops/cpu/kept/kept_task.h"
#include "ops/cpu/rowwise/activation-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"
#include "tensor/quant.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// A matrix, and what multiplies its rows.
struct KeptReader {
  KeptReader(const KeptMatrix& matrix, int64_t width)
      : m(matrix), bytes(bytes_of(matrix.dtype, width)), kernels(KernelsOf(matrix.dtype)) {
    decodes = kernels == nullptr;
    if (decodes) kernels = KernelsOf(DType::f32);
  }
  bool present() const { return m.rows != nullptr; }
  const char* row(int32_t i) const { return m.rows + i * m.stride; }
  void Fetch(int32_t i) const {
    for (int64_t at = 0; at < bytes; at += kKeptLine) __builtin_prefetch(row(i) + at, 0, 3);
  }
  // Rows list[0..count), while those `ahead` places later are fetched, up to list[left].
  KeptRows Rows(const int32_t* list, int count, int64_t ahead, int64_t left, float* decoded,
                int64_t width) const {
    KeptRows rows;
    for (int r = 0; r < count; ++r) {
      rows.row[r] = row(list[r]);
      rows.next[r] = ahead + r < left ? row(list[ahead + r]) : rows.row[r];
      if (!decodes) continue;
      if (ahead + r < left) Fetch(list[ahead + r]);
      dequantise(decoded + r * width, rows.row[r], m.dtype, width);
      rows.row[r] = rows.next[r] = reinterpret_cast<const char*>(decoded + r * width);
    }
    return rows;
  }

  KeptMatrix m;
  int64_t bytes;  // of a row
  const KeptKernels* kernels;
  bool decodes;
};

// hidden = act(gate) beside(up), or act(up) without a gate.  all [count], and room for whole
// vectors
void ActGroup(float* hidden, const float* gate, const float* up, int count, Act act) {
  const DF32 d;
  WithAct(act, [&](auto of_act) HWY_ATTR {
    constexpr Act kAct = decltype(of_act)::value;
    for (int i = 0; i < count; i += static_cast<int>(hn::Lanes(d))) {
      const VF32 u = hn::LoadU(d, up + i);
      const VF32 h = gate == nullptr ? Activate<kAct>(d, u, nullptr)
                                     : hn::Mul(Activate<kAct>(d, hn::LoadU(d, gate + i), nullptr),
                                               Beside<kAct>(d, u, nullptr));
      hn::StoreU(h, d, hidden + i);
    }
  });
}

// Leads all tokens through some stretches of their lists.
class KeptWalk {
 public:
  KeptWalk(const KeptTask& task, const KeptPart& part)
      : t_(task),
        p_(part),
        gate_(task.gate, task.width),
        up_(task.up, task.width),
        down_(task.down, task.width),
        end_(task.edge(part.end)) {}

  void Run() {
    const int64_t begin = t_.edge(p_.begin);
    for (int64_t n = 0; n < t_.tokens; ++n) {
      tokens_[n] = {begin, p_.begin, 0};
      for (int64_t i = begin; i < begin + t_.ahead && i < end_; ++i)
        for (const KeptReader* reader : {&gate_, &up_, &down_})
          if (reader->present()) reader->Fetch(ListOf(n)[i]);
    }
    if (t_.tokens == 1) return Advance(0, kNoLimit);
    const int64_t bytes = gate_.bytes * gate_.present() + up_.bytes + down_.bytes;
    const int64_t some = kBlockBytes / bytes, block = some < kKeptRows ? kKeptRows : some;
    for (int64_t limit = 0; limit < kNoLimit;) {
      int64_t first = kNoLimit;
      for (int64_t n = 0; n < t_.tokens; ++n)
        if (tokens_[n].at < end_ && ListOf(n)[tokens_[n].at] < first)
          first = ListOf(n)[tokens_[n].at];
      limit = first < kNoLimit ? first + block : kNoLimit;
      for (int64_t n = 0; n < t_.tokens; ++n) Advance(n, limit);
    }
  }

 private:
  static constexpr int64_t kNoLimit = int64_t{1} << 40;
  // Neurons that tokens share at a time stay in the second-level cache.
  static constexpr int64_t kBlockBytes = int64_t{128} << 10;

  struct Token {
    int64_t at, stretch, depth;  // in its list; which stretch; nodes that it has added up
  };

  const int32_t* ListOf(int64_t n) const { return t_.list + n * t_.list_stride; }
  float* SumOf(int64_t n, int64_t depth) const {
    return p_.sums + (depth * t_.tokens + n) * t_.width;
  }

  // Token n through its neurons below `limit`.
  void Advance(int64_t n, int64_t limit) {
    Token& token = tokens_[n];
    const int32_t* list = ListOf(n);
    while (token.at < end_ && list[token.at] < limit) {
      const int64_t edge = t_.edge(token.stretch + 1);
      int count = 1;
      while (count < kKeptGroup && token.at + count < edge && list[token.at + count] < limit)
        ++count;
      float* y = SumOf(n, token.depth);
      if (token.at == t_.edge(token.stretch))
        std::memset(y, 0, static_cast<size_t>(t_.width) * sizeof(float));
      Group(y, t_.x + n * t_.x_stride, list + token.at, count, end_ - token.at);
      token.at += count;
      if (token.at == edge) Join(n);
    }
  }

  // y += what `count` neurons give; `left` of the list belong to this walk.
  void Group(float* y, const float* x, const int32_t* list, int count, int64_t left) const {
    constexpr size_t kRoom = kKeptGroup + hn::MaxLanes(DF32());
    float gates[kRoom] = {}, ups[kRoom] = {}, hidden[kRoom];
    const auto by_rows = [&](auto&& f) {
      for (int i = 0; i < count; i += kKeptRows)
        f(i, count - i < kKeptRows ? count - i : kKeptRows);
    };
    by_rows([&](int i, int rows) {
      if (gate_.present()) Dot(gate_, gates + i, x, list + i, rows, left - i);
      Dot(up_, ups + i, x, list + i, rows, left - i);
    });
    ActGroup(hidden, gate_.present() ? gates : nullptr, ups, count, t_.act);
    by_rows([&](int i, int rows) {
      down_.kernels->add[rows - 1](y, RowsOf(down_, list + i, rows, left - i), hidden + i,
                                   t_.width);
    });
  }
  void Dot(const KeptReader& w, float* out, const float* x, const int32_t* list, int rows,
           int64_t left) const {
    w.kernels->dot[rows - 1](out, RowsOf(w, list, rows, left), x, t_.width);
  }
  KeptRows RowsOf(const KeptReader& w, const int32_t* list, int rows, int64_t left) const {
    return w.Rows(list, rows, t_.ahead, left, p_.decoded, t_.width);
  }

  // The stretch that a token has come to the end of becomes a node.
  void Join(int64_t n) {
    const DF32 d;
    Token& token = tokens_[n];
    for (KeptNode node{token.stretch, 1}; node.joins(p_.begin); node = node.joined()) {
      const float* from = SumOf(n, token.depth);
      float* to = SumOf(n, --token.depth);
      ForColumns(d, t_.width, [&](int64_t c, auto piece) HWY_ATTR {
        Store(hn::Add(Load(d, to + c, piece), Load(d, from + c, piece)), d, to + c, piece);
      });
    }
    ++token.depth;
    ++token.stretch;
  }

  const KeptTask& t_;
  const KeptPart& p_;
  KeptReader gate_, up_, down_;
  int64_t end_;  // of the places in a list
  Token tokens_[kKeptTokens];
};

void RunPart(const KeptTask& task, const KeptPart& part) { KeptWalk(task, part).Run(); }

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(RunPart);

// A stretch has at least so many neurons.
constexpr int64_t kLeastStretch = 16, kMostStretches = 256;
// What is under way from memory, of each thread; and what a thread must have to do.
constexpr int64_t kAheadBytes = 16 << 10, kGrainBytes = 64 << 10;

// The nodes that a run of stretches leaves, in their order, and the most that there are at a time.
struct Nodes {
  std::vector<KeptNode> left;
  int64_t depth = 0;
};
Nodes nodes_of(int64_t begin, int64_t end) {
  Nodes nodes;
  for (int64_t s = begin; s < end; ++s) {
    KeptNode node{s, 1};
    nodes.depth = std::max(nodes.depth, static_cast<int64_t>(nodes.left.size()) + 1);
    for (; node.joins(begin); node = node.joined()) nodes.left.pop_back();
    nodes.left.push_back(node);
  }
  return nodes;
}

KeptMatrix matrix_of(const Param& param) {
  if (!param.present()) return {};
  const Tensor w = param.expert(0);
  return {static_cast<const char*>(w.data), w.row_bytes, w.dtype};
}

// Joins the nodes of all parts, and writes the last one.
class Joining {
 public:
  Joining(const KeptTask& task, Tensor y) : task_(task), y_(y) {}
  void add(const Nodes& nodes, const float* sums) {
    for (const KeptNode& node : nodes.left) {
      all_.push_back({node, const_cast<float*>(sums)});
      sums += task_.tokens * task_.width;
    }
  }
  void run(int threads) const {
    const int64_t width = task_.width, pieces = (width + kPiece - 1) / kPiece,
                  each = kPiece * static_cast<int64_t>(all_.size());
    parallel_for(threads, task_.tokens * pieces, std::max<int64_t>(1, kGrainElements / each),
                 [&](int64_t begin, int64_t end, int) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t c = i % pieces * kPiece;
                     join(i / pieces, c, std::min(kPiece, width - c));
                   }
                 });
  }

 private:
  static constexpr int64_t kPiece = 256;  // numbers
  struct Sum {
    KeptNode node;
    float* numbers;  // [N,D]
  };

  void join(int64_t token, int64_t column, int64_t count) const {
    const int64_t at = token * task_.width + column;
    Sum stack[16];  // of the first nodes; a level of the tournament has no more than one
    int depth = 0;
    for (const Sum& next : all_) {
      Sum sum = next;
      for (; sum.node.joins(0); sum.node = sum.node.joined()) {
        float* to = stack[--depth].numbers;
        for (int64_t i = at; i < at + count; ++i) to[i] += sum.numbers[i];
        sum.numbers = to;
      }
      stack[depth++] = sum;
    }
    std::copy_n(stack[0].numbers + at, count, y_.row<float>(token) + column);
  }

  const KeptTask& task_;
  Tensor y_;  // [N,D]
  std::vector<Sum> all_;
};

// Tokens of `task`, no more than kKeptTokens.
void some_tokens(Run& run, Tensor y, const KeptTask& task, int64_t bytes) {
  const ArenaScope scope(run.scratch);
  const int64_t useful = std::min(task.stretches, bytes / kGrainBytes),
                parts = std::clamp<int64_t>(useful, 1, run.threads), width = task.width;
  std::vector<KeptPart> all;
  Joining joining(task, y);
  for (int p = 0; p < parts; ++p) {
    const Span span = partition(task.stretches, p, static_cast<int>(parts));
    const Nodes nodes = nodes_of(span.begin, span.end);
    auto* sums = run.scratch.alloc(DType::f32, {nodes.depth, task.tokens, width}).as<float>();
    auto* decoded = run.scratch.alloc(DType::f32, {kKeptRows, width}).as<float>();
    all.push_back({span.begin, span.end, sums, decoded});
    joining.add(nodes, sums);
  }
  parallel_for(static_cast<int>(parts), parts, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p)
      HWY_DYNAMIC_DISPATCH(RunPart)(task, all[static_cast<size_t>(p)]);
  });
  joining.run(run.threads);
}

}  // namespace

void kept_neurons_forward(Run& run, Tensor y, Tensor x, const Param& gate, const Param& up,
                          const Param& down, Tensor kept, Act act) {
  choose_isa();
  check_kept_neurons(y, x, gate, up, down, kept);
  const ArenaScope scope(run.scratch);
  if (x.dtype != DType::f32) {
    const Tensor wide = run.scratch.alloc(DType::f32, {x.rows(), x.cols()});
    cpu::cast(run, wide, x);
    x = wide;
  }
  KeptTask task{.gate = matrix_of(gate), .up = matrix_of(up), .down = matrix_of(down), .act = act};
  task.width = x.cols();
  read_from_copy(run, task, gate, up, down);
  task.kept = kept.cols();
  task.x_stride = x.row_bytes / static_cast<int64_t>(sizeof(float));
  task.list_stride = kept.row_bytes / static_cast<int64_t>(sizeof(int32_t));
  task.stretches = 1;
  while (task.stretches < kMostStretches && task.kept / (2 * task.stretches) >= kLeastStretch)
    task.stretches *= 2;
  int64_t neuron = 0;  // bytes
  for (const KeptMatrix& m : {task.gate, task.up, task.down})
    if (m.rows != nullptr) neuron += bytes_of(m.dtype, task.width);
  task.ahead = std::clamp<int64_t>(kAheadBytes / neuron, kKeptRows, 32);
  for (int64_t n = 0; n < x.rows(); n += kKeptTokens) {
    task.tokens = std::min(kKeptTokens, x.rows() - n);
    task.x = x.row<float>(n);
    task.list = kept.row<int32_t>(n);
    some_tokens(run, y.slice_rows(n, n + task.tokens), task, task.tokens * task.kept * neuron);
  }
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
