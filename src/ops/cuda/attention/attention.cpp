// Causal attention: which kernels a call gets, and how it is cut for them (attend.h, gradient.h).
// cuDNN has the batches of training and scoring in bf16 (cudnn/cudnn_attention.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "ops/cpu/attention/tasks.h"
#include "ops/cuda/attention/attend.h"
#include "ops/cuda/attention/gradient.h"
#include "ops/cuda/cudnn/cudnn_attention.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

// ---- cuDNN --------------------------------------------------------------------------------------

constexpr int64_t kShortest = 64;  // tokens of a sequence that are worth it

// Rows without gaps that begin as cuDNN wants them.
bool is_flat(const Tensor& t) {
  return t.dtype == DType::bf16 && t.dense() && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
}

// Sequences of one length over themselves.
std::optional<FlashShape> flash_shape(const AttentionCall& call) {
  const KvView& kv = *call.kv;
  if (!kv.tables.empty() || kv.keys_transposed() || kv.sequences() < 1 ||
      kv.v.rows() != call.q.rows())
    return {};
  for (const Tensor& t : {call.q, kv.k, kv.v, call.o})
    if (!is_flat(t)) return {};
  if (!call.lse.empty() && !call.lse.dense()) return {};
  const int64_t length = kv.bounds[1];
  if (length < kShortest) return {};
  for (int64_t s = 0; s < kv.sequences(); ++s) {
    const auto at = static_cast<size_t>(s);
    if (kv.bounds[at + 1] - kv.bounds[at] != length || kv.first_row[at] != kv.bounds[at]) return {};
    for (int64_t p = 0; p < length; ++p)
      if (call.positions[static_cast<size_t>(kv.bounds[at] + p)] != p) return {};
  }
  const FlashShape shape{kv.sequences(),     length,      call.heads, call.kv_heads, call.width(),
                         call.value_width(), call.window, call.scale};
  if (!flash_fits(shape)) return {};
  return shape;
}

// ---- forward ------------------------------------------------------------------------------------

// Records of stretches may take so much scratch.
constexpr int64_t kMostRecords = int64_t{256} << 20;

bool in_pieces(const Tensor& t, int64_t width) {
  return width % kStep == 0 && t.row_bytes % 16 == 0 &&
         reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
}

// Lists that a launch reads, one after another, so that they go to the device at once.
class Lists {
 public:
  // Where the list will lie behind the first.
  template <class T>
  size_t add(std::span<const T> list) {
    const size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + list.size_bytes());
    if (!list.empty()) std::memcpy(bytes_.data() + at, list.data(), list.size_bytes());
    return at;
  }
  const char* put(Run& run) { return on_device(run, std::span<const char>(bytes_)); }

 private:
  std::vector<char> bytes_;
};

// How a call is cut.
struct Cut {
  int own;
  std::vector<Tile> tiles;
  std::vector<Joined> joined;
  int64_t records = 0;  // of each key/value head
};

Tile tile_of(const AttentionCall& call, int64_t sequence, int32_t table, int64_t begin,
             int64_t end) {
  const KvView& kv = *call.kv;
  const int64_t query = kv.bounds[static_cast<size_t>(sequence)], group = call.group();
  int64_t oldest = std::numeric_limits<int32_t>::max(), newest = 0;
  for (int64_t n = begin / group; n * group < end; ++n) {
    const int64_t position = call.positions[static_cast<size_t>(query + n)];
    oldest = std::min(oldest, call.first_seen(position));
    newest = std::max(newest, position);
  }
  const auto word = [](int64_t x) { return static_cast<int32_t>(x); };
  return {.query = query,
          .first_row = kv.tables.empty() ? kv.first_row[static_cast<size_t>(sequence)] : -1,
          .left = -1,
          .table = table,
          .begin = word(begin),
          .end = word(end),
          .oldest = word(oldest),
          .newest = word(newest),
          .first_stretch = word(oldest / kStretch),
          .end_stretch = word(newest / kStretch + 1)};
}

