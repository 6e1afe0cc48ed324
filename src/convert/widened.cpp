#include "convert/widened.h"

#include <utility>

namespace moe {

Widened::Widened(Run& run, Model& model, int64_t layer) {
  for (Param* param : model.params()) {
    if (param->layer != layer || !param->is_bound()) continue;
    Tensor wide = param->value;
    wide.dtype = DType::f32;
    wide.row_bytes = bytes_of(DType::f32, wide.cols());
    wide.data = run.saved.alloc_bytes(static_cast<size_t>(wide.bytes()));
    copy_as_f32(wide, *param, run.threads);
    before_.push_back({param, param->value, param->places()});
    param->own(wide);
  }
}

Widened::~Widened() {
  for (Before& was : before_) {
    was.param->derived = Derived();
    was.param->bind(was.value, std::move(was.places));
  }
}

}  // namespace moe
