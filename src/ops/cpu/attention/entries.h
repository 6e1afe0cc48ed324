// What attention to listed entries is given (entries.cpp).
#pragma once

#include "tensor/tensor.h"

namespace moe::ops {

struct EntryCall {
  Tensor o, lse, q, entries, kept;  // as attend_entries_acc has them
  int64_t heads;
  float scale;
  Tensor dq = {}, dentries = {}, do_ = {};  // backward
  Tensor delta = {};                        // [N,H] f32: <do, o> of each head

  // Of the entries that query n sees.
  int64_t count(int64_t n) const {
    const int32_t* list = kept.row<int32_t>(n);
    int64_t i = 0;
    while (i < kept.cols() && list[i] >= 0) ++i;
    return i;
  }
};

}  // namespace moe::ops
