// The reader of routing records. The first byte chooses: odd, the rest is a whole file; even,
// header and data parted by a NUL byte, to which the length is added here. A record that is
// accepted is replayed: every entry of every window names an expert that there is.
#include "evaluate/routing_record.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz/fuzz.h"
#include "moe/stages/replay.h"

namespace moe::fuzz {
namespace {

void read(std::span<const std::byte> bytes) {
  accept_or_refuse([&] {
    const RoutingRecord record = RoutingRecord::from_bytes(bytes, "fuzz");
    const RecordInfo& info = record.info();
    demand(info.windows > 0 && info.window > 0 && info.slots > 0 && info.slots <= info.experts);
    demand(static_cast<int64_t>(record.ids().size()) == info.windows * info.window);
    for (const int64_t layer : record.moe_layers()) demand(layer >= 0 && layer < info.layers);
    for (int64_t w = 0; w < info.windows; ++w) {
      const std::vector<Tensor> layers = record.window(w);
      demand(layers.size() == record.moe_layers().size());
      for (const Tensor& t : layers) {
        check_recorded(t, info.window, info.slots, info.experts, "fuzz");
        for (int64_t n = 0; n < t.rows(); ++n)
          for (int64_t i = 0; i < info.slots; ++i)
            demand(chosen_expert(t.row<int32_t>(n)[i]) < info.experts);
      }
    }
    const std::vector<int32_t> text = {1, 2, 3, 5};
    accept_or_refuse([&] { record.check_text(text, "bytes"); });
    ModelConfig config;
    config.layers = 3;
    config.moe_layers = {1, 2};
    config.routing = default_options(find_recipe("olmoe"), 4, 2, 2);
    accept_or_refuse([&] { record.check_model(config, eval_spec(config.routing)); });
  });
}

}  // namespace
}  // namespace moe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) moe::fuzz::read(moe::fuzz::safetensors_file(data, size));
  return 0;
}
