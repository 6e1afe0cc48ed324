// The GGUF reader, from bytes at every address a view could begin at: the first byte chooses the
// shift, the rest is the file.
#include "formats/gguf.h"

#include <utility>
#include <vector>

#include "fuzz/fuzz.h"

namespace moe::fuzz {
namespace {

// Reads every byte through its view, numbers that stand alone as such: a view that leaves the file
// or is not aligned is caught by the sanitizers.
uint64_t touch(const Tensor& t) {
  uint64_t sum = 0;
  const int64_t bytes = t.bytes();
  if (t.dtype == DType::f32 || t.dtype == DType::i32) {
    for (int64_t i = 0; i < bytes / 4; ++i) sum += static_cast<const uint32_t*>(t.data)[i];
  } else {
    for (int64_t i = 0; i < bytes / 2; ++i) sum += static_cast<const uint16_t*>(t.data)[i];
  }
  return sum;
}

void read(std::span<const std::byte> bytes) {
  accept_or_refuse([&] {
    const Gguf file = Gguf::from_bytes(bytes, "fuzz");
    uint64_t total = 0, sum = 0;
    for (const NamedTensor& tensor : file.tensors()) {
      demand(tensor.value.rank >= 1 && tensor.value.rank <= 4 && tensor.value.numel() > 0 &&
             file.contains(tensor.name));
      total += static_cast<uint64_t>(tensor.value.bytes());
      sum += touch(tensor.value);
    }
    demand(total <= bytes.size());  // no byte belongs to two tensors
    for (const auto& entry : file.metadata()) {
      const std::string& key = entry.first;
      accept_or_refuse([&] { sum += file.text(key).size(); });
      accept_or_refuse([&] { sum += static_cast<uint64_t>(file.integer(key, 0, 1 << 20)); });
      accept_or_refuse([&] { sum += file.number(key) > 0; });
      accept_or_refuse([&] { sum += file.texts(key).size(); });
    }
    volatile uint64_t keep = sum;
    (void)keep;
    accept_or_refuse([&] { file.get("blk.0.attn_q.weight"); });
  });
}

}  // namespace
}  // namespace moe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t shift = data[0] % 4;
  std::vector<std::byte> moved(shift + size - 1);
  if (size > 1) std::memcpy(moved.data() + shift, data + 1, size - 1);
  moe::fuzz::read(std::span(std::as_const(moved)).subspan(shift));
  return 0;
}
