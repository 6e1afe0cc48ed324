#include "tensor/on_host.h"

#include <cstring>

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

void Later::read(void* to, const Tensor& from) {
  const auto bytes = static_cast<size_t>(from.bytes());
  if (bytes == 0) return;
  if (device_ == nullptr || !device_->owns(from.data)) {
    std::memcpy(to, from.data, bytes);
  } else if (const void* brought = device_->bring(from.data, bytes)) {
    wanted_.push_back({to, brought, bytes});
  } else {
    device_->download(to, from.data, bytes);
  }
}

void Later::settle() {
  if (wanted_.empty()) return;
  device_->wait();
  for (const Wanted& w : wanted_) std::memcpy(w.to, w.brought, w.bytes);
  wanted_.clear();
  device_->forget_brought();
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