// Tables follow each other in the order of the sequences.
std::vector<Tile> tiles_of(const AttentionCall& call, int own) {
  std::vector<Tile> tiles;
  int64_t table = 0;
  for (int64_t s = 0; s < call.kv->sequences(); ++s) {
    const size_t at = static_cast<size_t>(s);
    const int64_t columns = (call.kv->bounds[at + 1] - call.kv->bounds[at]) * call.group();
    for (int64_t begin = 0; begin < columns; begin += own)
      tiles.push_back(
          tile_of(call, s, static_cast<int32_t>(table), begin, std::min(begin + own, columns)));
    if (!call.kv->tables.empty()) table += std::ssize(call.kv->table(s));
  }
  return tiles;
}

// Gives each stretch of a tile a block of its own where there are too few tiles to keep the device
// busy, as when texts are written.
void share_stretches(Cut& cut, const AttentionCall& call, int64_t busy, int64_t record_bytes) {
  int64_t records = 0;
  for (const Tile& t : cut.tiles)
    records += int64_t{t.end_stretch - t.first_stretch} * (t.end - t.begin);
  if (std::ssize(cut.tiles) * call.kv_heads >= busy ||
      records * call.kv_heads * record_bytes > kMostRecords)
    return;
  std::vector<Tile> shared;
  for (const Tile& t : cut.tiles) {
    if (t.end_stretch - t.first_stretch < 2) {
      shared.push_back(t);
      continue;
    }
    cut.joined.push_back({.query = t.query,
                          .left = cut.records,
                          .begin = t.begin,
                          .columns = t.end - t.begin,
                          .stretches = t.end_stretch - t.first_stretch});
    for (int32_t s = t.first_stretch; s < t.end_stretch; ++s) {
      Tile one = t;
      one.first_stretch = s;
      one.end_stretch = s + 1;
      one.left = cut.records;
      cut.records += t.end - t.begin;
      shared.push_back(one);
    }
  }
  cut.tiles = std::move(shared);
}

// As many columns a block as a sequence fills, where all multiprocessors get some.
int choose_own(const Run& run, const AttentionCall& call, const Attend& a, bool tensor) {
  const std::span<const int64_t> bounds = call.kv->bounds;
  int64_t longest = 0;
  for (size_t s = 0; s + 1 < bounds.size(); ++s)
    longest = std::max(longest, (bounds[s + 1] - bounds[s]) * call.group());
  const int64_t columns = call.q.rows() * call.heads;
  for (const int own : {kManyOwn, kSomeOwn}) {
    const bool fits = tensor ? tensor_shared(own, a.width, a.value_width) <= most_shared(run)
                             : own == kManyOwn && attends_many_plain(run, a.width, a.value_width);
    if (fits && 2 * longest > own && columns >= own * int64_t{multiprocessors(run)}) return own;
  }
  return kFewOwn;
}

Cut cut_forward(const Run& run, const AttentionCall& call, const Attend& a, bool tensor) {
  const int own = choose_own(run, call, a, tensor);
  Cut cut{own, tiles_of(call, own), {}};
  if (own == kFewOwn)
    share_stretches(cut, call, int64_t{4} * multiprocessors(run),
                    a.record * static_cast<int64_t>(sizeof(float)));
  return cut;
}

Attend arguments(const AttentionCall& call) {
  const KvView& kv = *call.kv;
  const auto number = [](int64_t x) { return static_cast<int>(x); };
  Attend a{};
  a.kv = {.k = static_cast<const char*>(kv.k.data),
          .v = static_cast<const char*>(kv.v.data),
          .k_row = kv.k.row_bytes,
          .v_row = kv.v.row_bytes,
          .turned = kv.keys_transposed(),
          .k_steps = in_pieces(kv.k, kv.keys_transposed() ? kKeyBlock : call.width()),
          .v_steps = in_pieces(kv.v, call.value_width())};
  a.q = static_cast<const char*>(call.q.data);
  a.o = static_cast<char*>(call.o.data);
  a.lse = static_cast<float*>(call.lse.data);
  a.q_row = call.q.row_bytes;
  a.o_row = call.o.row_bytes;
  a.lse_row = call.lse.empty() ? 0 : call.lse.row_bytes / static_cast<int64_t>(sizeof(float));
  a.record = number((call.value_width() + 2 + 3) / 4 * 4);
  a.group = number(call.group());
  a.kv_heads = number(call.kv_heads);
  a.width = number(call.width());
  a.value_width = number(call.value_width());
  a.window = number(std::min<int64_t>(call.window, std::numeric_limits<int32_t>::max()));
  a.halves = call.q.dtype == DType::bf16;
  a.sign = call.scale < 0 ? -1.0f : 1.0f;
  a.scale = std::fabs(call.scale);
  a.scale2 = a.scale * 1.44269504f;
  return a;
}

