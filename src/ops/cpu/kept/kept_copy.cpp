#include "ops/cpu/kept/kept_copy.h"

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <span>

#include "core/threads.h"
#include "ops/cpu/gemm/packed.h"
#include "ops/cpu/gemm/products.h"
#include "ops/memory.h"
#include "tensor/quant.h"

namespace moe::ops {
namespace {

constexpr int64_t kGrainBytes = 256 << 10;

// A row of the copy begins with a line.
int64_t row_bytes(DType dtype, int64_t width) {
  return round_up(bytes_of(dtype, width), kKeptLine);
}

// The matrices of a task that are there.
struct Matrices {
  explicit Matrices(KeptTask& task) : width(task.width) {
    for (KeptMatrix* m : {&task.gate, &task.up, &task.down}) {
      if (m->rows == nullptr) continue;
      all[static_cast<size_t>(count++)] = m;
      neuron_bytes += row_bytes(m->dtype, width);
    }
  }
  std::span<KeptMatrix* const> each() const { return {all.data(), static_cast<size_t>(count)}; }

  std::array<KeptMatrix*, 3> all{};
  int count = 0;
  int64_t width, neuron_bytes = 0;
};

void fill(Run& run, char* copy, const Matrices& from, int64_t neurons) {
  parallel_for(run.threads, neurons, std::max<int64_t>(1, kGrainBytes / from.neuron_bytes),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t i = begin; i < end; ++i) {
                   char* to = copy + i * from.neuron_bytes;
                   for (const KeptMatrix* m : from.each()) {
                     std::memcpy(to, m->rows + i * m->stride,
                                 static_cast<size_t>(bytes_of(m->dtype, from.width)));
                     to += row_bytes(m->dtype, from.width);
                   }
                 }
               });
}

// The copy of this version of the values, or null where there is no room for it.
const char* copy_of(Run& run, const Matrices& from, int64_t neurons, PackedWeight& weight,
                    uint64_t version) {
  ExpertCopies& kept = weight.neurons;
  if (kept.version_of(0) == version) return kept.room.data();
  const int64_t bytes = neurons * from.neuron_bytes;
  const auto is_there = [&] { return kept.version_of(0) != 0; };
  if (!is_there() && !weight.budget->may_have_room(bytes)) return nullptr;
  const std::lock_guard lock(packing_lock());
  if (kept.version_of(0) == version) return kept.room.data();  // another thread's, by now
  if (!is_there() && !weight.budget->has_room(bytes)) return nullptr;
  char* copy = kept.place_of(0, 1, bytes);
  if (copy == nullptr) return nullptr;
  if (!is_there()) weight.budget->add(bytes);
  fill(run, copy, from, neurons);
  std::atomic_ref(kept.version[0]).store(version, std::memory_order_release);
  return copy;
}

}  // namespace

int64_t kept_copy_bytes(const Param& w) {
  return w.value.rows() * row_bytes(w.value.dtype, w.value.cols());
}

void read_from_copy(Run& run, KeptTask& task, const Param& gate, const Param& up,
                    const Param& down) {
  // A matrix that a device brought here for this call has no limit, nor would it be met again.
  auto* weight = dynamic_cast<PackedWeight*>(down.derived.get());
  if (!down.is_bound() || weight == nullptr || !weight->budget) return;
  const Matrices matrices(task);
  // None of them falls, so the sum stands still where all do.
  const uint64_t version = gate.version + up.version + down.version;
  const char* row = copy_of(run, matrices, down.value.rows(), *weight, version);
  if (row == nullptr) return;
  for (KeptMatrix* m : matrices.each()) {
    m->rows = row;
    m->stride = matrices.neuron_bytes;
    row += row_bytes(m->dtype, task.width);
  }
}

}  // namespace moe::ops
