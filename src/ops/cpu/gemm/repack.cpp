#include "ops/cpu/gemm/repack.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>

#include "ops/cpu/gemm/pack.h"
#include "ops/cpu/gemm/packed.h"
#include "ops/cpu/spans.h"

namespace moe::ops {
namespace {

// Copies of this size do not stay in the caches until they are used.
constexpr int64_t kStreamBytes = int64_t{4} << 20;

int64_t expert_bytes_of(const PackLayout& layout) {
  return (static_cast<int64_t>(layout.bytes) + 63) / 64 * 64;
}

const PackLayout& layout_of(const Bank& bank, DType dtype, bool forward) {
  return weights_layout(forward ? bank.in : bank.out, forward ? bank.out : bank.in, dtype);
}

}  // namespace

Bank bank_of(const Param& w) {
  const auto& s = w.value.shape;
  return w.value.rank == 2 ? Bank{1, s[0], s[1]} : Bank{s[0], s[1], s[2]};
}

int64_t packed_expert_bytes(const Bank& bank, DType dtype, bool forward) {
  return expert_bytes_of(layout_of(bank, dtype, forward));
}

const char* packed_bank(Run& run, Param& w, const Bank& bank, DType dtype, bool forward) {
  WholeCopy& copy = packed_weight(w).of(dtype, forward).whole;
  const std::atomic_ref version(copy.version);
  if (version.load(std::memory_order_acquire) == w.version) return copy.data;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (version.load(std::memory_order_acquire) != w.version) {
    if (copy.data == nullptr)
      copy.data = static_cast<char*>(copy.memory.alloc_bytes(
          static_cast<size_t>(bank.experts * packed_expert_bytes(bank, dtype, forward))));
    const Repacker repacker(w, Repacker::Which::behind);
    parallel_for(run.threads, repacker.blocks(), row_grain(repacker.block_elements()),
                 [&](int64_t begin, int64_t end, int) {
                   for (int64_t block = begin; block < end; ++block)
                     repacker.pack(block, block + 1 < end);
                   finish_streams();
                 });
    repacker.done(w);
  }
  return copy.data;
}

Repacker::Repacker(const Param& param, Which which) {
  if (param.value.rank < 2) return;
  bank_ = bank_of(param);
  value_ = param.value.as<float>();
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (bool forward : {true, false}) {
      WholeCopy& whole = packed_weight(param).of(dtype, forward).whole;
      if (whole.data == nullptr || (whole.version == param.version) != (which == Which::in_use))
        continue;
      const PackLayout& layout = layout_of(bank_, dtype, forward);
      copies_[static_cast<size_t>(count_++)] = {dtype,   forward, &whole, expert_bytes_of(layout),
                                                &layout, false};
      Copy& copy = copies_[static_cast<size_t>(count_ - 1)];
      copy.stream = streams(layout) && bank_.experts * copy.expert_bytes >= kStreamBytes;
      block_rows_ =
          std::lcm(block_rows_, std::max<int64_t>(1, forward ? layout.n_block : layout.k_block));
    }
  }
  // Layouts of small or plain matrices are one block; their least common multiple may then be more
  // than there are rows.
  block_rows_ = std::min(block_rows_, bank_.out);
  blocks_each_ = (bank_.out + block_rows_ - 1) / block_rows_;
}

Span Repacker::rows(int64_t block) const {
  const int64_t expert = block / blocks_each_, first = block % blocks_each_ * block_rows_;
  return {expert * bank_.out + first,
          expert * bank_.out + std::min(first + block_rows_, bank_.out)};
}

void Repacker::pack(int64_t block, bool fetch_next) const {
  const int64_t expert = block / blocks_each_, first = block % blocks_each_ * block_rows_,
                last = std::min(first + block_rows_, bank_.out);
  const Source source{value_ + expert * bank_.out * bank_.in, DType::f32, bank_.in};
  for (int i = 0; i < count_; ++i) {
    const Copy& c = copies_[static_cast<size_t>(i)];
    char* out = c.whole->data + expert * c.expert_bytes;
    PackHints hints{.next = nullptr, .next_bytes = 0, .stream = c.stream};
    const int64_t step = c.forward ? c.layout->n_block : c.layout->k_block;
    // The last block also covers what pads the layout beyond the rows.
    const int64_t end = last == bank_.out
                            ? (c.forward ? column_blocks(*c.layout) : row_blocks(*c.layout))
                            : last / step;
    for (int64_t b = first / step; b < end; ++b) {
      if (fetch_next && i == 0) {
        const Span rows = this->rows(block + 1);
        const int64_t share =
                          (rows.end - rows.begin) * bank_.in * 4 / (end - first / step) / 64 * 64,
                      at = (b - first / step) * share;
        hints.next = reinterpret_cast<const char*>(value_ + rows.begin * bank_.in) + at;
        hints.next_bytes = share;
      }
      if (c.forward) pack_transposed(out, *c.layout, c.dtype, source, b, hints);
      else pack_straight(out, *c.layout, c.dtype, source, bank_.out, b, hints);
    }
  }
}

void Repacker::done(const Param& param) const {
  for (int i = 0; i < count_; ++i)
    std::atomic_ref(copies_[static_cast<size_t>(i)].whole->version)
        .store(param.version, std::memory_order_release);
}

}  // namespace moe::ops
