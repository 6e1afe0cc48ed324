// One request for text: what its choices bring is written to the client as it comes, or whole.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/engine.h"
#include "serve/http_server.h"
#include "serve/request.h"

namespace moe::serve {

struct JobContext {
  const Served* served;
  Engine* engine;
  Metrics* metrics;
  const std::vector<std::string>* api_keys;
  int64_t max_seconds;   // a request that takes longer is ended where it stands
  double quiet_seconds;  // ServeOptions::quiet_seconds
};

// Answers the exchange, now or later. Throws what submit() throws, having answered nothing. The
// context outlives the job.
void start_job(const JobContext&, std::shared_ptr<Exchange>, ParsedRequest);

}  // namespace moe::serve
