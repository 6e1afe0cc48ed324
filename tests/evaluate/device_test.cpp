// A text that is scored on a device, in one piece and through a cache. In a build without CUDA
// nothing.
#include "evaluate/score.h"
#include "support/a_device.h"
#include "support/tiny_model.h"
#include "text/tokenizer.h"

namespace moe::test::device_test {
namespace {

TEST(OnADevice, AScoreIsThatOfTheCpu) {
  Device* there = a_device();
  if (there == nullptr) return;
  const auto model = fresh(plain_config());
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 40; ++i) ids.push_back(i * 37 % 256);
  for (const int64_t chunk : {0, 3}) {
    ScoreOptions options;
    options.window = 20;
    options.chunk = chunk;
    moe::Run here(2), run(2, DType::f32, there);
    here.device = nullptr;
    const double want = score(*model, here, *tokenizer, ids, options).nats_per_token;
    model->move_to(there);
    EXPECT_NEAR(score(*model, run, *tokenizer, ids, options).nats_per_token, want, 1e-4) << chunk;
    model->move_to(nullptr);
  }
}

}  // namespace
}  // namespace moe::test::device_test
