#include "tensor/on_host.h"

namespace moe {
namespace {

// f(place there, place here, bytes) for each piece without gaps.
template <class F>
void each_piece(const Tensor& there, const Tensor& here, F&& f) {
  if (there.dense()) return f(there.data, here.data, static_cast<size_t>(there.bytes()));
  for (int64_t r = 0; r < there.rows(); ++r)
    f(static_cast<char*>(there.data) + r * there.row_bytes,
      static_cast<char*>(here.data) + r * here.row_bytes,
      static_cast<size_t>(bytes_of(there.dtype, there.cols())));
}

}  // namespace

Tensor OnHost::copied(const Tensor& t, bool back) {
  if (!is_away(t.data)) return t;
  Tensor copy = t;
  copy.row_bytes = bytes_of(t.dtype, t.cols());
  copy.data = memory_.alloc_bytes(static_cast<size_t>(copy.bytes()));
  each_piece(t, copy,
             [&](void* there, void* here, size_t n) { device_->download(here, there, n); });
  if (back) written_.push_back({t, copy});
  return copy;
}

// What goes wrong with a device is told by the next that waits for it.
OnHost::~OnHost() {
  try {
    for (const auto& [there, here] : written_)
      each_piece(there, here,
                 [&](void* to, void* from, size_t n) { device_->upload(to, from, n); });
  } catch (...) {
  }
}

}  // namespace moe
