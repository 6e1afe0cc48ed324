// metrics.jsonl as a report reads it: any bytes give a history whose rows fit each other, or one
// clear line.
#include <sstream>
#include <string>

#include "analyze/data/history.h"
#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe;
  fuzz::accept_or_refuse([&] {
    std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
    const TrainingHistory history = parse_history(in, "fuzz");
    int64_t step = -1;
    for (const HistoryPoint& point : history.points) {
      fuzz::demand(point.step > step);
      fuzz::demand(point.losses.size() == history.loss_names.size());
      fuzz::demand(point.load.size() == history.layers.size() &&
                   point.max_vio.size() == history.layers.size());
      step = point.step;
    }
    fuzz::demand(static_cast<int64_t>(history.points.size()) <= kHistoryPoints);
  });
  return 0;
}
