#include "model/on_device.h"

namespace moe {

OnDevice::OnDevice(std::span<Param* const> params, Device& device)
    : memory_(size_t{64} << 20, &device) {
  for (Param* param : params) {
    Tensor there = param->value;
    there.row_bytes = bytes_of(there.dtype, there.cols());
    there.data = memory_.alloc_bytes(static_cast<size_t>(there.bytes()));
    places_.push_back({param, there, param->value, param->places(), param->is_bound()});
  }
}

void OnDevice::bring_up() {
  for (const Place& p : places_) {
    for (int64_t e = 0; e < p.there.matrices(); ++e) {
      const Tensor from = p.param->expert(e), to = p.there.matrix(e);
      device().upload(to.data, from.data, static_cast<size_t>(from.bytes()));
    }
    // what the CPU made of it
    p.param->derived = Derived();
    if (p.bound) p.param->bind(p.there);
    else p.param->own(p.there);
  }
  device().wait();
}

void OnDevice::bring_back() {
  for (const Place& p : places_) {
    p.param->derived = Derived();
    if (p.bound) {
      p.param->bind(p.here, p.places);
    } else {
      device().download(p.here.data, p.there.data, static_cast<size_t>(p.there.bytes()));
      p.param->own(p.here);
    }
  }
}

}  // namespace moe
