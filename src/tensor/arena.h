// Memory for activations: bump allocation, released only by rewinding to a mark (last in, first
// out).
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "tensor/device.h"
#include "tensor/tensor.h"

namespace moe {

// Grows by whole chunks that never move, so views stay valid until their mark is rewound. Chunks
// are kept for reuse, but for those of an arena that has been emptied and held far more than was
// ever in use: it begins again with one. Memory is not cleared; debug builds fill what was rewound
// with a signalling pattern.
class Arena {
 public:
  struct Mark {
    size_t chunk = 0;
    size_t offset = 0;
    size_t used = 0;
  };

  // Chunks hold at least `min_chunk` bytes; a small one is for arenas that hold one thing.
  // `device`: whose memory it is; null: the CPU's.
  explicit Arena(size_t min_chunk = size_t{4} << 20, Device* device = nullptr)
      : min_chunk_(min_chunk), device_(device) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  Arena(Arena&&) = default;
  Arena& operator=(Arena&&) = default;

  Device* device() const { return device_; }
  // 64-byte aligned, on a device 256; a size of 0 gives a valid pointer.
  void* alloc_bytes(size_t bytes);
  void* alloc_zeroed_bytes(size_t bytes);
  Tensor alloc(DType dtype, std::initializer_list<int64_t> shape);
  Tensor alloc_zeroed(DType dtype, std::initializer_list<int64_t> shape);
  // A copy, without gaps, of what lies in memory of the same kind without gaps.
  Tensor copy(const Tensor& from);
  // A copy of what the CPU has.
  template <class T>
  std::span<T> put(std::span<const T> from) {
    auto* to = static_cast<T*>(alloc_bytes(from.size_bytes()));
    put_bytes(to, from.data(), from.size_bytes());
    return {to, from.size()};
  }

  Mark mark() const { return at_; }
  void rewind(Mark mark);
  // Bytes held from the system.
  size_t capacity() const;
  // The most bytes that were ever in use together.
  size_t peak() const { return peak_; }

 private:
  struct Free {
    Device* device = nullptr;
    size_t bytes = 0;
    void operator()(void* p) const;
  };
  std::unique_ptr<char, Free> take(size_t& bytes) const;
  void put_bytes(void* to, const void* from, size_t bytes) const;
  struct Chunk {
    std::unique_ptr<char, Free> data;
    size_t size = 0;
  };
  size_t min_chunk_;
  Device* device_;
  std::vector<Chunk> chunks_;
  Mark at_;
  size_t peak_ = 0;
  size_t first_chunk_ = 0;  // what the first one has to hold
};

// Rewinds when it goes out of scope.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.rewind(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace moe
