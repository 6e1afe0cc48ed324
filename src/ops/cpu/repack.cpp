#include "ops/cpu/repack.h"

#include <algorithm>
#include <numeric>

#include "ops/cpu/check.h"
#include "ops/cpu/pack.h"

namespace moe::ops {
namespace {

int64_t expert_bytes_of(const PackLayout& layout) { return (static_cast<int64_t>(layout.bytes) + 63) / 64 * 64; }

const PackLayout& layout_of(const Bank& bank, DType dtype, bool forward) {
  return weights_layout(forward ? bank.in : bank.out, forward ? bank.out : bank.in, dtype);
}

}  // namespace

Bank bank_of(const Param& w) {
  const auto& s = w.value.shape;
  return w.value.rank == 2 ? Bank{1, s[0], s[1]} : Bank{s[0], s[1], s[2]};
}

PackedBank packed_bank(Run& run, Param& w, const Bank& bank, DType dtype, bool forward) {
  Packed& packed = dtype == DType::bf16 ? w.packed_bf16 : w.packed_f32;
  const PackLayout& layout = layout_of(bank, dtype, forward);
  const int64_t expert_bytes = expert_bytes_of(layout);
  void*& data = forward ? packed.forward : packed.backward;
  uint64_t& version = forward ? packed.forward_version : packed.backward_version;
  if (data == nullptr) data = packed.memory.alloc_bytes(static_cast<size_t>(bank.experts * expert_bytes));
  if (version != w.version) {
    const int64_t blocks = forward ? column_blocks(layout) : row_blocks(layout);
    const int64_t grain = std::max<int64_t>(1, kGrainElements * blocks / (bank.in * bank.out));
    parallel_for(run.threads, bank.experts * blocks, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        char* out = static_cast<char*>(data) + i / blocks * expert_bytes;
        const Source source{w.value.row<float>(i / blocks * bank.out), DType::f32, bank.in};
        if (forward) pack_transposed(out, layout, dtype, source, i % blocks);
        else pack_straight(out, layout, dtype, source, bank.out, i % blocks);
      }
    });
    version = w.version;
  }
  return {static_cast<const char*>(data), expert_bytes};
}

Repacker::Repacker(const Param& param) {
  if (param.value.rank < 2) return;
  bank_ = bank_of(param);
  value_ = param.value.as<float>();
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Packed& packed = dtype == DType::bf16 ? param.packed_bf16 : param.packed_f32;
    for (bool forward : {true, false}) {
      if ((forward ? packed.forward_version : packed.backward_version) != param.version) continue;
      const PackLayout& layout = layout_of(bank_, dtype, forward);
      copies_list_[static_cast<size_t>(copies_++)] = {dtype, forward, static_cast<char*>(forward ? packed.forward : packed.backward), expert_bytes_of(layout),
                                                      &layout};
      block_rows_ = std::lcm(block_rows_, std::max<int64_t>(1, forward ? layout.n_block : layout.k_block));
    }
  }
  // Layouts of small or plain matrices are one block; their least common multiple may then be more than there are rows.
  block_rows_ = std::min(block_rows_, bank_.out);
  blocks_each_ = (bank_.out + block_rows_ - 1) / block_rows_;
}

Span Repacker::rows(int64_t block) const {
  const int64_t expert = block / blocks_each_, first = block % blocks_each_ * block_rows_;
  return {expert * bank_.out + first, expert * bank_.out + std::min(first + block_rows_, bank_.out)};
}

void Repacker::pack(int64_t block) const {
  const int64_t expert = block / blocks_each_, first = block % blocks_each_ * block_rows_, last = std::min(first + block_rows_, bank_.out);
  const Source source{value_ + expert * bank_.out * bank_.in, DType::f32, bank_.in};
  for (int i = 0; i < copies_; ++i) {
    const Copy& c = copies_list_[static_cast<size_t>(i)];
    char* out = c.data + expert * c.expert_bytes;
    const int64_t step = c.forward ? c.layout->n_block : c.layout->k_block;
    // The last block also covers what pads the layout beyond the rows.
    const int64_t end = last == bank_.out ? (c.forward ? column_blocks(*c.layout) : row_blocks(*c.layout)) : last / step;
    for (int64_t b = first / step; b < end; ++b) {
      if (c.forward) pack_transposed(out, *c.layout, c.dtype, source, b);
      else pack_straight(out, *c.layout, c.dtype, source, bank_.out, b);
    }
  }
}

void Repacker::done(Param& param) const {
  for (int i = 0; i < copies_; ++i) {
    const Copy& c = copies_list_[static_cast<size_t>(i)];
    Packed& packed = c.dtype == DType::bf16 ? param.packed_bf16 : param.packed_f32;
    (c.forward ? packed.forward_version : packed.backward_version) = param.version;
  }
}

}  // namespace moe::ops
