// Weights in few bits beside their scales: any tensors become ones of other types, or an Error. The
// first byte chooses the packing and the size of its blocks and groups, and as in
// safetensors_fuzz.cpp how the rest is read.
#include "hub/folder/packed.h"

#include "fuzz/fuzz.h"

namespace moe::fuzz {
namespace {

void read(std::span<const std::byte> bytes, const Packing& packing) {
  accept_or_refuse([&] {
    const auto file = std::make_shared<const Safetensors>(Safetensors::from_bytes(bytes, "fuzz"));
    accept_or_refuse([&] {
      UnpackedTensors unpacked(file, packing);
      demand(unpacked.tensors().size() <= file->tensors().size());
      std::vector<std::string> shapes;
      for (const NamedTensor& tensor : unpacked.tensors()) shapes.push_back(describe(tensor.value));
      unpacked.unpack();
      for (size_t i = 0; i < shapes.size(); ++i)
        demand(describe(unpacked.tensors()[i].value) == shapes[i]);
      uint64_t sum = 0;
      for (const NamedTensor& tensor : unpacked.tensors()) {
        const auto* first = static_cast<const uint8_t*>(tensor.value.data);
        for (int64_t i = 0; i < tensor.value.bytes(); ++i) sum += first[i];
      }
      volatile uint64_t keep = sum;
      (void)keep;
    });
  });
}

}  // namespace
}  // namespace moe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  using Kind = moe::Packing::Kind;
  constexpr Kind kKinds[] = {Kind::mxfp4,      Kind::fp8,        Kind::gptq,
                             Kind::gptq,       Kind::awq,        Kind::compressed,
                             Kind::compressed, Kind::compressed, Kind::bitsandbytes,
                             Kind::modelopt,   Kind::fbgemm};
  const size_t which = (data[0] >> 1 & 15) % std::size(kKinds);
  const int block = data[0] & 32 ? 4 : 1;
  moe::Packing packing;
  packing.kind = kKinds[which];
  if (which != 7) packing.block_rows = packing.block_cols = block;
  packing.groups = {int64_t{1} << (data[0] >> 6), 4 * block};
  packing.zeros_less_one = which == 2;
  moe::fuzz::read(moe::fuzz::safetensors_file(data, size), packing);
  return 0;
}
