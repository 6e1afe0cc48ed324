// A model's parameters in a device's memory.
#pragma once

#include <span>
#include <vector>

#include "tensor/arena.h"
#include "tensor/param.h"

namespace moe {

// Each parameter has two places: where it lay, and one on the device. Its numbers are those of the
// place that it points to.
class OnDevice {
 public:
  OnDevice(std::span<Param* const> params, Device& device);
  void bring_up();
  // Waits for the device. What was only read does not come back: it is where it was.
  void bring_back();
  // For what goes with the parameters, such as their gradients.
  Arena& memory() { return memory_; }
  Device& device() const { return *memory_.device(); }

 private:
  struct Place {
    Param* param;
    Tensor there;  // on the device, without gaps, of the dtype of the value
    Tensor here;
    std::vector<const void*> places;  // of its experts, where they lie apart
    bool bound;
  };
  Arena memory_;
  std::vector<Place> places_;
};

}  // namespace moe
