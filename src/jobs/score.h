// The body of `moe score`: how well a model predicts a text, its routing kept or replayed.
#pragma once

#include <optional>
#include <string>

#include "core/json.h"
#include "evaluate/routing_record.h"
#include "infer/options.h"
#include "jobs/forward_memory.h"
#include "jobs/replies.h"

namespace moe {

struct ScoreJob {
  // files of routing that are written and read; empty: none
  std::string model, adapter, text, record, replay;
  ScoreOptions score{.window = 0};  // 0: the default
  ComputeOptions compute;
  MemoryOptions memory;
};
// But for the model.
FieldList fields(ScoreJob&);

struct ScoreReply {
  ScorePlan plan;
  Score score;
  std::string record;                       // the file that was written; empty: none
  int64_t moe_layers = 0, read_tokens = 0;  // of the model; of all windows
  struct Replayed {
    std::string file;
    RecordInfo info;
    Agreement agreement;  // with what the model would have chosen itself
    double alike() const;
  };
  std::optional<Replayed> replayed;
};
// `group`: processes that score together, the experts of the model spread over them; the first one
// writes the record.
ScoreReply score_model(const ScoreJob&, const Watch&, const comm::Group& group = {});
Json to_json(const ScoreReply&);

}  // namespace moe
