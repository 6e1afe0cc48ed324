// The safetensors reader. The first byte chooses: odd, the rest is a whole file; even, the rest is
// header and data parted by a NUL byte, to which the length is added here, so that mutations reach
// the checks behind it.
#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz/fuzz.h"

namespace moe::fuzz {
namespace {

// Reads every number through its view, as whoever uses the file would: a view that leaves the file
// or is not aligned is caught by the sanitizers.
uint64_t touch(const Tensor& t) {
  uint64_t sum = 0;
  const int64_t n = t.numel();
  if (size_of(t.dtype) == 8) {
    for (int64_t i = 0; i < n; ++i) sum += static_cast<const uint64_t*>(t.data)[i];
  } else if (size_of(t.dtype) == 4) {
    for (int64_t i = 0; i < n; ++i) sum += static_cast<const uint32_t*>(t.data)[i];
  } else if (size_of(t.dtype) == 2) {
    for (int64_t i = 0; i < n; ++i) sum += static_cast<const uint16_t*>(t.data)[i];
  } else {
    for (int64_t i = 0; i < n; ++i) sum += static_cast<const uint8_t*>(t.data)[i];
  }
  return sum;
}

void read(std::span<const std::byte> bytes) {
  accept_or_refuse([&] {
    const Safetensors file = Safetensors::from_bytes(bytes, "fuzz");
    uint64_t header = 0, total = 0, sum = 0;
    std::memcpy(&header, bytes.data(), 8);
    for (const NamedTensor& tensor : file.tensors()) {
      demand(tensor.value.rank >= 1 && tensor.value.rank <= 4 && file.contains(tensor.name));
      total += static_cast<uint64_t>(tensor.value.bytes());
      sum += touch(tensor.value);
    }
    demand(total == bytes.size() - 8 - header);  // every byte of the data belongs to a tensor
    volatile uint64_t keep = sum;
    (void)keep;
    accept_or_refuse([&] { file.get("layers.0.router.weight"); });
  });
}

}  // namespace
}  // namespace moe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) moe::fuzz::read(moe::fuzz::safetensors_file(data, size));
  return 0;
}
