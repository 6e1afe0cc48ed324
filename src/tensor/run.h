// What every op is given first: threads and memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tensor/arena.h"

namespace moe {

struct Param;
struct Run;
namespace ops {
struct GatheredRows;
}

// Told of the rows of every forward product, right before they are multiplied; but not of products
// that are f32 whatever their rows are.
class ProductObserver {
 public:
  virtual ~ProductObserver() = default;
  // weights [O,I] or banks [E,O,I], all of which meet these rows: rows [offsets[e], offsets[e+1])
  // matrix e.  x [R,I]
  virtual void observe(Run&, std::span<const Param* const> weights, const ops::GatheredRows& x,
                       std::span<const int64_t> offsets) = 0;
};

// The tests' own: a Run that is made without a device computes there, its memory being the CPU's.
inline Device* device_of_tests = nullptr;

struct Run {
  explicit Run(int thread_count, DType compute_dtype = DType::f32, Device* of = nullptr)
      : threads(thread_count),
        compute(compute_dtype),
        device(of != nullptr ? of : device_of_tests),
        saved(kChunk, of),
        scratch(kChunk, of),
        thread_scratch(static_cast<size_t>(thread_count)) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  int threads;
  DType compute;  // dtype of activations that feed products: f32 or bf16
  // Where its ops run and its arenas lie; null: on the CPU. An op brings what lies elsewhere.
  Device* device;
  // Whether forward products with quantised weights take the weights' own numbers, as backward ones
  // do, not rows that are rounded to bytes: what is learned through them is then the gradient of
  // what was computed.
  bool widen = false;
  ProductObserver* observer = nullptr;  // null: nobody watches

  Arena saved;    // what backward needs; released block by block, last in first out
  Arena scratch;  // within one op or one module's backward; every user rewinds it before returning
  std::vector<Arena> thread_scratch;  // [threads] inside parallel regions, by thread number; the
                                      // CPU's

  // The same run on the CPU: for what a device does not do.
  Run& on_cpu() {
    if (!on_cpu_) on_cpu_ = std::make_unique<Run>(threads, compute);
    on_cpu_->device = nullptr;
    on_cpu_->widen = widen;
    return *on_cpu_;
  }

 private:
  std::unique_ptr<Run> on_cpu_;
  static constexpr size_t kChunk = size_t{4} << 20;
};

}  // namespace moe