void attend(Run& run, const AttentionCall& call) {
  Attend a = arguments(call);
  const bool tensor = attends_on_tensor_cores(a, call.kv->k.dtype);
  const Cut cut = cut_forward(run, call, a, tensor);
  const ArenaScope scope(run.device->scratch());
  Lists lists;
  const size_t tiles = lists.add(std::span<const Tile>(cut.tiles)),
               joined = lists.add(std::span<const Joined>(cut.joined)),
               positions = lists.add(call.positions);
  std::vector<int32_t> flat;
  if (!call.kv->tables.empty())
    for (int64_t s = 0; s < call.kv->sequences(); ++s) {
      const std::span<const int32_t> table = call.kv->table(s);
      flat.insert(flat.end(), table.begin(), table.end());
    }
  const size_t tables = lists.add(std::span<const int32_t>(flat));
  const char* there = lists.put(run);
  a.tiles = reinterpret_cast<const Tile*>(there + tiles);
  a.positions = reinterpret_cast<const int32_t*>(there + positions);
  a.tables = reinterpret_cast<const int32_t*>(there + tables);
  a.left = static_cast<float*>(run.device->scratch().alloc_bytes(
      static_cast<size_t>(cut.records * a.kv_heads * a.record) * sizeof(float)));
  if (tensor) attend_tensor(run, a, cut.own, std::ssize(cut.tiles));
  else attend_plain(run, a, call.kv->k.dtype, cut.own, std::ssize(cut.tiles));
  join_stretches(run, a, reinterpret_cast<const Joined*>(there + joined), std::ssize(cut.joined),
                 cut.own);
}

// ---- backward -----------------------------------------------------------------------------------

// Columns of each sequence, and the keys that they see.
std::vector<GradientTile> tiles_of_queries(const AttentionCall& call, int own) {
  std::vector<GradientTile> tiles;
  const int64_t group = call.group();
  for (int64_t s = 0; s < call.kv->sequences(); ++s) {
    const int64_t first = call.kv->bounds[static_cast<size_t>(s)],
                  columns = (call.kv->bounds[static_cast<size_t>(s) + 1] - first) * group;
    for (int64_t begin = 0; begin < columns; begin += own) {
      const int64_t end = std::min(begin + own, columns);
      tiles.push_back({first, static_cast<int32_t>(begin), static_cast<int32_t>(end),
                       static_cast<int32_t>(call.first_seen(begin / group)),
                       static_cast<int32_t>((end - 1) / group + 1)});
    }
  }
  return tiles;
}

// Keys of each sequence, and the columns that see them.
std::vector<GradientTile> tiles_of_keys(const AttentionCall& call, int own) {
  std::vector<GradientTile> tiles;
  const int64_t group = call.group();
  for (int64_t s = 0; s < call.kv->sequences(); ++s) {
    const int64_t first = call.kv->bounds[static_cast<size_t>(s)],
                  length = call.kv->bounds[static_cast<size_t>(s) + 1] - first;
    for (int64_t begin = 0; begin < length; begin += own) {
      const int64_t end = std::min(begin + own, length),
                    last = call.window > 0 ? std::min(length, end - 1 + call.window) : length;
      tiles.push_back({first, static_cast<int32_t>(begin), static_cast<int32_t>(end),
                       static_cast<int32_t>(begin * group), static_cast<int32_t>(last * group)});
    }
  }
  return tiles;
}

