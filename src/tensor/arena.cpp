#include "tensor/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "core/memory.h"

namespace moe {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kDeviceAlign = 256;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 4096;
constexpr size_t kMaxGrowth = size_t{256} << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Of the system itself, on a border of large pages: a heap would keep what is freed. Null: there is
// none.
void* map_pages(size_t bytes) {
  const size_t room = bytes + kHugePage;
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<char*>(mapped);
  const size_t before =
      round_up(reinterpret_cast<uintptr_t>(begin), kHugePage) - reinterpret_cast<uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  if (before < kHugePage) munmap(begin + before + bytes, kHugePage - before);
  // a hint: large pages cut the cost of first touch
  madvise(begin + before, bytes, MADV_HUGEPAGE);
  return begin + before;
}

}  // namespace

void Arena::Free::operator()(void* p) const {
  if (device != nullptr) device->give(p);
  else if (bytes < kHugePage) std::free(p);
  else munmap(p, bytes);
}

// At least so many bytes; how many there are, afterwards.
std::unique_ptr<char, Arena::Free> Arena::take(size_t& bytes) const {
  const size_t align = bytes < kHugePage ? kPage : kHugePage;
  bytes = round_up(bytes, align);
  const Free free{device_, bytes};
  if (device_ != nullptr) return {static_cast<char*>(device_->take(bytes)), free};
  void* p = bytes < kHugePage ? std::aligned_alloc(align, bytes) : map_pages(bytes);
  if (p == nullptr)
    throw OutOfMemory(
        message("out of memory: {} MiB more were needed, {} MiB are in use; use shorter texts or "
                "a smaller model, and in training a smaller @batch or @recompute",
                bytes >> 20, capacity() >> 20));
  return {static_cast<char*>(p), free};
}

void* Arena::alloc_bytes(size_t bytes) {
  const size_t size = round_up(std::max<size_t>(bytes, 1), device_ ? kDeviceAlign : kAlign);
  while (at_.chunk < chunks_.size() && at_.offset + size > chunks_[at_.chunk].size)
    at_ = {at_.chunk + 1, 0, at_.used};
  if (at_.chunk == chunks_.size()) {
    const size_t growth = chunks_.empty() ? first_chunk_ : std::min(capacity(), kMaxGrowth);
    size_t wish = std::max({size, min_chunk_, growth});
    auto chunk = take(wish);
    chunks_.push_back({std::move(chunk), wish});
    at_.offset = 0;
  }
  char* p = chunks_[at_.chunk].data.get() + at_.offset;
  at_.offset += size;
  at_.used += size;
  peak_ = std::max(peak_, at_.used);
  return p;
}

void Arena::put_bytes(void* to, const void* from, size_t bytes) const {
  if (bytes == 0) return;
  if (device_ != nullptr) device_->upload(to, from, bytes);
  else std::memcpy(to, from, bytes);
}

Tensor Arena::alloc(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t(nullptr, dtype, shape);
  t.data = alloc_bytes(static_cast<size_t>(t.bytes()));
  return t;
}

void* Arena::alloc_zeroed_bytes(size_t bytes) {
  void* p = alloc_bytes(bytes);
  if (device_ != nullptr) device_->fill(p, 0, bytes);
  else std::memset(p, 0, bytes);
  return p;
}

Tensor Arena::alloc_zeroed(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t(nullptr, dtype, shape);
  t.data = alloc_zeroed_bytes(static_cast<size_t>(t.bytes()));
  return t;
}

Tensor Arena::copy(const Tensor& from) {
  assert(from.dense());
  Tensor to = from;
  const auto bytes = static_cast<size_t>(from.bytes());
  to.data = alloc_bytes(bytes);
  if (device_ != nullptr) device_->copy(to.data, from.data, bytes);
  else std::memcpy(to.data, from.data, bytes);
  return to;
}

void Arena::rewind(Mark mark) {
#ifndef NDEBUG
  for (size_t c = mark.chunk; c < chunks_.size() && c <= at_.chunk; ++c) {
    const size_t from = c == mark.chunk ? mark.offset : 0;
    const size_t to = c == at_.chunk ? at_.offset : chunks_[c].size;
    if (to > from && device_ == nullptr)
      std::memset(chunks_[c].data.get() + from, 0xFF,
                  to - from);  // 0xFF.. is a NaN in every float type
  }
#endif
  at_ = mark;
  // A large piece skips what is left of the chunks before it. Emptied, all fits into one.
  const size_t enough = peak_ + peak_ / 8;
  if (mark.chunk > 0 || mark.offset > 0 || chunks_.size() < 2 || device_ != nullptr) return;
  if (capacity() <= enough + peak_ / 8) return;
  chunks_.clear();
  first_chunk_ = enough;
}

size_t Arena::capacity() const {
  size_t total = 0;
  for (const Chunk& chunk : chunks_) total += chunk.size;
  return total;
}

}  // namespace moe
