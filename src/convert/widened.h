// A layer of a model whose weights lie in a file, as f32 for as long as somebody works on it: so of
// a large model one layer at a time is in memory.
#pragma once

#include <vector>

#include "model/model.h"

namespace moe {

class Widened {
 public:
  // Its parameters that are bound own f32 numbers in run.saved from here on, and are bound again,
  // without what products made of them, when this goes; others stay as they are.
  Widened(Run&, Model&, int64_t layer);
  ~Widened();
  Widened(const Widened&) = delete;
  Widened& operator=(const Widened&) = delete;

 private:
  struct Before {
    Param* param;
    Tensor value;
    std::vector<const void*> places;
  };
  std::vector<Before> before_;
};

}  // namespace moe