void attend_backward(Run& run, const AttentionCall& call) {
  const int64_t width = call.width(), value_width = call.value_width();
  const ArenaScope scope(run.device->scratch());
  const Tensor delta = run.device->scratch().alloc(DType::f32, {call.q.rows(), call.heads});
  const Gradient g{.q = {call.q, width},
                   .k = {call.kv->k, width},
                   .v = {call.kv->v, value_width},
                   .o = {call.o, value_width},
                   .dout = {call.do_, value_width},
                   .dq = {call.dq, width},
                   .dk = {call.dk, width},
                   .dv = {call.dv, value_width},
                   .lse = static_cast<const float*>(call.lse.data),
                   .delta = delta.as<float>(),
                   .lse_row = call.lse.row_bytes / static_cast<int64_t>(sizeof(float)),
                   .rows = call.q.rows(),
                   .group = static_cast<int>(call.group()),
                   .kv_heads = static_cast<int>(call.kv_heads),
                   .width = static_cast<int>(width),
                   .value_width = static_cast<int>(value_width),
                   .window = static_cast<int>(
                       std::min<int64_t>(call.window, std::numeric_limits<int32_t>::max())),
                   .scale = call.scale};
  const DType dtype = call.q.dtype;
  const bool many = std::max(width, value_width) <= 2 * kChunk &&
                    gradient_shared(kManyOwn, g.width, g.value_width) <= most_shared(run);
  const int own = many ? kManyOwn : kFewOwn;
  take_delta(run, g, dtype);
  gradient_of_queries(run, g, dtype, own, tiles_of_queries(call, own));
  gradient_of_keys(run, g, dtype, own, tiles_of_keys(call, own));
}

void need_fitting(const char* op, const AttentionCall& call) {
  check_device_cap(op, call.cap);
  need(!call.kv->values_by_heads(), op, "values in rows on a GPU", {{"v", call.kv->v}});
  need(call.width() <= kMostWidth && call.value_width() <= kMostWidth, op,
       "heads of at most 576 numbers on a GPU", {{"q", call.q}, {"v", call.kv->v}});
}

}  // namespace

void attention_forward(Run& run, Tensor o, Tensor lse, Tensor q, const KvView& kv,
                       std::span<const int32_t> positions, int64_t heads, int64_t kv_heads,
                       float scale, int64_t window, float cap) {
  if (positions.empty() && q.empty()) return;
  AttentionCall call{};
  call.o = o, call.lse = lse, call.q = q, call.kv = &kv;
  call.positions = positions;
  call.heads = heads, call.kv_heads = kv_heads, call.scale = scale, call.window = window;
  call.cap = cap;
  check_forward(call);
  need_fitting("attention_forward", call);
  const std::optional<FlashShape> flash = flash_shape(call);
  if (!flash) return attend(run, call);
  Scratch scratch(run);
  if (lse.empty()) lse = scratch.alloc(DType::f32, {q.rows(), heads});
  flash_forward(stream_of(run), *flash, o.data, lse.as<float>(), q.data, kv.k.data, kv.v.data,
                scratch.bytes(flash_forward_workspace(*flash)));
}

void attention_backward(Run& run, Tensor dq, Tensor dk, Tensor dv, Tensor do_, Tensor q,
                        const KvView& kv, Tensor o, Tensor lse, std::span<const int32_t> positions,
                        int64_t heads, int64_t kv_heads, float scale, int64_t window, float cap) {
  if (positions.empty() && q.empty()) return;
  AttentionCall call{};
  call.o = o, call.lse = lse, call.q = q, call.kv = &kv;
  call.do_ = do_, call.dq = dq, call.dk = dk, call.dv = dv;
  call.positions = positions;
  call.heads = heads, call.kv_heads = kv_heads, call.scale = scale, call.window = window;
  call.cap = cap;
  check_backward(call);
  need_fitting("attention_backward", call);
  const std::optional<FlashShape> flash = flash_shape(call);
  if (!flash || !is_flat(do_) || !is_flat(dq) || !is_flat(dk) || !is_flat(dv))
    return attend_backward(run, call);
  Scratch scratch(run);
  flash_backward(stream_of(run), *flash, dq.data, dk.data, dv.data, do_.data, q.data, kv.k.data,
                 kv.v.data, o.data, lse.as<float>(),
                 scratch.bytes(flash_backward_workspace(*flash)));
}

}  // namespace moe::ops::cuda
